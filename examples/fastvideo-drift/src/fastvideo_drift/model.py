"""The network: places are mixed by shifting groups of channels to their neighbours, channels by small networks.

It has no attention and no convolution, and takes any size. After Yu et al. 2022, "S²-MLP: Spatial-Shift MLP
Architecture for Vision", arXiv:2106.07477, with time as a third axis.

Shape letters: B rows; C values of a patch; T, H, W frames, and rows and columns of patches; E width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastvideo_core.card import Contract
from fastvideo_core.runtime.instance import ComponentSource, LoadedComponent
from fastvideo_core.runtime.loading import load_weights
from fastvideo_drift.words import WORDS

__all__ = ["PATCH", "Shifter", "ShifterConfig", "load_shifter", "to_patches", "to_pixels"]

PATCH = 4
"""Pixel rows, and columns, of a patch."""

_SHIFTS = ((1, 1), (-1, 1), (1, 2), (-1, 2), (1, 3), (-1, 3), (0, 1))
"""By how many places and along which axis of (B, T, H, W, E) each group of channels goes; the last stays."""


class ShifterConfig(Contract):
    """Sizes."""

    width: int = 84
    num_blocks: int = 6


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, hidden_BTHWE: Tensor) -> Tensor:
        groups = self.norm(hidden_BTHWE).chunk(len(_SHIFTS), dim=-1)
        moved = torch.cat([group.roll(by, axis) for group, (by, axis) in zip(groups, _SHIFTS, strict=True)], dim=-1)
        return hidden_BTHWE + self.outer(nn.functional.silu(self.inner(moved)))


class Shifter(nn.Module):
    """The clean patches from noisy ones, their noise level, and a prompt's words."""

    def __init__(self, config: ShifterConfig) -> None:
        super().__init__()
        self.from_patches = nn.Linear(3 * PATCH * PATCH, config.width)
        self.from_level = nn.Linear(1, config.width)
        self.from_words = nn.EmbeddingBag(len(WORDS), config.width, mode="sum")
        self.blocks = nn.ModuleList(_Block(config.width) for _ in range(config.num_blocks))
        self.to_patches = nn.Linear(config.width, 3 * PATCH * PATCH)

    def encode(self, ids: tuple[int, ...]) -> Tensor:
        """Return the sum of the vectors of some words, (1, E); zeros for none."""
        device = self.from_words.weight.device
        return self.from_words(torch.tensor(ids, dtype=torch.long, device=device), torch.tensor([0], device=device))

    def forward(self, patches_BCTHW: Tensor, level_B: Tensor, words_BE: Tensor) -> Tensor:
        """Return the clean patches, (B, C, T, H, W)."""
        given_BE = words_BE + self.from_level(level_B[:, None])
        hidden = self.from_patches(patches_BCTHW.movedim(1, -1)) + given_BE[:, None, None, None]
        for block in self.blocks:
            hidden = block(hidden)
        return self.to_patches(hidden).movedim(-1, 1)


def to_patches(pixels_BTYX3: Tensor) -> Tensor:
    """Return pixels from -1 to 1 as patches, (B, C, T, H, W)."""
    batch, frames, rows, columns, _ = pixels_BTYX3.shape
    grid = pixels_BTYX3.reshape(batch, frames, rows // PATCH, PATCH, columns // PATCH, PATCH, 3)
    return grid.permute(0, 3, 5, 6, 1, 2, 4).reshape(batch, -1, frames, rows // PATCH, columns // PATCH)


def to_pixels(patches_1CTHW: Tensor) -> Tensor:
    """Return patches as uint8 frames, (T, rows, columns, 3)."""
    _, _, frames, rows, columns = patches_1CTHW.shape
    grid = patches_1CTHW.reshape(PATCH, PATCH, 3, frames, rows, columns).permute(3, 4, 0, 5, 1, 2)
    pixels = grid.reshape(frames, rows * PATCH, columns * PATCH, 3)
    return ((pixels + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def load_shifter(source: ComponentSource) -> LoadedComponent:
    """Load the network."""
    path = source.folder / source.files.folder / "config.json"
    config = ShifterConfig.model_validate_json(path.read_text(encoding="utf-8"))
    return load_weights(source, lambda: Shifter(config)).as_component(config)
