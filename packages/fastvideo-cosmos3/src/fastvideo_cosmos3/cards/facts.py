"""The facts that distinguish one Cosmos3 checkpoint from another; a card follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastvideo_core.card import CheckpointSource

__all__ = ["Cosmos3Facts"]


@dataclass(frozen=True, slots=True)
class Cosmos3Facts:
    """One checkpoint.

    Attributes:
        model_id: Name of the card.
        title: One line for lists.
        source: Where the files are.
        is_flat: Whether the tensors of the transformer and the vision encoder are in files of the root.
        has_vision: Whether there is a vision encoder.
        has_sound: Whether there are sound heads and a sound decoder.
        action_dim: Width of the action heads; 0 without.
        embodiments: Embodiments whose actions fit.
        num_heads: Query heads.
        page_bytes: Bytes of a page of keys and values.
        spatial_grid: Pixels that height and width are multiples of.
        temporal_factor: Frames that a latent frame stands for.
        height: Default.
        width: Default.
        num_frames: Default.
        sampler: Default sampler.
        flow_shift: Default shift.
        sampler_options: Options by sampler.
        system_prompt: Whether the generator is told what it is.
    """

    model_id: str
    title: str
    source: CheckpointSource
    is_flat: bool
    has_vision: bool
    has_sound: bool
    action_dim: int
    embodiments: tuple[str, ...]
    num_heads: int
    page_bytes: int
    spatial_grid: int
    temporal_factor: int
    height: int = 720
    width: int = 1280
    num_frames: int = 189
    sampler: str = "unipc"
    flow_shift: float = 1.0
    sampler_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    system_prompt: bool = True
