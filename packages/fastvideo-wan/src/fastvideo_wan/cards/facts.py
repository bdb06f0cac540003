"""The facts that distinguish one Wan checkpoint from another; a card follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from fastvideo_core.card import CheckpointSource, RecipeSpec
from fastvideo_core.card.base import JsonScalar

__all__ = ["Conditioning", "WanFacts"]

Conditioning = Literal["none", "channels", "channels_and_vision", "first_frame"]
"""How an image enters: not at all; as further channels; also through the vision encoder; or as known first frame."""


@dataclass(frozen=True, slots=True)
class WanFacts:
    """One checkpoint.

    Attributes:
        model_id: Name of the card.
        title: One line for lists.
        source: Where the files are.
        recipe: What made the weights.
        conditioning: How an image enters.
        accepts_text_only: Whether it also runs without an image.
        spatial_factor: Pixels a latent row or column.
        temporal_factor: Pixel frames a latent frame (after the first).
        patch: Latent frames, rows and columns of a token.
        num_frames: Default length in pixel frames.
        height: Default height in pixels.
        width: Default width in pixels.
        fps: Frames a second.
        num_inference_steps: Default number of sampler steps.
        guidance_scale: Default scale; None for weights that take no guidance.
        guidance_scale_2: Default scale of the second expert; None repeats the first.
        boundary_ratio: Where the second expert takes over; None for one expert.
        expand_timesteps: Whether every token has its own timestep.
        flow_shift: Default shift of the noise levels.
        sampler: Default sampler.
        sampler_options: Settings by sampler, where they are not the sampler's own.
        dmd_steps: Training steps of few-step weights; None for others.
        text_length: Text tokens that the transformer is given.
        max_frames: Most pixel frames.
        min_size: Smallest height or width in pixels; None allows one token.
        max_size: Largest height or width in pixels.
        license: SPDX identifier.
        default_precision: Number format on an accelerator.
        num_heads: Attention heads, which parallel degrees must divide.
        figures: Measured figures.
    """

    model_id: str
    title: str
    source: CheckpointSource
    recipe: RecipeSpec
    conditioning: Conditioning = "none"
    accepts_text_only: bool = True
    spatial_factor: int = 8
    temporal_factor: int = 4
    patch: tuple[int, int, int] = (1, 2, 2)
    num_frames: int = 81
    height: int = 480
    width: int = 832
    fps: float = 16.0
    num_inference_steps: int = 50
    guidance_scale: float | None = 5.0
    guidance_scale_2: float | None = None
    boundary_ratio: float | None = None
    expand_timesteps: bool = False
    flow_shift: float = 3.0
    sampler: str = "unipc"
    sampler_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    dmd_steps: tuple[int, ...] | None = None
    text_length: int = 512
    max_frames: int = 1025
    min_size: int | None = None
    max_size: int = 4096
    license: str = "Apache-2.0"
    default_precision: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    num_heads: int = 12
    figures: dict[str, JsonScalar] = field(default_factory=dict)

    @property
    def size_grid(self) -> int:
        """Pixels that heights and widths are multiples of."""
        return self.spatial_factor * self.patch[1]

    @property
    def loop_id(self) -> str:
        """The generative loop that the weights assume."""
        return "diffusion_denoise" if self.dmd_steps is None else "dmd_denoise"
