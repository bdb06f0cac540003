"""One transformer block, and what all blocks read besides the token stream.

Shapes: B batch rows; S video tokens; D stream width; 6 modulation vectors: shift, scale and gate, for attention and
for the feed-forward net.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fastvideo_wan.models.attention import CrossAttention, SelfAttention
from fastvideo_wan.models.config import WanTransformerConfig
from fastvideo_wan.models.context import TextContext
from fastvideo_wan.models.embeddings import FeedForward, Float32LayerNorm
from fastvideo_wan.models.rope import RotaryTables


@dataclass(frozen=True, slots=True)
class BlockInputs:
    """What a forward pass hands to every block unchanged.

    Attributes:
        context: The prompts' keys and values, all layers.
        modulation: From the timesteps: shape (B, 6, D), or (B, S, 6, D) where each token has its own timestep.
        rotary: Positions of the tokens.
        is_exact: Whether to keep the reference's order of operations.
    """

    context: TextContext
    modulation: Tensor
    rotary: RotaryTables
    is_exact: bool


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
        self.attn1 = SelfAttention(config)
        self.attn2 = CrossAttention(config)
        self.norm2 = Float32LayerNorm(dim, config.eps) if config.cross_attn_norm else nn.Identity()
        self.ffn = FeedForward(dim, config.ffn_dim, dim, is_tanh_gelu=True)
        self.norm3 = Float32LayerNorm(dim, config.eps, elementwise_affine=False)
        self.scale_shift_table = nn.Parameter(torch.randn(1, 6, dim) / dim**0.5)

    def forward(self, hidden_BSD: Tensor, inputs: BlockInputs) -> Tensor:
        """Return the stream after the block, shape (B, S, D); the input is left as it is."""
        table = self.scale_shift_table + inputs.modulation.float()
        vectors = [vector.squeeze(-2) for vector in table.chunk(6, dim=-2)]
        if inputs.modulation.ndim == 3:
            vectors = [vector.unsqueeze(1) for vector in vectors]
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = vectors
        dtype = hidden_BSD.dtype

        normed = (self.norm1(hidden_BSD.float()) * (1 + scale) + shift).to(dtype)
        hidden_BSD = (hidden_BSD.float() + self.attn1(normed, inputs.rotary) * gate).to(dtype)

        normed = self.norm2(hidden_BSD.float()).to(dtype)
        hidden_BSD = hidden_BSD + self.attn2(normed, inputs.context.layer(self.index))

        normed = (self.norm3(hidden_BSD.float()) * (1 + ffn_scale) + ffn_shift).to(dtype)
        return (hidden_BSD.float() + self.ffn(normed).float() * ffn_gate).to(dtype)
