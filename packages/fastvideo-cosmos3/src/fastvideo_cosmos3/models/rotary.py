"""Rotary positions on three axes, interleaved: the same tables for the text and for what is generated.

Shape letters: B rows; S tokens; A the three axes time, row, column; D width of a head.

Source: Qwen3-VL (arXiv:2511.21631), interleaved MRoPE.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastvideo_cosmos3.models.config import TransformerConfig

__all__ = ["rotary_tables", "rotate"]


def rotary_tables(config: TransformerConfig, positions_ABS: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of some positions.

    Args:
        config: Gives base, width and the frequencies of each axis.
        positions_ABS: Positions on the three axes, (3, B, S), whole or broken numbers.

    Returns:
        Two float32 tensors, (B, S, D), on the positions' device.
    """
    powers = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=positions_ABS.device) / config.head_dim
    inverse = 1.0 / (config.rope_theta**powers)
    angles = positions_ABS.float().unsqueeze(-1) * inverse
    mixed = angles[0].clone()
    for axis in (1, 2):
        # Frequencies go time, row, column, time, row, column …; what is left at the end is time's.
        chosen = slice(axis, config.rope_axes_dim[axis] * 3, 3)
        mixed[..., chosen] = angles[axis][..., chosen]
    doubled = torch.cat((mixed, mixed), dim=-1)
    return doubled.cos(), doubled.sin()


def rotate(x_BSHD: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Turn queries or keys by their positions.

    Args:
        x_BSHD: Queries or keys by head.
        tables: What `rotary_tables` gave, in the format of `x_BSHD`.
    """
    cos, sin = (table.unsqueeze(2) for table in tables)
    first, second = x_BSHD.chunk(2, dim=-1)
    return x_BSHD * cos + torch.cat((-second, first), dim=-1) * sin
