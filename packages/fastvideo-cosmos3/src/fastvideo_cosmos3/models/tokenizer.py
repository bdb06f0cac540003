"""The tokenizer with its chat template: conversations to token ids, and token ids to text as they come in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastvideo_core.errors import CheckpointError

__all__ = ["END_OF_TEXT_WINDOW", "ChatTokenizer"]

END_OF_TEXT_WINDOW = 8
"""Tokens that are read again with the next one: enough for a character of four bytes, each a token of its own."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class ChatTokenizer:
    """A tokenizer of transformers, with what Cosmos3 asks of it.

    Args:
        tokenizer: The tokenizer.
        label: Where it is from, for messages.

    Raises:
        CheckpointError: It has no chat template, no end token, or not the tokens that Cosmos3 needs.
    """

    def __init__(self, tokenizer: Any, label: str = "tokenizer") -> None:
        self._tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise CheckpointError(
                f"{label} has no chat template; chat_template.jinja or tokenizer_config.json holds one"
            )
        if tokenizer.eos_token_id is None:
            raise CheckpointError(f"{label} has no end token (eos_token)")
        self.eos_id = int(tokenizer.eos_token_id)
        self.start_of_generation_id = self._special(label, "<|vision_start|>")
        self.vision_end_id = self._special(label, "<|vision_end|>")
        self.image_id = self._special(label, "<|image_pad|>")
        self.video_id = self._special(label, "<|video_pad|>")

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTokenizer:
        """Read a tokenizer's folder.

        Raises:
            CheckpointError: It is missing or broken, or not what Cosmos3 needs.
        """
        from transformers import AutoTokenizer

        if not (folder / "tokenizer_config.json").is_file():
            raise CheckpointError(f"{folder / 'tokenizer_config.json'} is missing; a tokenizer's folder needs it")
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        except Exception as error:  # the libraries behind it raise what they like at a broken file
            raise CheckpointError(f"{folder} is not a tokenizer: {' '.join(str(error).split())}") from error
        return cls(tokenizer, str(folder))

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> tuple[int, ...]:
        """Return the ids of a conversation up to where the answer begins.

        Args:
            messages: Each with `role` and `content`: text, or parts of type `text`, `image` and `video`.
        """
        text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return self.encode(text)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text as it stands, special tokens in it included."""
        # Not verbose: the library would warn of a long text, which is refused in words of our own.
        return tuple(self._tokenizer.encode(text, add_special_tokens=False, verbose=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids, special tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def decode_step(self, ids: Sequence[int], start: int, shown: int) -> tuple[str, int, int]:
        """Return what a new last token adds to the text, whole characters only.

        Args:
            ids: All ids so far.
            start: Where the window begins that is read again.
            shown: How many ids have been shown.

        Returns:
            The new text, and `start` and `shown` for the next call; the text is empty while a character is incomplete.
        """
        before = self.decode(ids[start:shown])
        after = self.decode(ids[start:])
        is_incomplete = after.endswith(_REPLACEMENT) and len(ids) - shown < END_OF_TEXT_WINDOW
        if len(after) <= len(before) or is_incomplete:
            return "", start, shown
        return after[len(before) :], shown, len(ids)

    def _special(self, label: str, token: str) -> int:
        found = self._tokenizer.convert_tokens_to_ids(token)
        if found is None or found == self._tokenizer.unk_token_id:
            raise CheckpointError(f"{label} has no token {token}")
        return int(found)
