"""The Wan transformer on videos that grow chunk by chunk.

It has the weights and blocks of `WanTransformer`. What is different is what a token attends to: in one pass over a
whole video by a mask (training), or chunk by chunk, where keys and values of earlier chunks are handed in (streaming).
Keys are kept as they are rotated, at absolute positions, so that nothing is recomputed when the window moves on.

Shapes: B batch rows; C latent channels; T, H, W latent frames, rows, columns; S tokens of all frames; N heads; K head
width; P half of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fastvideo_core.errors import ParameterError
from fastvideo_wan.models.attention import LayerAttention
from fastvideo_wan.models.block import BlockInputs
from fastvideo_wan.models.context import TextContext
from fastvideo_wan.models.rope import RotaryTables, rotary_tables
from fastvideo_wan.models.transformer import BlocksRunner, WanTransformer, run_blocks


class CausalWanTransformer(WanTransformer):
    """A Wan transformer whose chunks attend to earlier chunks only."""

    def forward_masked(
        self,
        latents_BCTHW: Tensor,
        timesteps_BT: Tensor,
        context: TextContext,
        mask_TT: Tensor,
        *,
        positions: Sequence[int] | None = None,
        blocks_runner: BlocksRunner = run_blocks,
    ) -> Tensor:
        """Predict the velocity of whole videos in one pass, each frame at a noise level of its own; differentiable.

        Args:
            latents_BCTHW: Latents.
            timesteps_BT: Noise levels times 1000 of every frame.
            context: From `prepare_context`, not exact: one row a video, or as many as the video has equal runs of
                frames that read a prompt of their own, in order.
            mask_TT: Which frame (row) attends to which (column), bool, shape (T, T), or (B, T, T).
            positions: Absolute position of each frame; None counts from 0. Frames may share one, such as a clean and a
                noisy copy of a video.
            blocks_runner: How to go through the blocks.

        Returns:
            Velocity, shape of the latents with the model's output channels.

        Raises:
            ParameterError: If shapes do not fit each other.
        """
        self._check_channels(latents_BCTHW)
        grid = self.grid(latents_BCTHW)
        num_prompts = _check_masked(latents_BCTHW, timesteps_BT, context, mask_TT, positions, grid[0])
        turns = self.rotary_at(grid, range(grid[0]) if positions is None else positions).turns()
        attention = MaskedAttention(mask_TT, grid[1] * grid[2])
        return self._run(latents_BCTHW, timesteps_BT, context, turns, attention, num_prompts, blocks_runner)

    def forward_chunk(
        self,
        latents_BCTHW: Tensor,
        timesteps: Tensor,
        context: TextContext,
        attention: LayerAttention,
        *,
        turns: Tensor,
        blocks_runner: BlocksRunner = run_blocks,
    ) -> Tensor:
        """Predict the velocity of a chunk each of several videos, which may be at different places.

        Args:
            latents_BCTHW: Noisy chunks.
            timesteps: Noise levels times 1000, shape (B,), or (B, T) with one for each frame.
            context: From `prepare_context`, not exact, a row a video.
            attention: What adds the keys and values of earlier chunks, and keeps the new ones.
            turns: From `chunk_turns`: the rotations at each video's place.
            blocks_runner: How to go through the blocks.

        Returns:
            Velocity, shape of the latents with the model's output channels.

        Raises:
            ParameterError: If shapes do not fit each other.
        """
        self._check_channels(latents_BCTHW)
        grid = self.grid(latents_BCTHW)
        num_rows = latents_BCTHW.shape[0]
        if tuple(timesteps.shape) not in {(num_rows,), (num_rows, grid[0])}:
            allowed = f"({num_rows},) or ({num_rows}, {grid[0]})"
            raise ParameterError("shape", field="timesteps", value=tuple(timesteps.shape), allowed=allowed)
        if context.num_rows != num_rows or context.is_exact:
            allowed = f"{num_rows}, of a short context"
            raise ParameterError("rows", field="context", value=context.num_rows, allowed=allowed)
        return self._run(latents_BCTHW, timesteps, context, turns, attention, 1, blocks_runner)

    def rotary_at(self, grid: tuple[int, int, int], positions: Sequence[int]) -> RotaryTables:
        """Return the rotation tables of frames at any positions; `grid` is tokens along time, rows, columns."""
        device, head_dim = self.patch_embedding.weight.device, self.config.attention_head_dim
        single = (1, grid[1], grid[2])
        tables = {at: rotary_tables(single, head_dim, first_frame=at, device=device) for at in set(positions)}
        chosen = [tables[at] for at in positions]
        return RotaryTables(
            torch.cat([table.cos_S1K for table in chosen]), torch.cat([table.sin_S1K for table in chosen])
        )

    def chunk_turns(self, latents_BCTHW: Tensor, first_frames: Sequence[int]) -> Tensor:
        """Return the rotations of chunks as complex numbers, shape (B, S, 1, P).

        Args:
            latents_BCTHW: Latents of the chunks' shape.
            first_frames: Absolute position of the first frame of each row.
        """
        turns = {at: self.rotary(latents_BCTHW, first_frame=at).turns() for at in set(first_frames)}
        return torch.stack([turns[at] for at in first_frames])

    def _run(
        self,
        latents_BCTHW: Tensor,
        timesteps: Tensor,
        context: TextContext,
        turns: Tensor,
        attention: LayerAttention,
        num_prompts: int,
        blocks_runner: BlocksRunner,
    ) -> Tensor:
        grid = self.grid(latents_BCTHW)
        embedding, modulation = self._embed_times(timesteps)
        modulation_G6D = modulation.flatten(0, -3)
        inputs = BlockInputs(
            context,
            modulation_G6D,
            rotary=None,
            turns_S1P=turns * math.sqrt(self.config.inner_dim),
            vectors_ZG6D=self._all_vectors(modulation_G6D),
            attention=attention,
            num_prompts=num_prompts,
        )
        hidden_BSD = blocks_runner(self.blocks, self._patchify(latents_BCTHW, grid), inputs)
        return self._unpatchify(self._project_out(hidden_BSD, embedding.flatten(0, -2)), grid)


class MaskedAttention:
    """Attention of all tokens of whole videos by a mask over frames; a `LayerAttention`.

    Args:
        mask_TT: Bool, shape (T, T) or (B, T, T), in tokens along time.
        tokens_per_frame: Tokens that share a row and a column of it.
    """

    def __init__(self, mask_TT: Tensor, tokens_per_frame: int) -> None:
        spread = mask_TT.repeat_interleave(tokens_per_frame, -1).repeat_interleave(tokens_per_frame, -2)
        bias = torch.zeros(spread.shape, device=mask_TT.device).masked_fill(~spread, float("-inf"))
        self.bias_B1SS = bias.view(-1, 1, *bias.shape[-2:])

    def __call__(self, layer: int, query_BSNK: Tensor, key_BSNK: Tensor, value_BSNK: Tensor) -> Tensor:
        """Return the mixed values, shape (B, S, N, K)."""
        query, key, value = (tokens.transpose(1, 2) for tokens in (query_BSNK, key_BSNK, value_BSNK))
        bias_B1SS = self.bias_B1SS.to(query_BSNK.dtype).expand(query_BSNK.shape[0], -1, -1, -1)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias_B1SS).transpose(1, 2)


def _check_masked(
    latents_BCTHW: Tensor,
    timesteps_BT: Tensor,
    context: TextContext,
    mask_TT: Tensor,
    positions: Sequence[int] | None,
    num_frames: int,
) -> int:
    """Refuse what does not fit together; returns the number of prompts of a row."""
    num_rows, want = latents_BCTHW.shape[0], (num_frames, num_frames)
    if tuple(timesteps_BT.shape) != (num_rows, num_frames):
        allowed = f"({num_rows}, {num_frames})"
        raise ParameterError("shape", field="timesteps", value=tuple(timesteps_BT.shape), allowed=allowed)
    if mask_TT.dtype != torch.bool or tuple(mask_TT.shape) not in {want, (num_rows, *want)}:
        value, allowed = (mask_TT.dtype, *mask_TT.shape), f"bool {want} or {(num_rows, *want)}"
        raise ParameterError("shape", field="mask", value=value, allowed=allowed)
    if positions is not None and len(positions) != num_frames:
        raise ParameterError("length", field="positions", value=len(positions), allowed=str(num_frames))
    num_prompts = context.num_rows // num_rows
    if context.is_exact or num_prompts * num_rows != context.num_rows or num_frames % max(num_prompts, 1):
        allowed = f"{num_rows} times a divisor of {num_frames}, of a short context"
        raise ParameterError("rows", field="context", value=context.num_rows, allowed=allowed)
    return num_prompts
