"""The Wan video transformer: noisy latents, a timestep and a prompt in, a velocity out.

Shapes: B batch rows; C latent channels; T, H, W latent frames, rows, columns; S video tokens; L text tokens; M image
tokens; E encoder width; D stream width; Z layers; N heads; K head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from fastvideo_core.errors import ParameterError
from torch import Tensor, nn

from fastvideo_wan.models.block import BlockInputs, WanBlock
from fastvideo_wan.models.config import IMAGE_CONTEXT_TEXT_TOKENS, WanTransformerConfig
from fastvideo_wan.models.context import TextContext
from fastvideo_wan.models.embeddings import ConditionEmbedder, Float32LayerNorm
from fastvideo_wan.models.rope import RotaryTables, rotary_tables

BlocksRunner = Callable[[Iterable[nn.Module], Tensor, BlockInputs], Tensor]
"""Takes the blocks, the stream and what every block reads; calls `block(stream, inputs)` as it sees fit; returns the
stream after the last block. The seam for caching blocks, recording their outputs, and gradient checkpoints."""


def run_blocks(blocks: Iterable[nn.Module], hidden_BSD: Tensor, inputs: BlockInputs) -> Tensor:
    """Run every block once, in order: the runner that is used when none is given."""
    for block in blocks:
        hidden_BSD = block(hidden_BSD, inputs)
    return hidden_BSD


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

    def prepare_context(self, text_BLE: Tensor, image_BME: Tensor | None = None) -> TextContext:
        """Compute the cross-attention keys and values of prompts, for all steps of their requests.

        Args:
            text_BLE: Text encoder's output, zero-padded; every row counts in the attention, padding too.
            image_BME: Image encoder's output, for weights that take it; with a position table over two frames, rows 2i
                and 2i+1 belong to text row i.

        Raises:
            ParameterError: If an image is given to weights that take none, or absent, or the text has another length
                than image-conditioned weights assume.
        """
        self._check_context(text_BLE, image_BME)
        embedder = self.condition_embedder
        text_BLD = embedder.text_embedder(text_BLE)
        layers = [block.attn2.project_text(text_BLD) for block in self._blocks()]
        keys, values = (torch.stack(parts) for parts in zip(*layers, strict=True))
        if image_BME is None or embedder.image_embedder is None:
            return TextContext(keys, values)
        image_BMD = embedder.image_embedder(image_BME)
        layers = [block.attn2.project_image(image_BMD) for block in self._blocks()]
        image_keys, image_values = (torch.stack(parts) for parts in zip(*layers, strict=True))
        return TextContext(keys, values, image_keys, image_values)

    def forward(
        self,
        latents_BCTHW: Tensor,
        timesteps: Tensor,
        context: TextContext,
        *,
        exact: bool = False,
        first_frame: int = 0,
        rotary: RotaryTables | None = None,
        blocks_runner: BlocksRunner = run_blocks,
    ) -> Tensor:
        """Predict the velocity of noisy latents.

        Args:
            latents_BCTHW: Noisy latents with any conditioning channels; sides are multiples of the patch.
            timesteps: Noise levels times 1000: shape (B,), or (B, S) with one for each token.
            context: From `prepare_context`, one row for each row of the latents.
            exact: Keep the reference's order of operations, so that float32 results have the same bits at batch one.
            first_frame: Absolute position of the first latent frame, in patches along time.
            rotary: From `rotary`, to save making the tables again; they must fit the latents and `first_frame`.
            blocks_runner: How to go through the blocks.

        Returns:
            Velocity, shape (B, out_channels, T, H, W), in the latents' type.
        """
        grid = self.grid(latents_BCTHW)
        rotary = rotary or self.rotary(latents_BCTHW, first_frame=first_frame)
        hidden_BSD = self.patch_embedding(latents_BCTHW).flatten(2).transpose(1, 2).contiguous()
        embedding, modulation = self.condition_embedder.embed_time(timesteps)
        inputs = BlockInputs(context=context, modulation=modulation, rotary=rotary, is_exact=exact)
        hidden_BSD = blocks_runner(self.blocks, hidden_BSD, inputs)
        return self._unpatchify(self._project_out(hidden_BSD, embedding), grid)

    def grid(self, latents_BCTHW: Tensor) -> tuple[int, int, int]:
        """Return the token counts along time, rows and columns.

        Raises:
            ParameterError: If a side is no multiple of the patch.
        """
        sides = latents_BCTHW.shape[2:]
        for name, side, patch in zip(("frames", "rows", "columns"), sides, self.config.patch_size, strict=True):
            if side % patch:
                raise ParameterError(
                    "latents do not divide into patches",
                    field=name,
                    value=side,
                    allowed=f"multiples of {patch}",
                    nearest=max(patch, side - side % patch),
                )
        frames, rows, columns = (side // patch for side, patch in zip(sides, self.config.patch_size, strict=True))
        return frames, rows, columns

    def rotary(self, latents_BCTHW: Tensor, *, first_frame: int = 0) -> RotaryTables:
        """Return the rotation tables for latents of this shape, for a caller that keeps them over the steps."""
        return rotary_tables(
            self.grid(latents_BCTHW),
            self.config.attention_head_dim,
            first_frame=first_frame,
            device=latents_BCTHW.device,
        )

    def _blocks(self) -> list[WanBlock]:
        return [block for block in self.blocks if isinstance(block, WanBlock)]

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

    def _project_out(self, hidden_BSD: Tensor, embedding: Tensor) -> Tensor:
        """Return the patches' values, shape (B, S, patch_volume * out_channels)."""
        table = self.scale_shift_table + embedding.unsqueeze(-2)
        shift, scale = (vector if embedding.ndim == 2 else vector.squeeze(-2) for vector in table.chunk(2, dim=-2))
        normed = (self.norm_out(hidden_BSD.float()) * (1 + scale) + shift).to(hidden_BSD.dtype)
        projected: Tensor = self.proj_out(normed)
        return projected

    def _unpatchify(self, patches_BSV: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """Put patch values back in their places, shape (B, C, T, H, W)."""
        patches = patches_BSV.unflatten(1, grid).unflatten(-1, (*self.config.patch_size, -1))
        return patches.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)
