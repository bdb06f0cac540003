"""Rules about chunks as masks of attention.

Shapes: G chunks; T latent frames.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastvideo_wan.models.chunks import ChunkRule


def chunk_mask(rule: ChunkRule, num_chunks: int) -> Tensor:
    """Return which chunk (row) attends to which (column), bool, shape (G, G)."""
    mask_GG = torch.eye(num_chunks, dtype=torch.bool)
    for chunk in range(num_chunks):
        mask_GG[chunk, list(rule.past(chunk))] = True
    return mask_GG


def spread_mask(mask_GG: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return a mask over frames, shape (..., T, T), from one over chunks of these sizes, shape (..., G, G)."""
    sizes_G = torch.tensor(sizes, device=mask_GG.device)
    return mask_GG.repeat_interleave(sizes_G, dim=-1).repeat_interleave(sizes_G, dim=-2)
