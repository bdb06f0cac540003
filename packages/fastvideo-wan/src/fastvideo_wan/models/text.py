"""Prompts as Wan sees them: cleaned text, and token ids from a `tokenizer.json`.

The file is read with the `tokenizers` library itself: it is what transformers' fast tokenizers wrap, and needs none of
their imports.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING

from fastvideo_core.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["PromptTokenizer", "clean_prompt"]

_WHITESPACE = re.compile(r"\s+")


def clean_prompt(text: str) -> str:
    """Return a prompt as the text encoder was trained to see it: encoding mended, entities and spaces resolved."""
    import ftfy

    return _WHITESPACE.sub(" ", html.unescape(html.unescape(ftfy.fix_text(text))).strip()).strip()


class PromptTokenizer:
    """Turns prompts into token ids.

    Args:
        tokenizer: Loaded tokenizer; its own truncation and padding are switched off.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer

    @classmethod
    def from_folder(cls, folder: Path) -> PromptTokenizer:
        """Read `tokenizer.json`.

        Raises:
            CheckpointError: The file is missing or broken.
        """
        from tokenizers import Tokenizer

        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; a fast tokenizer's file is needed")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"{path} is not a tokenizer: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt after cleaning, special tokens included, without padding."""
        ids: list[int] = self._tokenizer.encode(clean_prompt(text)).ids
        return ids

    def unknown_words(self, text: str) -> list[str]:
        """Return the parts of a prompt that the vocabulary does not have, each once, in order."""
        cleaned = clean_prompt(text)
        encoding = self._tokenizer.encode(cleaned)
        unknown_id = self._tokenizer.token_to_id("<unk>")
        spans = [span for span, token in zip(encoding.offsets, encoding.ids, strict=True) if token == unknown_id]
        return list(dict.fromkeys(cleaned[start:end] for start, end in spans if end > start))
