"""What turns timesteps, text and images into the vectors that the blocks read.

Shapes: B batch rows; S timesteps of a row, where each token has its own; L text tokens; M image tokens; D stream width;
E encoder width; F width of the sinusoidal embedding.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastvideo_wan.models.config import WanTransformerConfig
from fastvideo_wan.models.fused import tanh_gelu

MAX_PERIOD = 10000.0


def sinusoidal_embedding(timesteps: Tensor, dim: int) -> Tensor:
    """Return cosines, then sines, of the timesteps at `dim / 2` frequencies from 1 down to nearly 1 / 10,000.

    Args:
        timesteps: Any shape and number type; fractions are kept.
        dim: Even width.

    Returns:
        Float32, shape (*timesteps.shape, dim).

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    half = dim // 2
    ladder = -math.log(MAX_PERIOD) * torch.arange(half, dtype=torch.float32, device=timesteps.device) / half
    angles = timesteps.unsqueeze(-1).float() * torch.exp(ladder)
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)


class Mlp(nn.Module):
    """Two linear layers with an activation between them, under the names `linear_1` and `linear_2`."""

    def __init__(self, in_dim: int, dim: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(in_dim, dim)
        self.linear_2 = nn.Linear(dim, dim)


class TimeEmbedder(Mlp):
    """Sinusoidal embedding to stream width."""

    def forward(self, waves: Tensor) -> Tensor:
        """Map (..., F) to (..., D)."""
        hidden: Tensor = self.linear_2(F.silu(self.linear_1(waves)))
        return hidden


class TextEmbedder(Mlp):
    """Text encoder's output to stream width."""

    def forward(self, text_BLE: Tensor) -> Tensor:
        """Map (B, L, E) to (B, L, D)."""
        hidden: Tensor = self.linear_2(F.gelu(self.linear_1(text_BLE), approximate="tanh"))
        return hidden


class Projection(nn.Module):
    """A linear layer under the name `proj`, as checkpoints call the first layer of a feed-forward net."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(in_dim, out_dim)


class FeedForward(nn.Module):
    """Linear, GELU, linear; the layers are `net.0.proj` and `net.2` (`net.1` was a dropout in the releases)."""

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, *, is_tanh_gelu: bool) -> None:
        super().__init__()
        self.net = nn.ModuleList([Projection(in_dim, hidden_dim), nn.Identity(), nn.Linear(hidden_dim, out_dim)])
        self.approximate = "tanh" if is_tanh_gelu else "none"

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (..., in_dim) to (..., out_dim)."""
        first, last = self.net[0], self.net[2]
        assert isinstance(first, Projection)
        hidden = F.gelu(first.proj(hidden), approximate=self.approximate)
        result: Tensor = last(hidden)
        return result

    def forward_fast(self, hidden: Tensor) -> Tensor:
        """Do the same in fewer passes over memory, where the GELU is the tanh approximation."""
        first, last = self.net[0], self.net[2]
        assert isinstance(first, Projection) and self.approximate == "tanh"
        result: Tensor = last(tanh_gelu(first.proj(hidden)))
        return result


class Float32LayerNorm(nn.LayerNorm):
    """Layer norm computed in float32 whatever the stream's type is; returns the type that it got."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalize the last axis."""
        weight = self.weight.float() if self.elementwise_affine else None
        bias = self.bias.float() if self.elementwise_affine else None
        return F.layer_norm(hidden.float(), self.normalized_shape, weight, bias, self.eps).to(hidden.dtype)


class ImageEmbedder(nn.Module):
    """Image encoder's output to stream width (Wan 2.1 image-to-video)."""

    def __init__(self, image_dim: int, dim: int, pos_embed_seq_len: int | None) -> None:
        super().__init__()
        self.norm1 = Float32LayerNorm(image_dim)
        self.ff = FeedForward(image_dim, image_dim, dim, is_tanh_gelu=False)
        self.norm2 = Float32LayerNorm(dim)
        shape = None if pos_embed_seq_len is None else (1, pos_embed_seq_len, image_dim)
        self.pos_embed = None if shape is None else nn.Parameter(torch.zeros(shape))

    def forward(self, image_BME: Tensor) -> Tensor:
        """Map (B, M, E) to (B, M, D); with a position table, rows 2i and 2i+1 are one video's first and last frame."""
        if self.pos_embed is not None:
            _, num_tokens, width = image_BME.shape
            image_BME = image_BME.view(-1, 2 * num_tokens, width) + self.pos_embed
        embedded: Tensor = self.norm2(self.ff(self.norm1(image_BME)))
        return embedded


class ConditionEmbedder(nn.Module):
    """The embedders of time, text and image, under the checkpoint's name `condition_embedder`."""

    def __init__(self, config: WanTransformerConfig) -> None:
        super().__init__()
        dim = config.inner_dim
        self.freq_dim = config.freq_dim
        self.time_embedder = TimeEmbedder(config.freq_dim, dim)
        self.time_proj = nn.Linear(dim, 6 * dim)
        self.text_embedder = TextEmbedder(config.text_dim, dim)
        self.image_embedder = (
            None if config.image_dim is None else ImageEmbedder(config.image_dim, dim, config.pos_embed_seq_len)
        )

    def embed_time(self, timesteps: Tensor) -> tuple[Tensor, Tensor]:
        """Embed timesteps of shape (B,) or (B, S).

        Returns:
            The embedding, shape (*timesteps.shape, D), and the six modulation vectors of a block before its own table
            is added, shape (*timesteps.shape, 6, D).
        """
        waves = sinusoidal_embedding(timesteps, self.freq_dim).to(self.time_embedder.linear_1.weight.dtype)
        embedding = self.time_embedder(waves).to(self.time_proj.weight.dtype)
        modulation: Tensor = self.time_proj(F.silu(embedding))
        return embedding, modulation.unflatten(-1, (6, -1))
