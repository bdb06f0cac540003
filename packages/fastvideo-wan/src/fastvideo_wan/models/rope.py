"""Rotary position tables over the token grid of a video.

Shapes: T, H, W tokens along time, rows, columns; S = T*H*W tokens; K head width; P = K / 2 rotated pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

THETA = 10000.0


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Cosine and sine of every token's rotation angles, each twice: once for each number of a pair.

    Attributes:
        cos_S1K: Float32, one row a token; the middle axis broadcasts over heads.
        sin_S1K: Same shape.
    """

    cos_S1K: Tensor
    sin_S1K: Tensor

    def turns(self) -> Tensor:
        """Return the rotations as complex numbers, (S, 1, P)."""
        return torch.complex(self.cos_S1K[..., ::2], self.sin_S1K[..., ::2])


def rotary_tables(
    grid: tuple[int, int, int], head_dim: int, *, first_frame: int = 0, device: torch.device | None = None
) -> RotaryTables:
    """Return the rotation tables of a token grid; pure, and cheap beside one transformer block.

    The head's pairs are shared out among the axes: rows and columns get a third each, rounded down, time the rest.

    Args:
        grid: Tokens along time, rows, columns.
        head_dim: Head width.
        first_frame: Absolute position of the grid's first frame, in tokens along time (for a later chunk of a video).
        device: Where the tables go; they are made on the CPU, so that every device has the same bits.

    Source: RoFormer, arXiv:2104.09864, eq. 15, with one frequency ladder an axis; angles in float64.
    """
    num_frames, num_rows, num_columns = grid
    space_dim = 2 * (head_dim // 6)
    angles = (
        _angles(first_frame, num_frames, head_dim - 2 * space_dim).view(num_frames, 1, 1, -1),
        _angles(0, num_rows, space_dim).view(1, num_rows, 1, -1),
        _angles(0, num_columns, space_dim).view(1, 1, num_columns, -1),
    )
    cos, sin = ([axis.float().expand(*grid, -1) for axis in map(wave, angles)] for wave in (torch.cos, torch.sin))
    shape = (num_frames * num_rows * num_columns, 1, -1)
    twice = (torch.cat(parts, dim=-1).view(shape).repeat_interleave(2, dim=-1).to(device) for parts in (cos, sin))
    return RotaryTables(*twice)


def _angles(first: int, count: int, dim: int) -> Tensor:
    """Angles of `count` positions on one axis, float64, shape (count, dim / 2)."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    return torch.outer(torch.arange(first, first + count), 1.0 / THETA**exponents)
