"""The arithmetic that the layers of the VAE are written in.

`vae_exact` says in full what each operation does and keeps the reference's bits; `vae_fast` differs in rounding only.

Shapes: B batch rows; C channels; T, H, W frames, rows, columns; K frames of history.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class VAEOps(Protocol):
    """What a module of operations has; an argument named `y` may be overwritten."""

    def after(self, past_BCKHW: Tensor | None, x_BCTHW: Tensor, num_frames: int) -> tuple[Tensor, Tensor]:
        """Put the past in front of a chunk; also return the past of the next chunk."""

    def norm_silu_after(
        self, past_BCKHW: Tensor | None, x_BCTHW: Tensor, gamma: Tensor, num_frames: int
    ) -> tuple[Tensor, Tensor]:
        """Norm and SiLU of a chunk, behind the past; also return the past of the next chunk."""

    def no_past(self, x_BCTHW: Tensor, num_frames: int, /) -> Tensor:
        """Return what to remember for a convolution that has seen no frame yet."""

    def conv3d(self, x_BCTHW: Tensor, weight: Tensor, bias: Tensor, time_stride: int, starts_clip: bool, /) -> Tensor:
        """Convolve; rows and columns keep their size. `starts_clip`: all frames before the first output's are zeros."""

    def attend(self, x_BCTHW: Tensor, gamma: Tensor, qkv: tuple[Tensor, Tensor], proj: tuple[Tensor, Tensor]) -> Tensor:
        """Norm, attention within frames, projection, added to the input."""

    def halve_space(self, x_BCTHW: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Convolve every frame with stride 2."""

    def double_space(self, x_BCTHW: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Repeat pixels to squares of four, then convolve every frame."""

    def interleave(self, x_BCTHW: Tensor) -> Tensor:
        """Turn two halves of the channels into two frames."""

    def add(self, y: Tensor, x: Tensor) -> Tensor:
        """Return the sum."""

    def add_average_down(self, y: Tensor, x_BCTHW: Tensor, time_factor: int, space_factor: int) -> Tensor:
        """Add blocks of pixels, folded into channels and averaged."""

    def add_repeat_up(
        self, y: Tensor, x_BCTHW: Tensor, time_factor: int, space_factor: int, *, is_first: bool
    ) -> Tensor:
        """Add channels, repeated and unfolded into blocks of pixels."""
