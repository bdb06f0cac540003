"""Self-attention over the video's tokens and cross-attention to the prompt.

Shapes: B batch rows; S video tokens; L text tokens; M image tokens; D stream width; N heads; K head width; P = K / 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastvideo_wan.models.config import WanTransformerConfig
from fastvideo_wan.models.context import LayerContext
from fastvideo_wan.models.fused import inverse_norm, normalize_and_rotate
from fastvideo_wan.models.rope import RotaryTables

AttentionFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of (query, key, value), all (B, any, N, K), with logits over the square root of K; gives (B, S, N, K)."""

KeyValueExchange = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Stands between a self-attention and its keys and values, so that a chunk of a video can attend to earlier ones.

It is called in every layer with the layer's index, the fresh keys, already rotated, and the fresh values, both of shape
(B, S, N, K), and returns the keys and values to attend to, shape (B, any, N, K). What it wants to keep it must copy.
"""

LayerAttention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Takes the whole self-attention of a layer over: (layer, query, key, value), all (B, S, N, K), queries and keys
already rotated; gives (B, S, N, K). For what one set of keys for all rows and tokens cannot say: masks, and rows with
unequal pasts."""


class Attention(nn.Module):
    """Projections that both kinds of attention have, under the checkpoints' names."""

    def __init__(self, config: WanTransformerConfig) -> None:
        super().__init__()
        dim = config.inner_dim
        self.num_heads = config.num_attention_heads
        self.eps = config.eps
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.to_out = nn.Sequential(nn.Linear(dim, dim))
        self.norm_q = nn.RMSNorm(dim, eps=config.eps)
        self.norm_k = nn.RMSNorm(dim, eps=config.eps)

    def split_heads(self, tokens_BSD: Tensor) -> Tensor:
        """View (B, S, D) as (B, S, N, K)."""
        return tokens_BSD.unflatten(2, (self.num_heads, -1))

    def project_out(self, mixed_BSD: Tensor) -> Tensor:
        """Map the heads' mixed values to the stream."""
        result: Tensor = self.to_out(mixed_BSD)
        return result


class SelfAttention(Attention):
    """Attention of all video tokens to each other, with rotary positions.

    Args:
        config: The model's shape.
        index: The layer, for a `KeyValueExchange`.

    Attributes:
        backend: What computes the fast mode in place of torch's own; set once, when the model is loaded.
    """

    def __init__(self, config: WanTransformerConfig, index: int) -> None:
        super().__init__(config)
        self.index = index
        self.backend: AttentionFunction | None = None

    def forward(
        self,
        hidden_BSD: Tensor,
        rotary: RotaryTables,
        exchange: KeyValueExchange | None = None,
        attention: LayerAttention | None = None,
    ) -> Tensor:
        """Return the attention's output in the reference's order of operations, shape (B, S, D)."""
        query = rotate(self.split_heads(self.norm_q(self.to_q(hidden_BSD))), rotary)
        key = rotate(self.split_heads(self.norm_k(self.to_k(hidden_BSD))), rotary)
        value = self.split_heads(self.to_v(hidden_BSD))
        return self._mix(query, key, value, exchange, attention)

    def forward_fast(
        self,
        hidden_BSD: Tensor,
        turns_S1P: Tensor,
        exchange: KeyValueExchange | None = None,
        attention: LayerAttention | None = None,
    ) -> Tensor:
        """Return the attention's output, shape (B, S, D).

        Args:
            hidden_BSD: The attention's input.
            turns_S1P: The rotations as complex numbers times the square root of D; (B, S, 1, P) where rows have
                positions of their own.
            exchange: What adds earlier keys and values.
            attention: What does the rest in place of all else; not with `exchange`.
        """
        query = normalize_and_rotate(self.to_q(hidden_BSD), self.norm_q.weight, self.eps, turns_S1P)
        key = normalize_and_rotate(self.to_k(hidden_BSD), self.norm_k.weight, self.eps, turns_S1P)
        value = self.split_heads(self.to_v(hidden_BSD))
        return self._mix(query, key, value, exchange, attention, self.backend)

    def _mix(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        exchange: KeyValueExchange | None,
        attention: LayerAttention | None,
        backend: AttentionFunction | None = None,
    ) -> Tensor:
        if attention is not None:
            return self.project_out(attention(self.index, query, key, value).flatten(2, 3))
        if exchange is not None:
            key, value = exchange(self.index, key, value)
        mixed = attend(query, key, value) if backend is None else backend(query, key, value).flatten(2, 3)
        return self.project_out(mixed)


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

    def prepare(
        self, text_BLD: Tensor, image_BMD: Tensor | None, *, bias_BL: Tensor | None, has_outputs: bool
    ) -> LayerContext:
        """Compute a prompt's keys and values.

        Args:
            text_BLD: Embedded text.
            image_BMD: Embedded image tokens; None if the weights take none.
            bias_BL: Of the logits, for a short context; None for an exact one.
            has_outputs: Whether a short context takes its values through the output projection.
        """
        key = self.split_heads(self.norm_k(self.to_k(text_BLD)))
        value = self.split_heads(self.to_v(text_BLD))
        image_key = image_value = None
        if image_BMD is not None:
            assert self.add_k_proj is not None and self.add_v_proj is not None and self.norm_added_k is not None
            image_key = self.split_heads(self.norm_added_k(self.add_k_proj(image_BMD)))
            image_value = self.split_heads(self.add_v_proj(image_BMD))
        if bias_BL is not None:
            key = self._prescale(key)
            image_key = None if image_key is None else self._prescale(image_key)
        output = self._project_values(value) if has_outputs else None
        return LayerContext(key, value, bias_BL, output, image_key, image_value)

    def _prescale(self, key_BLNK: Tensor) -> Tensor:
        """Take constant factors of the query into the keys, as short contexts hold them.

        These are the weight of the query's norm, that norm's square root of D, and the logits' scale `1 / sqrt(K)`.
        """
        weight_NK = self.norm_q.weight.view(self.num_heads, -1)
        return key_BLNK * (weight_NK * math.sqrt(self.num_heads))

    def _project_values(self, value_BLNK: Tensor) -> Tensor:
        """Return what each token adds to the stream for each head, shape (B, N, L, D).

        A head's weights add up to one, so the output projection's bias is shared out among the heads.
        """
        projection = self.to_out[0]
        assert isinstance(projection, nn.Linear)
        weight_NKD = projection.weight.t().unflatten(0, (self.num_heads, -1))
        return value_BLNK.transpose(1, 2) @ weight_NKD + projection.bias / self.num_heads

    def forward(self, hidden_BSD: Tensor, context: LayerContext) -> Tensor:
        """Return the attention's output in the reference's order of operations, shape (B, S, D)."""
        query = self.split_heads(self.norm_q(self.to_q(hidden_BSD)))
        mixed = attend(query, context.key_BLNK, context.value_BLNK)
        if context.image_key_BMNK is not None and context.image_value_BMNK is not None:
            mixed = mixed + attend(query, context.image_key_BMNK, context.image_value_BMNK)
        return self.project_out(mixed)

    def add_fast(self, stream_BSD: Tensor, hidden_BSD: Tensor, context: LayerContext) -> Tensor:
        """Return the stream plus the attention's output; may overwrite the stream where no gradient needs it.

        Args:
            stream_BSD: What the output is added to.
            hidden_BSD: The attention's input.
            context: A short context.
        """
        query_BSD = self.to_q(hidden_BSD)
        scale_BS1 = inverse_norm(query_BSD, self.eps)
        if context.output_BNLD is not None:
            weights_BSR = self._weights(query_BSD, scale_BS1, context)
            add = torch.baddbmm if torch.is_grad_enabled() else Tensor.baddbmm_
            return add(stream_BSD, weights_BSR, context.output_BNLD.flatten(1, 2))
        query = self.split_heads((query_BSD * scale_BS1).to(query_BSD.dtype))
        mixed = attend(query, context.key_BLNK, context.value_BLNK, bias_BL=context.bias_BL, scale=1.0)
        if context.image_key_BMNK is not None and context.image_value_BMNK is not None:
            mixed = mixed + attend(query, context.image_key_BMNK, context.image_value_BMNK, scale=1.0)
        return stream_BSD + self.project_out(mixed)

    def _weights(self, query_BSD: Tensor, scale_BS1: Tensor, context: LayerContext) -> Tensor:
        """Return the attention weights of all heads side by side, shape (B, S, N * L)."""
        assert context.bias_BL is not None
        key_BNKL = context.key_BLNK.permute(0, 2, 3, 1)
        logits_BNSL = (self.split_heads(query_BSD).transpose(1, 2) @ key_BNKL).float()
        logits_BNSL = torch.addcmul(context.bias_BL[:, None, None], logits_BNSL, scale_BS1.unsqueeze(1))
        return logits_BNSL.softmax(dim=-1).to(query_BSD.dtype).transpose(1, 2).flatten(2)


def attend(
    query_BSNK: Tensor,
    key_BLNK: Tensor,
    value_BLNK: Tensor,
    *,
    bias_BL: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Softmax attention; returns (B, S, N * K) in the query's type.

    Args:
        query_BSNK: Queries.
        key_BLNK: Keys.
        value_BLNK: Values.
        bias_BL: Added to the logits.
        scale: Of the logits before the bias; None for `1 / sqrt(K)`.
    """
    mixed_BNSK = F.scaled_dot_product_attention(
        query_BSNK.transpose(1, 2),
        key_BLNK.transpose(1, 2),
        value_BLNK.transpose(1, 2),
        attn_mask=None if bias_BL is None else bias_BL[:, None, None].to(query_BSNK.dtype),
        scale=scale,
    )
    return mixed_BNSK.transpose(1, 2).flatten(2, 3).to(query_BSNK.dtype)


def rotate(heads_BSNK: Tensor, rotary: RotaryTables) -> Tensor:
    """Rotate the pairs (2i, 2i + 1) of every head by the token's angles.

    The reference computes `even * cos - odd * sin` and `even * sin + odd * cos`. Here the same products and sums are
    made of whole heads, which is several times faster: a product with i swaps a pair and changes a sign, exactly.
    """
    heads = heads_BSNK.to(torch.promote_types(heads_BSNK.dtype, torch.float32))
    swapped = torch.view_as_real(torch.view_as_complex(heads.unflatten(-1, (-1, 2))) * 1j).flatten(-2)
    return (heads * rotary.cos_S1K).add_(swapped.mul_(rotary.sin_S1K)).to(heads_BSNK.dtype)
