"""Self-attention over the video's tokens and cross-attention to the prompt.

Shapes: B batch rows; S video tokens; L text tokens; M image tokens; D stream width; N heads; K head width; P = K / 2.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastvideo_wan.models.config import WanTransformerConfig
from fastvideo_wan.models.context import LayerContext
from fastvideo_wan.models.rope import RotaryTables


class Attention(nn.Module):
    """Projections that both kinds of attention have, under the checkpoints' names."""

    def __init__(self, config: WanTransformerConfig) -> None:
        super().__init__()
        dim = config.inner_dim
        self.num_heads = config.num_attention_heads
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.to_out = nn.ModuleList([nn.Linear(dim, dim)])
        self.norm_q = nn.RMSNorm(dim, eps=config.eps)
        self.norm_k = nn.RMSNorm(dim, eps=config.eps)

    def split_heads(self, tokens_BSD: Tensor) -> Tensor:
        """View (B, S, D) as (B, S, N, K)."""
        return tokens_BSD.unflatten(2, (self.num_heads, -1))


class SelfAttention(Attention):
    """Attention of all video tokens to each other, with rotary positions."""

    def forward(self, hidden_BSD: Tensor, rotary: RotaryTables) -> Tensor:
        """Return the attention's output, shape (B, S, D)."""
        query = rotate(self.split_heads(self.norm_q(self.to_q(hidden_BSD))), rotary)
        key = rotate(self.split_heads(self.norm_k(self.to_k(hidden_BSD))), rotary)
        value = self.split_heads(self.to_v(hidden_BSD))
        result: Tensor = self.to_out[0](attend(query, key, value))
        return result


class CrossAttention(Attention):
    """Attention of the video tokens to the prompt's tokens, and to an image's where the weights have it."""

    def __init__(self, config: WanTransformerConfig) -> None:
        super().__init__(config)
        self.add_k_proj: nn.Linear | None = None
        self.add_v_proj: nn.Linear | None = None
        self.norm_added_k: nn.RMSNorm | None = None
        if config.added_kv_proj_dim is not None:
            self.add_k_proj = nn.Linear(config.added_kv_proj_dim, config.inner_dim)
            self.add_v_proj = nn.Linear(config.added_kv_proj_dim, config.inner_dim)
            self.norm_added_k = nn.RMSNorm(config.inner_dim, eps=config.eps)

    def project_text(self, text_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of embedded text, each of shape (B, L, N, K)."""
        return self.split_heads(self.norm_k(self.to_k(text_BLD))), self.split_heads(self.to_v(text_BLD))

    def project_image(self, image_BMD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of embedded image tokens, each of shape (B, M, N, K)."""
        assert self.add_k_proj is not None and self.add_v_proj is not None and self.norm_added_k is not None
        key = self.norm_added_k(self.add_k_proj(image_BMD))
        return self.split_heads(key), self.split_heads(self.add_v_proj(image_BMD))

    def forward(self, hidden_BSD: Tensor, context: LayerContext) -> Tensor:
        """Return the attention's output, shape (B, S, D)."""
        query = self.split_heads(self.norm_q(self.to_q(hidden_BSD)))
        mixed = attend(query, context.key_BLNK, context.value_BLNK)
        if context.image_key_BMNK is not None and context.image_value_BMNK is not None:
            mixed = mixed + attend(query, context.image_key_BMNK, context.image_value_BMNK)
        result: Tensor = self.to_out[0](mixed)
        return result


def attend(query_BSNK: Tensor, key_BLNK: Tensor, value_BLNK: Tensor) -> Tensor:
    """Softmax attention; returns (B, S, N * K) in the query's type."""
    mixed_BNSK = F.scaled_dot_product_attention(
        query_BSNK.transpose(1, 2), key_BLNK.transpose(1, 2), value_BLNK.transpose(1, 2)
    )
    return mixed_BNSK.transpose(1, 2).flatten(2, 3).to(query_BSNK.dtype)


def rotate(heads_BSNK: Tensor, rotary: RotaryTables) -> Tensor:
    """Rotate the pairs (2i, 2i + 1) of every head by the token's angles."""
    even, odd = heads_BSNK.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = rotary.cos_S1P, rotary.sin_S1P
    rotated = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return rotated.flatten(-2).to(heads_BSNK.dtype)
