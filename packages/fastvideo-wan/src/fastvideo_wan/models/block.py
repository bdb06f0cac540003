"""One transformer block, and what all blocks read besides the token stream.

Shapes: B batch rows; R context rows; S video tokens; G groups of consecutive tokens that share a timestep, over all
rows; D stream width; P half the head width; 6 modulation vectors: shift, scale and gate, for attention and for the
feed-forward net.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fastvideo_wan.models.attention import CrossAttention, KeyValueExchange, SelfAttention
from fastvideo_wan.models.config import WanTransformerConfig
from fastvideo_wan.models.context import TextContext
from fastvideo_wan.models.embeddings import FeedForward, Float32LayerNorm
from fastvideo_wan.models.fused import gated_sum, modulated_norm
from fastvideo_wan.models.rope import RotaryTables


@dataclass(frozen=True, slots=True)
class RowExpansion:
    """How the rows of a batch fan out to several prompts each, as the branches of guidance do.

    Up to the first cross-attention the branches are the same, so that the first block expands the stream.

    Attributes:
        row_R: For each row of the context, the row of the latents that it reads; int64, ascending, none left out.
        modulation_G6D: The modulation of the expanded rows.
    """

    row_R: Tensor
    modulation_G6D: Tensor


@dataclass(frozen=True, slots=True)
class BlockInputs:
    """What a forward pass hands to every block unchanged.

    Attributes:
        context: The prompts' keys and values, all layers.
        modulation_G6D: From the timesteps: a row for the whole batch, or for each row, frame or token of it. The fast
            form's scales are one higher.
        rotary: Positions of the tokens.
        turns_S1P: The same positions as complex numbers times the square root of D, for the fast form; None for the
            reference's order of operations.
        expansion: How latents' rows fan out to the context's rows; None if they go one to one.
        exchange: What adds earlier keys and values to the self-attention; None to attend to the given tokens only.
    """

    context: TextContext
    modulation_G6D: Tensor
    rotary: RotaryTables
    turns_S1P: Tensor | None = None
    expansion: RowExpansion | None = None
    exchange: KeyValueExchange | None = None


class WanBlock(nn.Module):
    """Self-attention, cross-attention and feed-forward net, the first and last modulated by the timestep.

    Args:
        config: The model's shape.
        index: The block's place, which says what layer of the context it reads.
    """

    def __init__(self, config: WanTransformerConfig, index: int) -> None:
        super().__init__()
        dim = config.inner_dim
        self.index = index
        self.norm1 = Float32LayerNorm(dim, config.eps, elementwise_affine=False)
        self.attn1 = SelfAttention(config, index)
        self.attn2 = CrossAttention(config)
        self.norm2 = Float32LayerNorm(dim, config.eps) if config.cross_attn_norm else nn.Identity()
        self.ffn = FeedForward(dim, config.ffn_dim, dim, is_tanh_gelu=True)
        self.norm3 = Float32LayerNorm(dim, config.eps, elementwise_affine=False)
        self.scale_shift_table = nn.Parameter(torch.randn(1, 6, dim) / dim**0.5)

    def forward(self, hidden_BSD: Tensor, inputs: BlockInputs) -> Tensor:
        """Return the stream after the block, shape (B, S, D), or (R, S, D) if the block expands the rows.

        The input is left as it is.
        """
        if inputs.turns_S1P is None:
            return self._forward_exact(hidden_BSD, inputs)
        return self._forward_fast(hidden_BSD, inputs, inputs.turns_S1P)

    def _forward_exact(self, hidden_BSD: Tensor, inputs: BlockInputs) -> Tensor:
        vectors = (self.scale_shift_table + inputs.modulation_G6D.float()).chunk(6, dim=1)
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = vectors
        shape, dtype = hidden_BSD.shape, hidden_BSD.dtype
        grouped = (shift.shape[0], -1, shape[-1])

        normed = self.norm1(hidden_BSD.float()).view(grouped) * (1 + scale) + shift
        update = self.attn1(normed.view(shape).to(dtype), inputs.rotary, inputs.exchange)
        hidden_BSD = (hidden_BSD.float().view(grouped) + update.view(grouped) * gate).view(shape).to(dtype)

        normed = self.norm2(hidden_BSD.float()).to(dtype)
        hidden_BSD = hidden_BSD + self.attn2(normed, inputs.context.layer(self.index))

        normed = self.norm3(hidden_BSD.float()).view(grouped) * (1 + ffn_scale) + ffn_shift
        update = self.ffn(normed.view(shape).to(dtype)).float()
        return (hidden_BSD.float().view(grouped) + update.view(grouped) * ffn_gate).view(shape).to(dtype)

    def _forward_fast(self, hidden_BSD: Tensor, inputs: BlockInputs, turns_S1P: Tensor) -> Tensor:
        is_expanding = inputs.expansion is not None and hidden_BSD.shape[0] != inputs.context.num_rows
        expanded = inputs.modulation_G6D if inputs.expansion is None else inputs.expansion.modulation_G6D
        vectors = self._vectors(inputs.modulation_G6D if is_expanding else expanded)
        shift, scale, gate = vectors[:3]
        normed = modulated_norm(hidden_BSD, scale, shift, self.norm1.eps)
        update = self.attn1.forward_fast(normed, turns_S1P, inputs.exchange)
        hidden_BSD = gated_sum(hidden_BSD, update, gate, may_overwrite=False)
        if is_expanding and inputs.expansion is not None:
            hidden_BSD = hidden_BSD.index_select(0, inputs.expansion.row_R)
            vectors = self._vectors(expanded)

        shift, scale, gate = vectors[3:]
        hidden_BSD = self.attn2.add_fast(hidden_BSD, self.norm2(hidden_BSD), inputs.context.layer(self.index))
        normed = modulated_norm(hidden_BSD, scale, shift, self.norm3.eps)
        return gated_sum(hidden_BSD, self.ffn.forward_fast(normed), gate, may_overwrite=True)

    def _vectors(self, modulation_G6D: Tensor) -> tuple[Tensor, ...]:
        """Return the six modulation vectors, float32, each of shape (D,), or (G, 1, D) for more than one group."""
        vectors_G6D = self.scale_shift_table + modulation_G6D.float()
        return vectors_G6D[0].unbind(0) if len(vectors_G6D) == 1 else vectors_G6D.chunk(6, dim=1)
