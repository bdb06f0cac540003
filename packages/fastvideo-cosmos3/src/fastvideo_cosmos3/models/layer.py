"""A layer of the mixture of transformers: a causal pathway for text, and one for what is generated, which sees both.

The two share width and heads and nothing else. What the text pathway leaves behind is its keys and values; they do not
depend on noise, so that they are made once for all steps.

Shape letters: B rows; S tokens of text; G tokens that are generated; C width; H heads; D width of a head; Z keys and
values.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastvideo_cosmos3.models.config import TransformerConfig
from fastvideo_cosmos3.models.rotary import rotate

__all__ = ["MixtureLayer", "RMSNorm", "Tables"]

Tables = tuple[Tensor, Tensor]
"""Cosines and sines of positions, each (B, S, D)."""


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, in float32, with a gain.

    Args:
        dim: Width.
        eps: Added to the mean square.
    """

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return the same shape and format."""
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return (x * torch.rsqrt(variance + self.eps)).to(self.weight.dtype) * self.weight


class FeedForward(nn.Module):
    """The gated feed-forward part."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_BSC: Tensor) -> Tensor:
        """Return the same shape."""
        return self.down_proj(F.silu(self.gate_proj(x_BSC)) * self.up_proj(x_BSC))


class MixtureAttention(nn.Module):
    """Attention of both pathways; names are those of diffusers checkpoints."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width, bias, eps = config.hidden_size, config.attention_bias, config.rms_norm_eps
        queries, keys = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.to_q = nn.Linear(width, queries, bias=bias)
        self.to_k = nn.Linear(width, keys, bias=bias)
        self.to_v = nn.Linear(width, keys, bias=bias)
        self.to_out = nn.Linear(queries, width, bias=bias)
        self.norm_q = RMSNorm(self.head_dim, eps)
        self.norm_k = RMSNorm(self.head_dim, eps)
        self.add_q_proj = nn.Linear(width, queries, bias=bias)
        self.add_k_proj = nn.Linear(width, keys, bias=bias)
        self.add_v_proj = nn.Linear(width, keys, bias=bias)
        self.to_add_out = nn.Linear(queries, width, bias=bias)
        self.norm_added_q = RMSNorm(self.head_dim, eps)
        self.norm_added_k = RMSNorm(self.head_dim, eps)

    def understand(
        self, x_BSC: Tensor, tables: Tables, past_ZBSHD: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Attend among text, causally.

        Args:
            x_BSC: Normed new tokens.
            tables: Their positions.
            past_ZBSHD: Keys and values before them, and room for their own behind, which is filled; None if they are
                the first.
            mask: Which keys each new token sees, (B, 1, S, past + S); None where a plain causal mask says it.

        Returns:
            The result, and the new tokens' own keys and values, (2, B, S, H, D).
        """
        query = rotate(self.norm_q(self._heads(self.to_q(x_BSC))), tables)
        key = rotate(self.norm_k(self._heads(self.to_k(x_BSC))), tables)
        own = torch.stack((key, self._heads(self.to_v(x_BSC))))
        keys_values = own
        if past_ZBSHD is not None:
            past_ZBSHD[:, :, -own.shape[2] :] = own
            keys_values = past_ZBSHD
        is_causal = mask is None and x_BSC.shape[1] > 1
        return self.to_out(_attend(query, keys_values, mask, is_causal=is_causal)), own

    def generate(self, x_BGC: Tensor, tables: Tables, text_ZBSHD: Tensor, mask: Tensor | None) -> Tensor:
        """Attend from what is generated to the text and to itself.

        Args:
            x_BGC: Normed tokens.
            tables: Their positions.
            text_ZBSHD: The text's keys and values.
            mask: Which keys count, (B, 1, 1, S + G); None if all do.
        """
        query = rotate(self.norm_added_q(self._heads(self.add_q_proj(x_BGC))), tables)
        key = rotate(self.norm_added_k(self._heads(self.add_k_proj(x_BGC))), tables)
        own = torch.stack((key, self._heads(self.add_v_proj(x_BGC))))
        return self.to_add_out(_attend(query, torch.cat((text_ZBSHD, own), dim=2), mask, is_causal=False))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim))


def _attend(query_BSHD: Tensor, keys_values_ZBSHD: Tensor, mask: Tensor | None, *, is_causal: bool) -> Tensor:
    query, key, value = (x.transpose(1, 2) for x in (query_BSHD, *keys_values_ZBSHD.unbind(0)))
    mixed = F.scaled_dot_product_attention(query, key, value, mask, is_causal=is_causal, enable_gqa=True)
    return mixed.transpose(1, 2).flatten(-2)


class MixtureLayer(nn.Module):
    """A layer of both pathways.

    Args:
        config: The model's shape.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = MixtureAttention(config)
        self.mlp = FeedForward(config)
        self.mlp_moe_gen = FeedForward(config)
        self.input_layernorm = RMSNorm(width, eps)
        self.input_layernorm_moe_gen = RMSNorm(width, eps)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.post_attention_layernorm_moe_gen = RMSNorm(width, eps)

    def understand(
        self, x_BSC: Tensor, tables: Tables, past_ZBSHD: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the text's next hidden states and its keys and values; see `MixtureAttention.understand`."""
        mixed, own = self.self_attn.understand(self.input_layernorm(x_BSC), tables, past_ZBSHD, mask)
        hidden = x_BSC + mixed
        return hidden + self.mlp(self.post_attention_layernorm(hidden)), own

    def generate(self, x_BGC: Tensor, tables: Tables, text_ZBSHD: Tensor, mask: Tensor | None) -> Tensor:
        """Return the next hidden states of what is generated; see `MixtureAttention.generate`."""
        hidden = x_BGC + self.self_attn.generate(self.input_layernorm_moe_gen(x_BGC), tables, text_ZBSHD, mask)
        return hidden + self.mlp_moe_gen(self.post_attention_layernorm_moe_gen(hidden))
