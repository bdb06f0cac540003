"""One transformer block, and what all blocks read besides the token stream.

Shapes: B batch rows; R context rows; S video tokens; G groups of consecutive tokens that share a timestep, over all
rows; Z layers; D stream width; P half the head width; 6 modulation vectors: shift, scale and gate, for attention and
for the feed-forward net.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fastvideo_wan.models.attention import CrossAttention, KeyValueExchange, LayerAttention, SelfAttention
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
class Opening:
    """What the first block makes of the stream before the prompt comes in: the same for all branches of guidance.

    Attributes:
        hidden_BSD: The stream that the block was given.
        attended_BSD: The stream after the block's self-attention.
    """

    hidden_BSD: Tensor
    attended_BSD: Tensor


@dataclass(frozen=True, slots=True)
class BlockInputs:
    """What a forward pass hands to every block unchanged.

    Attributes:
        context: The prompts' keys and values, all layers; None for a block's self-attention alone.
        modulation_G6D: From the timesteps: a row for the whole batch, or for each row, frame or token of it.
        rotary: Positions of the tokens, for the reference's order of operations.
        turns_S1P: The same positions as complex numbers times the square root of D, for the fast form; None for the
            reference's order of operations.
        expansion: How latents' rows fan out to the context's rows; None if they go one to one.
        exchange: What adds earlier keys and values to the self-attention; None to attend to the given tokens only.
        vectors_ZG6D: All blocks' modulation vectors, from `modulation_vectors`; None where they are too large to be
            made beforehand.
        opening: The first block's self-attention, if it has been computed before.
        attention: What takes the self-attentions over; None to attend as said above.
        num_prompts: Prompts of a row, in the fast form: its tokens in as many equal runs, each of which reads a row of
            the context of its own.
    """

    context: TextContext | None
    modulation_G6D: Tensor
    rotary: RotaryTables | None
    turns_S1P: Tensor | None = None
    expansion: RowExpansion | None = None
    exchange: KeyValueExchange | None = None
    vectors_ZG6D: Tensor | None = None
    opening: Opening | None = None
    attention: LayerAttention | None = None
    num_prompts: int = 1


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

    def attend_exact(self, hidden_BSD: Tensor, inputs: BlockInputs) -> Tensor:
        """Return the stream after the self-attention, in the reference's order of operations."""
        assert inputs.rotary is not None, "the reference rotates by tables"
        shift, scale, gate = self._vectors(inputs, inputs.modulation_G6D).chunk(6, dim=1)[:3]
        shape, grouped = hidden_BSD.shape, (shift.shape[0], -1, hidden_BSD.shape[-1])
        normed = self.norm1(hidden_BSD.float()).view(grouped) * scale + shift
        update = self.attn1(normed.view(shape).to(hidden_BSD.dtype), inputs.rotary, inputs.exchange, inputs.attention)
        return (hidden_BSD.float().view(grouped) + update.view(grouped) * gate).view(shape).to(hidden_BSD.dtype)

    def _forward_exact(self, hidden_BSD: Tensor, inputs: BlockInputs) -> Tensor:
        assert inputs.context is not None, "a whole block reads a prompt"
        opening = inputs.opening
        is_opened = opening is not None and opening.hidden_BSD is hidden_BSD
        attended = opening.attended_BSD if opening and is_opened else self.attend_exact(hidden_BSD, inputs)
        shift, scale, gate = self._vectors(inputs, inputs.modulation_G6D).chunk(6, dim=1)[3:]
        shape, dtype, grouped = attended.shape, attended.dtype, (shift.shape[0], -1, attended.shape[-1])

        normed = self.norm2(attended.float()).to(dtype)
        stream = attended + self.attn2(normed, inputs.context.layer(self.index))

        normed = self.norm3(stream.float()).view(grouped) * scale + shift
        update = self.ffn(normed.view(shape).to(dtype)).float()
        return (stream.float().view(grouped) + update.view(grouped) * gate).view(shape).to(dtype)

    def _forward_fast(self, hidden_BSD: Tensor, inputs: BlockInputs, turns_S1P: Tensor) -> Tensor:
        assert inputs.context is not None, "a whole block reads a prompt"
        is_expanding = inputs.expansion is not None and hidden_BSD.shape[0] != inputs.context.num_rows
        expanded = inputs.modulation_G6D if inputs.expansion is None else inputs.expansion.modulation_G6D
        vectors = self._unbound(inputs, inputs.modulation_G6D if is_expanding else expanded)
        shift, scale, gate = vectors[:3]
        normed = modulated_norm(hidden_BSD, scale, shift, self.norm1.eps)
        update = self.attn1.forward_fast(normed, turns_S1P, inputs.exchange, inputs.attention)
        hidden_BSD = gated_sum(hidden_BSD, update, gate, may_overwrite=False)
        if is_expanding and inputs.expansion is not None:
            hidden_BSD = hidden_BSD.index_select(0, inputs.expansion.row_R)
            vectors = self._unbound(inputs, expanded)

        shift, scale, gate = vectors[3:]
        runs = hidden_BSD.view(-1, hidden_BSD.shape[1] // inputs.num_prompts, hidden_BSD.shape[2])
        runs = self.attn2.add_fast(runs, self.norm2(runs), inputs.context.layer(self.index))
        hidden_BSD = runs.view_as(hidden_BSD)
        normed = modulated_norm(hidden_BSD, scale, shift, self.norm3.eps)
        return gated_sum(hidden_BSD, self.ffn.forward_fast(normed), gate, may_overwrite=True)

    def _vectors(self, inputs: BlockInputs, modulation_G6D: Tensor) -> Tensor:
        """Return the six modulation vectors of each group, float32, (G, 6, D)."""
        if inputs.vectors_ZG6D is not None:
            return inputs.vectors_ZG6D[self.index]
        return modulation_vectors(self.scale_shift_table, modulation_G6D)

    def _unbound(self, inputs: BlockInputs, modulation_G6D: Tensor) -> tuple[Tensor, ...]:
        """Return the six modulation vectors, each of shape (D,), or (G, 1, D) for more than one group."""
        vectors_G6D = self._vectors(inputs, modulation_G6D)
        return vectors_G6D[0].unbind(0) if len(vectors_G6D) == 1 else vectors_G6D.chunk(6, dim=1)


def modulation_vectors(table: Tensor, modulation_G6D: Tensor) -> Tensor:
    """Add a block's table, or the tables of all blocks, (Z, 1, 6, D), to the modulation; scales count from one."""
    vectors = table + modulation_G6D.float()
    vectors[..., 1::3, :] += 1.0
    return vectors
