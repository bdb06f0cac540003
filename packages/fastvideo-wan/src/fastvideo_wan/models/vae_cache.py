"""What a causal VAE remembers between chunks of a clip: the last frames that each temporal convolution has seen.

Shapes: B batch rows; C channels; T, H, W frames, rows, columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fastvideo_core.errors import StateError
from fastvideo_wan.models.vae_ops import VAEOps

HISTORY_FRAMES = 2
"""Frames before the current one that a temporal kernel of three reads."""


@dataclass(slots=True)
class FeatureCache:
    """The state of one clip (or of a batch of clips in step) half-way through the encoder or the decoder.

    Attributes:
        slots: One entry a temporal convolution, in the order of the forward pass, each (B, C, 1 or 2, H, W): the
            frames before the next chunk, with zeros where the clip had not begun. Empty before the first chunk.
        frames_done: Latent frames decoded so far, or pixel frames encoded so far.
    """

    slots: list[Tensor | None] = field(default_factory=list)
    frames_done: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether the next chunk is the clip's first."""
        return self.frames_done == 0


class Tape:
    """One pass through a coder: reads an old cache's slots in order and collects the new ones.

    A tape lives for one call and is handed down through the layers; the cache it reads is never written.

    Args:
        cache: State before this chunk; None runs a whole clip and remembers nothing.
        ops: The arithmetic to use.
    """

    __slots__ = ("_old", "_records", "is_first", "ops", "slots")

    def __init__(self, cache: FeatureCache | None, ops: VAEOps) -> None:
        self._records = cache is not None
        self._old = [] if cache is None else cache.slots
        self.slots: list[Tensor | None] = []
        self.is_first = cache is None or cache.is_empty
        self.ops = ops

    def past(self) -> Tensor | None:
        """Return the frames that the next temporal convolution saw last; None at a clip's start."""
        index = len(self.slots)
        return self._old[index] if index < len(self._old) else None

    def remember(self, x_BCTHW: Tensor, num_frames: int) -> None:
        """Fill the next slot with the last frames of `x_BCTHW`, copied so that the rest can be freed."""
        if self._records:
            self.slots.append(x_BCTHW[:, :, -num_frames:].clone())


def stack_caches(caches: Sequence[FeatureCache]) -> FeatureCache:
    """Join the caches of several requests into one whose rows go through a coder together.

    Args:
        caches: At least one; all before their first chunk, or all after it. How far each one is does not matter.

    Raises:
        StateError: If some have begun and others have not.
    """
    if len({cache.is_empty for cache in caches}) != 1:
        raise StateError("cannot batch a clip's first chunk with a later chunk of another clip")
    if caches[0].is_empty:
        return FeatureCache()
    columns = zip(*(cache.slots for cache in caches), strict=True)
    return FeatureCache([_cat_rows(column) for column in columns], min(cache.frames_done for cache in caches))


def split_cache(cache: FeatureCache, olds: Sequence[FeatureCache], num_rows: Sequence[int]) -> list[FeatureCache]:
    """Undo `stack_caches` after a step.

    Args:
        cache: What the step returned.
        olds: The caches that were stacked, in order.
        num_rows: Batch rows of each.

    Returns:
        One cache an old one, which owns its rows.
    """
    step_frames = cache.frames_done - min(old.frames_done for old in olds)
    parts = [_split_rows(slot, num_rows) for slot in cache.slots]
    return [
        FeatureCache([part[index] for part in parts], old.frames_done + step_frames) for index, old in enumerate(olds)
    ]


def _cat_rows(slots: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([slot for slot in slots if slot is not None])


def _split_rows(slot: Tensor | None, num_rows: Sequence[int]) -> list[Tensor | None]:
    if slot is None:
        return [None for _ in num_rows]
    return [part.clone() for part in slot.split(list(num_rows))]
