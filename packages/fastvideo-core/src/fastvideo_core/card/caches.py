"""The caches that a card's loops use, each with its own kind of block."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fastvideo_core.card.base import Contract

__all__ = ["CacheClass", "CacheContract", "CachePolicy"]

CacheClass = Literal["paged_kv", "slab_kv", "feature", "residual", "weight"]
"""Kinds of cache block; they differ by orders of magnitude in size, so each has its own pool."""


class CacheContract(Contract):
    """One cache of a card.

    Attributes:
        cache_class: Which kind of pool it draws from.
        component: The component whose results it holds.
        contract_version: Part of every key: raised when the meaning of the content changes.
        keyed_by: Fields of `CacheKey` that change the content besides those always in the key.
        block_bytes: Size of one block where it is fixed by the card.
        max_bytes: Budget of the pool; None takes the runtime's default. A deployment may set another.
        shareable: Whether requests may share an entry.
    """

    cache_class: CacheClass
    component: str
    contract_version: str = "1"
    keyed_by: tuple[str, ...] = ()
    block_bytes: int | None = Field(default=None, gt=0)
    max_bytes: int | None = Field(default=None, gt=0)
    shareable: bool = False


class CachePolicy(Contract):
    """Which of the card's caches a loop reads and writes.

    Attributes:
        reads: Names of caches in `ModelCard.caches`.
        writes: Names of caches in `ModelCard.caches`.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
