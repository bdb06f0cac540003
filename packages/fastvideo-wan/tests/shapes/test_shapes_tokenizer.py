"""The tokenizer's files are what transformers reads, and unknown words are known to be unknown."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerFast

from fastvideo_wan.models.text import PromptTokenizer
from fastvideo_wan.shapes.tokenizer import TEXT_LENGTH, VOCABULARY_SIZE, build_tokenizer, save_tokenizer

PROMPT = "A red circle moving to the right, on black."


def test_transformers_reads_the_files_and_gives_the_same_ids(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    loaded = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    got = loaded(PROMPT, padding="max_length", max_length=TEXT_LENGTH, truncation=True)
    ids = build_tokenizer().encode(PROMPT).ids
    assert got["input_ids"] == ids + [0] * (TEXT_LENGTH - len(ids))
    assert sum(got["attention_mask"]) == len(ids)
    assert loaded.decode(ids, skip_special_tokens=True).split()[:3] == ["a", "red", "circle"]


def test_ids_are_small_and_end_with_the_end_sign() -> None:
    tokenizer = build_tokenizer()
    assert tokenizer.get_vocab_size() == VOCABULARY_SIZE
    assert tokenizer.encode("").ids == [tokenizer.token_to_id("</s>")] == [1]


def test_unknown_words_are_named() -> None:
    assert PromptTokenizer(build_tokenizer()).unknown_words("A shaggy Dog on black") == ["shaggy", "Dog"]
