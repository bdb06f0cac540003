"""The word-level tokenizer of the shipped model, in the file format that transformers reads."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import NFKC, Lowercase, Sequence
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from fastvideo_wan.shapes.captions import known_words

PAD, EOS, UNKNOWN = "<pad>", "</s>", "<unk>"
VOCABULARY_SIZE = 128
TEXT_LENGTH = 32


def build_tokenizer() -> Tokenizer:
    """Return the tokenizer: lower case, words and signs apart, every word outside the captions' becomes `<unk>`.

    Ids are 0 for padding, 1 for the end, 2 for an unknown word, then the captions' words in alphabetical order, then
    spare ids up to `VOCABULARY_SIZE` for words that a later training adds.
    """
    words = [PAD, EOS, UNKNOWN, *known_words()]
    words += [f"<spare_{i}>" for i in range(VOCABULARY_SIZE - len(words))]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.normalizer = Sequence([NFKC(), Lowercase()])
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, words.index(EOS))])
    return tokenizer


def save_tokenizer(folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`, as `PreTrainedTokenizerFast.from_pretrained` reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": EOS,
        "unk_token": UNKNOWN,
        "model_max_length": TEXT_LENGTH,
        "padding_side": "right",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
