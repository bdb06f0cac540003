"""The modules of the tiny family, and the factories that its card names.

Shape letters: B rows; L tokens; E text width; C latent channels; T, H, W latent frames, rows, columns; F, Y, X pixel
frames, rows, columns; P pixel channels (3).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from fastvideo_core.card import Contract
from fastvideo_core.loop.hooks import BlocksRunner
from fastvideo_core.runtime.instance import ComponentSource, LoadedComponent
from fastvideo_core.runtime.loading import load_weights

__all__ = [
    "ByteTokenizer",
    "TinyConfig",
    "TinyTextEncoder",
    "TinyTransformer",
    "TinyVae",
    "load_text_encoder",
    "load_tokenizer",
    "load_transformer",
    "load_vae",
]


class TinyConfig(Contract):
    """Sizes of all modules; each component's `config.json` holds them.

    Attributes:
        text_dim: Width of an encoded prompt.
        latent_channels: Channels of the latents.
        hidden_dim: Width inside the transformer.
        spatial_factor: Pixel rows, and columns, of a latent one.
        temporal_factor: Pixel frames of a latent frame, except the first, which has one.
    """

    text_dim: int = 8
    latent_channels: int = 4
    hidden_dim: int = 16
    spatial_factor: int = 8
    temporal_factor: int = 4


class ByteTokenizer:
    """One token a byte of UTF-8."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text."""
        return tuple(text.encode())


class TinyTextEncoder(nn.Module):
    """The mean of the bytes' vectors."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, config.text_dim)

    def forward(self, ids_BL: Tensor, mask_BL: Tensor) -> Tensor:
        """Encode prompts.

        Args:
            ids_BL: Tokens, padded with anything.
            mask_BL: One where there is a token, zero where there is padding.

        Returns:
            Shape (B, E); zero for an empty prompt.
        """
        vectors_BLE = self.embedding(ids_BL) * mask_BL.unsqueeze(-1)
        return cast("Tensor", vectors_BLE.sum(dim=1) / mask_BL.sum(dim=1, keepdim=True).clamp(min=1))


class TinyBlock(nn.Module):
    """What there is of a block: a nonlinearity. It has no weights, so that checkpoints are as they always were."""

    def forward(self, hidden_BTHWD: Tensor, conditions_BD: Tensor) -> Tensor:
        """Return the stream after the block, (B, T, H, W, D)."""
        return nn.functional.silu(hidden_BTHWD + conditions_BD[:, None, None, None, :])


class TinyTransformer(nn.Module):
    """A velocity from a sample, its noise level and a prompt: one hidden layer at each latent place."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([TinyBlock()])
        self.from_latents = nn.Linear(config.latent_channels, config.hidden_dim)
        self.from_text = nn.Linear(config.text_dim, config.hidden_dim)
        self.from_sigma = nn.Linear(1, config.hidden_dim)
        self.to_velocity = nn.Linear(config.hidden_dim, config.latent_channels)

    def forward(
        self, latents_BCTHW: Tensor, sigma_B: Tensor, embeds_BE: Tensor, *, blocks_runner: BlocksRunner | None = None
    ) -> Tensor:
        """Return the velocity, shape (B, C, T, H, W); whoever wants to may run the blocks."""
        conditions_BD = self.from_text(embeds_BE) + self.from_sigma(sigma_B.unsqueeze(-1))
        hidden_BTHWD = self.from_latents(latents_BCTHW.movedim(1, -1))
        run = _run_blocks if blocks_runner is None else blocks_runner
        hidden_BTHWD = run(self.blocks, hidden_BTHWD, conditions_BD)
        return cast("Tensor", self.to_velocity(hidden_BTHWD).movedim(-1, 1))


def _run_blocks(blocks: Iterable[nn.Module], hidden: Tensor, conditions_BD: Tensor) -> Tensor:
    for block in blocks:
        hidden = block(hidden, conditions_BD)
    return hidden


class TinyVae(nn.Module):
    """Latents to pixels one frame at a time, each mixed with the one before; and one image to a latent frame."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        patch = 3 * config.spatial_factor**2
        self.config = config
        self.mix = nn.Linear(2 * config.latent_channels, config.latent_channels)
        self.to_pixels = nn.Linear(config.latent_channels, patch * config.temporal_factor)
        self.from_pixels = nn.Linear(patch, config.latent_channels)

    def decode_frame(self, latent_BCHW: Tensor, before_BCHW: Tensor | None) -> Tensor:
        """Decode a latent frame.

        Args:
            latent_BCHW: The frame.
            before_BCHW: The latent frame before it; None for the first, which has one pixel frame.

        Returns:
            Pixels, nominally in [-1, 1], shape (B, P, F, Y, X).
        """
        before = torch.zeros_like(latent_BCHW) if before_BCHW is None else before_BCHW
        mixed = self.mix(torch.cat([latent_BCHW, before], dim=1).movedim(1, -1))
        factor, frames = self.config.spatial_factor, self.config.temporal_factor
        batch, rows, columns, _ = mixed.shape
        patches = torch.tanh(self.to_pixels(mixed)).view(batch, rows, columns, 3, frames, factor, factor)
        pixels_BPFYX = patches.permute(0, 3, 4, 1, 5, 2, 6).reshape(batch, 3, frames, rows * factor, columns * factor)
        return pixels_BPFYX[:, :, -1:] if before_BCHW is None else pixels_BPFYX

    def encode_image(self, image_BPYX: Tensor) -> Tensor:
        """Encode an image in [-1, 1] as a latent frame, shape (B, C, H, W)."""
        factor = self.config.spatial_factor
        patches = nn.functional.pixel_unshuffle(image_BPYX, factor).movedim(1, -1)
        return cast("Tensor", self.from_pixels(patches).movedim(-1, 1))


def load_tokenizer(source: ComponentSource) -> LoadedComponent:
    """Make the tokenizer, which needs no file."""
    return LoadedComponent(ByteTokenizer(), _config(source))


def load_text_encoder(source: ComponentSource) -> LoadedComponent:
    """Load the text encoder."""
    config = _config(source)
    return load_weights(source, lambda: TinyTextEncoder(config)).as_component(config)


def load_transformer(source: ComponentSource) -> LoadedComponent:
    """Load the transformer."""
    config = _config(source)
    return load_weights(source, lambda: TinyTransformer(config)).as_component(config)


def load_vae(source: ComponentSource) -> LoadedComponent:
    """Load the VAE."""
    config = _config(source)
    return load_weights(source, lambda: TinyVae(config)).as_component(config)


def _config(source: ComponentSource) -> TinyConfig:
    path = source.folder / source.files.folder / "config.json"
    return TinyConfig.model_validate_json(path.read_text(encoding="utf-8"))
