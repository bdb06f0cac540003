"""What a causal VAE remembers between chunks of a clip: the last frames that each temporal convolution has seen.

Shapes: B batch rows; C channels; K frames of history; H, W rows, columns.
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
        slots: One entry a temporal convolution, in the order of the forward pass, each (B, C, K, H, W): the
            at most two frames before the next chunk. Empty before the first chunk.
        frames_done: Latent frames decoded so far, or pixel frames encoded so far.
    """

    slots: list[Tensor] = field(default_factory=list)
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

    __slots__ = ("_old", "_slots", "is_first", "is_recording", "ops")

    def __init__(self, cache: FeatureCache | None, ops: VAEOps) -> None:
        self.is_recording = cache is not None
        self._old = FeatureCache() if cache is None else cache
        self._slots: list[Tensor] = []
        self.is_first = self._old.is_empty
        self.ops = ops

    def past(self) -> Tensor | None:
        """Return the frames that the next temporal convolution saw last; None at a clip's start."""
        return None if self.is_first else self._old.slots[len(self._slots)]

    def remember(self, frames_BCKHW: Tensor) -> None:
        """Fill the next slot, with a copy so that what the frames are part of can be freed."""
        if self.is_recording:
            self._slots.append(frames_BCKHW.clone())

    def cache_after(self, num_frames: int) -> FeatureCache:
        """Return the state after a chunk of `num_frames` frames."""
        return FeatureCache(self._slots, self._old.frames_done + num_frames)


def stack_caches(caches: Sequence[FeatureCache]) -> FeatureCache:
    """Join the caches of several clips into one whose rows go through a coder together.

    Args:
        caches: At least one; all before their first chunk, or all after it. How far each one is does not matter.

    Returns:
        A cache of its own memory; it counts the frames of the clip that is least far.

    Raises:
        StateError: If some have begun and others have not.
    """
    if len({cache.is_empty for cache in caches}) != 1:
        raise StateError("cannot batch a clip's first chunk with a later chunk of another clip")
    slots = [torch.cat(rows) for rows in zip(*(cache.slots for cache in caches), strict=True)]
    return FeatureCache(slots, min(cache.frames_done for cache in caches))


def split_cache(cache: FeatureCache, olds: Sequence[FeatureCache], num_rows: Sequence[int]) -> list[FeatureCache]:
    """Undo `stack_caches` after a step.

    Args:
        cache: What the step returned.
        olds: The caches that were stacked, in order.
        num_rows: Batch rows of each.

    Returns:
        One cache an old one, each with memory of its own.
    """
    num_frames = cache.frames_done - min(old.frames_done for old in olds)
    columns = [slot.split(list(num_rows)) for slot in cache.slots]
    return [
        FeatureCache([rows[index].clone() for rows in columns], old.frames_done + num_frames)
        for index, old in enumerate(olds)
    ]
