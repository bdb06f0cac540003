"""The Wan video transformer: noisy latents, a timestep and a prompt in, a velocity out.

Shapes: B batch rows; C latent channels; T, H, W latent frames, rows, columns; S video tokens; L text tokens; M image
tokens; E encoder width; D stream width; Z layers; N heads; K head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastvideo_core.errors import ParameterError
from fastvideo_wan.models.attention import AttentionFunction, KeyValueExchange, LayerAttention
from fastvideo_wan.models.block import BlockInputs, Opening, RowExpansion, WanBlock, modulation_vectors
from fastvideo_wan.models.config import IMAGE_CONTEXT_TEXT_TOKENS, WanTransformerConfig
from fastvideo_wan.models.context import TextContext, join_layers, merge_padding
from fastvideo_wan.models.embeddings import ConditionEmbedder, Float32LayerNorm
from fastvideo_wan.models.fused import modulated_norm
from fastvideo_wan.models.rope import RotaryTables, rotary_tables

BlocksRunner = Callable[[Iterable[nn.Module], Tensor, BlockInputs], Tensor]
"""Takes the blocks, the stream and what every block reads; calls `block(stream, inputs)` as it sees fit; returns the
stream after the last block. The seam for caching blocks, recording their outputs, and gradient checkpoints."""

MAX_VECTOR_NUMBERS = 1 << 20
"""Modulation vectors of all blocks are made in one pass up to this many numbers; more wait for their block."""

FEW_TIMES = 8
"""Timesteps of a call are filled up to this many where they are fewer: products of fewer rows round otherwise."""


def run_blocks(blocks: Iterable[nn.Module], hidden_BSD: Tensor, inputs: BlockInputs) -> Tensor:
    """Run every block once, in order: the runner that is used when none is given."""
    for block in blocks:
        hidden_BSD = block(hidden_BSD, inputs)
    return hidden_BSD


@dataclass(frozen=True, slots=True)
class ExactStart:
    """The part of an exact step that no prompt changes, for `finish_exact`.

    Attributes:
        hidden_BSD: The embedded patches.
        embedding_GD: The embedded timesteps.
        inputs: What every block reads, but for the prompt.
        grid: Tokens along time, rows, columns.
    """

    hidden_BSD: Tensor
    embedding_GD: Tensor
    inputs: BlockInputs
    grid: tuple[int, int, int]


class WanTransformer(nn.Module):
    """Wan 2.1, Wan 2.2 and FastWan transformers; parameters are named as in diffusers checkpoints.

    The module holds parameters only. What a prompt costs is paid once by `prepare_context`; `forward` is one step.

    Args:
        config: The model's shape.
    """

    def __init__(self, config: WanTransformerConfig) -> None:
        super().__init__()
        dim = config.inner_dim
        self.config = config
        self.patch_embedding = nn.Conv3d(
            config.in_channels, dim, kernel_size=config.patch_size, stride=config.patch_size
        )
        self.condition_embedder = ConditionEmbedder(config)
        self.blocks = nn.ModuleList([WanBlock(config, index) for index in range(config.num_layers)])
        self.norm_out = Float32LayerNorm(dim, config.eps, elementwise_affine=False)
        self.proj_out = nn.Linear(dim, config.out_channels * config.patch_volume)
        self.scale_shift_table = nn.Parameter(torch.randn(1, 2, dim) / dim**0.5)

    def use_attention(self, backend: AttentionFunction | None) -> None:
        """Let something else than torch compute the self-attention of the fast mode; called once, on loading."""
        for block in self.blocks:
            assert isinstance(block, WanBlock)
            block.attn1.backend = backend

    def prepare_context(
        self,
        text_BLE: Tensor,
        image_BME: Tensor | None = None,
        *,
        exact: bool = False,
        num_tokens: int | None = None,
    ) -> TextContext:
        """Compute the cross-attention keys and values of prompts, for all steps of their requests.

        Args:
            text_BLE: Text encoder's output, zero-padded; every row counts in the attention, padding too.
            image_BME: Image encoder's output, for weights that take it; with a position table over two frames, rows 2i
                and 2i+1 belong to text row i.
            exact: For calls of `forward` that are exact; else equal tokens at the end of the text are merged, which
                changes nothing but rounding.
            num_tokens: Tokens that are left of the text when padding is merged; see `merge_padding`.

        Raises:
            ParameterError: If an image is given to weights that take none, or absent, or the text has another length
                than image-conditioned weights assume.
        """
        self._check_context(text_BLE, image_BME)
        num_all_tokens = text_BLE.shape[1]
        bias_BL = None
        if not exact:
            text_BLE, bias_BL = merge_padding(text_BLE, num_tokens)
        text_BLD = self.condition_embedder.text_embedder(text_BLE)
        image_embedder = self.condition_embedder.image_embedder
        image_BMD = None if image_BME is None or image_embedder is None else image_embedder(image_BME)
        has_outputs = not exact and image_BMD is None and self._are_outputs_cheaper(text_BLE.shape[1], num_all_tokens)
        layers = [
            block.attn2.prepare(text_BLD, image_BMD, bias_BL=bias_BL, has_outputs=has_outputs)
            for block in self.blocks
            if isinstance(block, WanBlock)
        ]
        return join_layers(layers)

    def forward(
        self,
        latents_BCTHW: Tensor,
        timesteps: Tensor,
        context: TextContext,
        *,
        exact: bool = False,
        latents_rows: Sequence[int] | None = None,
        first_frame: int = 0,
        rotary: RotaryTables | None = None,
        exchange: KeyValueExchange | None = None,
        attention: LayerAttention | None = None,
        blocks_runner: BlocksRunner = run_blocks,
    ) -> Tensor:
        """Predict the velocity of noisy latents.

        Args:
            latents_BCTHW: Noisy latents with any conditioning channels; sides are multiples of the patch.
            timesteps: Noise levels times 1000: shape (B,), (B, frames) with one for each frame of tokens, or (B, S)
                with one for each token.
            context: From `prepare_context` with the same `exact`, one row for each row of the result.
            exact: Keep the reference's order of operations, so that float32 results have the same bits at batch one.
            latents_rows: For each row of the context, the row of the latents that it reads, ascending and none left
                out; None if they go one to one. Branches of guidance share their latents so, and what does not depend
                on the prompt is computed once.
            first_frame: Absolute position of the first latent frame, in patches along time.
            rotary: From `rotary`, to save making the tables again; they must fit the latents and `first_frame`.
            exchange: What keeps and adds keys and values, for chunks of a video that attend to earlier ones; not with
                `latents_rows`.
            attention: What takes the self-attentions over; not with `exchange` or `latents_rows`.
            blocks_runner: How to go through the blocks.

        Returns:
            Velocity, shape (R, out_channels, T, H, W), in the latents' type.

        Raises:
            ParameterError: If shapes or modes do not fit each other.
        """
        self._check_channels(latents_BCTHW)
        grid = self.grid(latents_BCTHW)
        if latents_rows is not None and (exchange is not None or attention is not None):
            raise ParameterError(
                "not together with exchange or attention", field="latents_rows", value=latents_rows, allowed="None"
            )
        rows = list(range(latents_BCTHW.shape[0])) if latents_rows is None else list(latents_rows)
        _check_call(latents_BCTHW, timesteps, context, grid, rows, exact=exact)
        rotary = rotary or self.rotary(latents_BCTHW, first_frame=first_frame)
        if exact:
            start = self._start_exact(latents_BCTHW, timesteps, rotary, grid)
            inputs = replace(start.inputs, context=context, exchange=exchange, attention=attention)
            return self._finish_exact(replace(start, inputs=inputs), blocks_runner)
        hidden_BSD = self._patchify(latents_BCTHW, grid)
        embedding_GD, inputs = self._block_inputs(timesteps, context, rotary, rows)
        if exchange is not None or attention is not None:
            inputs = replace(inputs, exchange=exchange, attention=attention)
        hidden_BSD = blocks_runner(self.blocks, hidden_BSD, inputs)
        return self._unpatchify(self._project_out(hidden_BSD, embedding_GD), grid)

    def start_exact(
        self, latents_BCTHW: Tensor, timesteps: Tensor, *, rotary: RotaryTables | None = None
    ) -> ExactStart:
        """Begin an exact step: all that comes before the prompt, for branches of guidance that run one after the other.

        `finish_exact` then gives each branch the bits that `forward` gives. Arguments as of `forward`.

        Raises:
            ParameterError: If shapes do not fit each other.
        """
        self._check_channels(latents_BCTHW)
        grid = self.grid(latents_BCTHW)
        _check_timesteps(latents_BCTHW, timesteps, grid)
        start = self._start_exact(latents_BCTHW, timesteps, rotary or self.rotary(latents_BCTHW), grid)
        first = self.blocks[0]
        assert isinstance(first, WanBlock)
        attended = first.attend_exact(start.hidden_BSD, start.inputs)
        return replace(start, inputs=replace(start.inputs, opening=Opening(start.hidden_BSD, attended)))

    def finish_exact(
        self, start: ExactStart, context: TextContext, *, blocks_runner: BlocksRunner = run_blocks
    ) -> Tensor:
        """End an exact step for one prompt.

        Args:
            start: From `start_exact`.
            context: From `prepare_context`, exact, as many rows as the latents.
            blocks_runner: How to go through the blocks.

        Returns:
            What `forward` returns.

        Raises:
            ParameterError: If the context does not fit.
        """
        _check_mode(context, exact=True)
        _check_rows(context, start.hidden_BSD.shape[0])
        inputs = replace(start.inputs, context=context)
        return self._finish_exact(replace(start, inputs=inputs), blocks_runner)

    def grid(self, latents_BCTHW: Tensor) -> tuple[int, int, int]:
        """Return the token counts along time, rows and columns.

        Raises:
            ParameterError: If a side is no multiple of the patch, or longer than the weights have positions.
        """
        sides, max_tokens = latents_BCTHW.shape[2:], self.config.rope_max_seq_len
        for name, side, patch in zip(("frames", "rows", "columns"), sides, self.config.patch_size, strict=True):
            if side % patch:
                raise ParameterError(
                    "latents do not divide into patches",
                    field=name,
                    value=side,
                    allowed=f"multiples of {patch}",
                    nearest=max(patch, side - side % patch),
                )
            if side > patch * max_tokens:
                limit = patch * max_tokens
                raise ParameterError("too long", field=name, value=side, allowed=f"up to {limit}", nearest=limit)
        frames, rows, columns = (side // patch for side, patch in zip(sides, self.config.patch_size, strict=True))
        return frames, rows, columns

    def rotary(self, latents_BCTHW: Tensor, *, first_frame: int = 0) -> RotaryTables:
        """Return the rotation tables for latents of this shape, for a caller that keeps them over the steps."""
        device = self.patch_embedding.weight.device
        head_dim = self.config.attention_head_dim
        return rotary_tables(self.grid(latents_BCTHW), head_dim, first_frame=first_frame, device=device)

    def _start_exact(
        self, latents_BCTHW: Tensor, timesteps: Tensor, rotary: RotaryTables, grid: tuple[int, int, int]
    ) -> ExactStart:
        if timesteps.ndim == 2 and timesteps.shape[1] == grid[0]:
            timesteps = timesteps.repeat_interleave(grid[1] * grid[2], dim=1)
        embedding, modulation = self.condition_embedder.embed_time(timesteps)
        modulation_G6D = modulation.flatten(0, -3)
        inputs = BlockInputs(None, modulation_G6D, rotary, vectors_ZG6D=self._all_vectors(modulation_G6D))
        hidden_BSD = self.patch_embedding(latents_BCTHW).flatten(2).transpose(1, 2).contiguous()
        return ExactStart(hidden_BSD, embedding.flatten(0, -2), inputs, grid)

    def _finish_exact(self, start: ExactStart, blocks_runner: BlocksRunner) -> Tensor:
        hidden_BSD = blocks_runner(self.blocks, start.hidden_BSD, start.inputs)
        shift, scale = (self.scale_shift_table + start.embedding_GD.unsqueeze(1)).chunk(2, dim=1)
        normed = self.norm_out(hidden_BSD.float()).view(shift.shape[0], -1, hidden_BSD.shape[-1])
        normed = (normed * (1 + scale) + shift).view_as(hidden_BSD).to(hidden_BSD.dtype)
        return self._unpatchify(self.proj_out(normed), start.grid)

    def _block_inputs(
        self, timesteps: Tensor, context: TextContext, rotary: RotaryTables, rows: list[int]
    ) -> tuple[Tensor, BlockInputs]:
        """Return the time embedding of the result's rows and what every block reads, for the fast form."""
        embedding, modulation = self._embed_times(timesteps)
        embedding_GD, modulation_G6D = embedding.flatten(0, -2), modulation.flatten(0, -3)
        turns_S1P = rotary.turns() * math.sqrt(self.config.inner_dim)
        inputs = BlockInputs(context, modulation_G6D, rotary, turns_S1P)
        if modulation_G6D.shape[0] == 1:
            inputs = replace(inputs, vectors_ZG6D=self._all_vectors(modulation_G6D))
        if len(rows) == timesteps.shape[0]:
            return embedding_GD, inputs
        row_R = torch.tensor(rows, device=modulation.device)
        expanded_G6D = modulation_G6D
        if modulation_G6D.shape[0] > 1:
            embedding_GD = embedding.index_select(0, row_R).flatten(0, -2)
            expanded_G6D = modulation.index_select(0, row_R).flatten(0, -3)
        return embedding_GD, replace(inputs, expansion=RowExpansion(row_R, expanded_G6D))

    def _embed_times(self, timesteps: Tensor) -> tuple[Tensor, Tensor]:
        """Embed timesteps such that each has the same bits however many there are."""
        num_times = timesteps.numel()
        if num_times >= FEW_TIMES:
            return self.condition_embedder.embed_time(timesteps)
        filled = F.pad(timesteps.flatten(), (0, FEW_TIMES - num_times))
        embedding, modulation = self.condition_embedder.embed_time(filled)
        shape = timesteps.shape
        return embedding[:num_times].unflatten(0, shape), modulation[:num_times].unflatten(0, shape)

    def _all_vectors(self, modulation_G6D: Tensor) -> Tensor | None:
        """Return the modulation vectors of all blocks, (Z, G, 6, D), unless they are too many."""
        if modulation_G6D.numel() * len(self.blocks) > MAX_VECTOR_NUMBERS:
            return None
        tables: list[Tensor] = [block.scale_shift_table for block in self.blocks if isinstance(block, WanBlock)]
        return modulation_vectors(torch.stack(tables), modulation_G6D)

    def _are_outputs_cheaper(self, num_tokens: int, num_all_tokens: int) -> bool:
        """Whether to take text values through the output projection once a request instead of once a step.

        It must save half of that projection, and the context must stay smaller than with all tokens.
        """
        num_outputs = self.config.num_attention_heads * num_tokens
        is_small = num_outputs + 2 * num_tokens <= 2 * num_all_tokens
        return not torch.is_grad_enabled() and is_small and 2 * num_outputs <= self.config.inner_dim

    def _check_channels(self, latents_BCTHW: Tensor) -> None:
        channels = latents_BCTHW.shape[1]
        if channels != self.config.in_channels:
            raise ParameterError("channels", field="latents", value=channels, allowed=str(self.config.in_channels))

    def _check_context(self, text_BLE: Tensor, image_BME: Tensor | None) -> None:
        if (image_BME is not None) != self.config.is_image_conditioned:
            needs = "one image embedding a prompt" if self.config.is_image_conditioned else "none"
            got = None if image_BME is None else tuple(image_BME.shape)
            raise ParameterError("image embeddings do not fit the weights", field="image", value=got, allowed=needs)
        if self.config.is_image_conditioned and text_BLE.shape[1] != IMAGE_CONTEXT_TEXT_TOKENS:
            raise ParameterError(
                "text does not have the length that image-conditioned weights assume",
                field="text tokens",
                value=text_BLE.shape[1],
                allowed=str(IMAGE_CONTEXT_TEXT_TOKENS),
                nearest=IMAGE_CONTEXT_TEXT_TOKENS,
            )

    def _project_out(self, hidden_BSD: Tensor, embedding_GD: Tensor) -> Tensor:
        """Return the patches' values, shape (B, S, patch_volume * out_channels)."""
        shift, scale = (self.scale_shift_table + embedding_GD.unsqueeze(1)).chunk(2, dim=1)
        scale, shift = 1 + scale.float(), shift.float()
        scale, shift = (scale, shift) if len(scale) > 1 else (scale[0, 0], shift[0, 0])
        normed = modulated_norm(hidden_BSD, scale, shift, self.norm_out.eps)
        projected: Tensor = self.proj_out(normed)
        return projected

    def _patchify(self, latents_BCTHW: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """Return the embedded patches, shape (B, S, D).

        One matrix product over whole patches: the same sums as the convolution, and no transposed copy.
        """
        patch, embedding = self.config.patch_size, self.patch_embedding
        split = latents_BCTHW.unflatten(4, (grid[2], patch[2])).unflatten(3, (grid[1], patch[1]))
        split = split.unflatten(2, (grid[0], patch[0])).permute(0, 2, 4, 6, 1, 3, 5, 7)
        return F.linear(split.flatten(4).flatten(1, 3), embedding.weight.flatten(1), embedding.bias)

    def _unpatchify(self, patches_BSV: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """Put patch values back in their places, shape (B, C, T, H, W)."""
        patches = patches_BSV.unflatten(1, grid).unflatten(-1, (*self.config.patch_size, -1))
        return patches.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)


def _check_call(
    latents_BCTHW: Tensor,
    timesteps: Tensor,
    context: TextContext,
    grid: tuple[int, int, int],
    rows: list[int],
    *,
    exact: bool,
) -> None:
    """Refuse shapes and modes that do not fit each other, which broadcasting would hide."""
    num_rows = latents_BCTHW.shape[0]
    _check_timesteps(latents_BCTHW, timesteps, grid)
    _check_mode(context, exact=exact)
    if sorted(set(rows)) != list(range(num_rows)) or sorted(rows) != rows or (exact and len(rows) != num_rows):
        allowed = f"0 to {num_rows - 1}, each once" if exact else f"0 to {num_rows - 1}, ascending, none left out"
        raise ParameterError("rows of the latents", field="latents_rows", value=rows, allowed=allowed)
    _check_rows(context, len(rows))


def _check_timesteps(latents_BCTHW: Tensor, timesteps: Tensor, grid: tuple[int, int, int]) -> None:
    num_rows = latents_BCTHW.shape[0]
    shapes = {(num_rows,), (num_rows, grid[0]), (num_rows, math.prod(grid))}
    if tuple(timesteps.shape) not in shapes:
        allowed = ", ".join(str(shape) for shape in sorted(shapes))
        raise ParameterError("shape", field="timesteps", value=tuple(timesteps.shape), allowed=allowed)


def _check_mode(context: TextContext, *, exact: bool) -> None:
    if context.is_exact != exact:
        raise ParameterError("the context was prepared for the other mode", field="exact", value=exact)


def _check_rows(context: TextContext, num_rows: int) -> None:
    if num_rows != context.num_rows:
        raise ParameterError("rows", field="context", value=context.num_rows, allowed=str(num_rows))
