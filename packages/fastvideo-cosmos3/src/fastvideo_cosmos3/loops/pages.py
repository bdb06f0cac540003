"""Keys and values of a text, in pages: tensors that nobody changes once they are there.

A text that grows gets a new last page, so that a step can be run again from the old one, a saved state stays what it
is, and texts that begin alike share their first pages. The card's cache `text_kv` counts them for admission.

Shape letters: N layers; Z keys and values; B rows; S tokens; H heads; D width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["CACHE", "PAGE_TOKENS", "TextPages", "append_tokens", "num_pages", "stack_pages"]

CACHE = "text_kv"
PAGE_TOKENS = 16
"""Tokens of a full page."""


@dataclass(frozen=True, slots=True)
class TextPages:
    """What the understanding pathway remembers of a text.

    Attributes:
        pages: Keys and values, each (N, Z, tokens, H, D); all but the last are full.
        num_tokens: Tokens in them.
        next_position: The position after the last token.
    """

    pages: tuple[Tensor, ...] = ()
    num_tokens: int = 0
    next_position: int = 0


def num_pages(num_tokens: int) -> int:
    """Return the pages of a text."""
    return -(-num_tokens // PAGE_TOKENS)


def append_tokens(text: TextPages, own_NZSHD: Tensor, next_position: int) -> TextPages:
    """Return a text with further tokens.

    Args:
        text: The text before.
        own_NZSHD: Keys and values of the new tokens; copied.
        next_position: The position after them.
    """
    kept = list(text.pages)
    filled = text.num_tokens % PAGE_TOKENS
    room = PAGE_TOKENS - filled if filled else 0
    if room:
        kept[-1] = torch.cat([kept[-1], own_NZSHD[:, :, :room]], dim=2)
    kept += [page.clone() for page in own_NZSHD[:, :, room:].split(PAGE_TOKENS, dim=2) if page.shape[2]]
    return TextPages(tuple(kept), text.num_tokens + own_NZSHD.shape[2], next_position)


def stack_pages(texts: Sequence[TextPages], room: int = 0) -> Tensor | None:
    """Return the keys and values of several texts as rows, (N, Z, B, S + room, H, D), with zeros behind shorter ones.

    None if none has a token.

    Args:
        texts: The texts.
        room: Tokens at the end of every row that are left for those to come, and hold anything.
    """
    longest = max(text.num_tokens for text in texts)
    if longest == 0:
        return None
    like = next(text for text in texts if text.pages).pages[0]
    layers, parts, _, heads, width = like.shape
    rows = like.new_empty(layers, parts, len(texts), longest + room, heads, width)
    for index, text in enumerate(texts):
        start = 0
        for page in text.pages:  # each copied once: together they are what a step reads and writes most
            stop = start + page.shape[2]
            rows[:, :, index, start:stop] = page
            start = stop
        if start < longest:
            # A key that is masked still takes part in a product: it must be a number.
            rows[:, :, index, start:longest].zero_()
    return rows
