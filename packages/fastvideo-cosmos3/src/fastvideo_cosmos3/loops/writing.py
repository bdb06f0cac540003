"""Text as it is written: whole characters, stop strings held back and cut off, the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastvideo_core.loop.work import StreamChunk
from fastvideo_cosmos3.models.tokenizer import ChatTokenizer

__all__ = ["STREAM", "Finish", "GeneratedText", "Writing", "text_chunks", "write_token"]

STREAM = "text"

Finish = Literal["", "eos", "stop", "length"]
"""Why a text ended: at its end token, at a stop string, at the most tokens; "" while it goes on."""


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """A text that the reasoner wrote.

    Attributes:
        token_ids: Its tokens, the end token included.
        text: What they read as, up to a stop string.
        finish: Why it ended.
        num_read: Tokens that were read before it.
    """

    token_ids: tuple[int, ...]
    text: str
    finish: Finish
    num_read: int


@dataclass(frozen=True, slots=True)
class Writing:
    """A text in progress.

    Attributes:
        token_ids: The tokens so far.
        max_tokens: Most tokens.
        stops: Texts at which it ends.
        text: What has been shown.
        held: What has been read and not shown, since it may be the beginning of a stop string.
        start: Where the tokens begin that are read again with the next one.
        shown: Tokens that have been read.
        num_chunks: Pieces that have been shown.
        finish: Why it ended.
    """

    token_ids: tuple[int, ...]
    max_tokens: int
    stops: tuple[str, ...]
    text: str = ""
    held: str = ""
    start: int = 0
    shown: int = 0
    num_chunks: int = 0
    finish: Finish = ""

    def result(self, *, num_read: int) -> GeneratedText:
        """Return the text that was written, after so many tokens that were read."""
        return GeneratedText(self.token_ids, self.text, self.finish, num_read)


def write_token(tokenizer: ChatTokenizer, writing: Writing, token: int) -> Writing:
    """Return the text with one more token."""
    ids = (*writing.token_ids, token)
    is_end = token == tokenizer.eos_id
    is_last = is_end or len(ids) >= writing.max_tokens
    piece, start, shown = tokenizer.decode_step(ids, writing.start, writing.shown)
    if is_last and shown < len(ids):
        piece, start, shown = _rest(tokenizer, ids, writing), len(ids), len(ids)
    pending = writing.held + piece
    cut = min((place for stop in writing.stops if (place := pending.find(stop)) >= 0), default=None)
    finish: Finish = "eos" if is_end else "length" if is_last else ""
    if cut is not None:
        shown_now, held, finish = pending[:cut], "", "stop"
    elif finish:
        shown_now, held = pending, ""
    else:
        num_held = _num_held(pending, writing.stops)
        shown_now, held = pending[: len(pending) - num_held], pending[len(pending) - num_held :]
    return Writing(
        token_ids=ids,
        max_tokens=writing.max_tokens,
        stops=writing.stops,
        text=writing.text + shown_now,
        held=held,
        start=start,
        shown=shown,
        num_chunks=writing.num_chunks + bool(shown_now or finish),
        finish=finish,
    )


def text_chunks(before: Writing, after: Writing) -> tuple[StreamChunk, ...]:
    """Return what a token adds to the stream."""
    if after.num_chunks == before.num_chunks:
        return ()
    added = after.text[len(before.text) :]
    return (StreamChunk(STREAM, "text", before.num_chunks, added, is_final=bool(after.finish)),)


def _rest(tokenizer: ChatTokenizer, ids: tuple[int, ...], writing: Writing) -> str:
    """Return what the tokens that have not been read add at the end, broken characters included."""
    before = tokenizer.decode(ids[writing.start : writing.shown])
    return tokenizer.decode(ids[writing.start :])[len(before) :]


def _num_held(text: str, stops: tuple[str, ...]) -> int:
    """Return how many characters at a text's end may be the beginning of a stop string."""
    return max(
        (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])),
        default=0,
    )
