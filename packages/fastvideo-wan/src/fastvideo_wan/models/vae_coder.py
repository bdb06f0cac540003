"""The encoder and the decoder of the Wan video autoencoder, in the layouts of Wan 2.1 and Wan 2.2.

Shapes: B batch rows; C channels; T, H, W frames, rows, columns; Z latent channels.
"""

from __future__ import annotations

import itertools

from torch import Tensor, nn

from fastvideo_wan.models.vae_blocks import (
    CausalConv3d,
    Downsample,
    MidBlock,
    ResidualBlock,
    RMSNorm,
    Upsample,
)
from fastvideo_wan.models.vae_cache import Tape
from fastvideo_wan.models.vae_config import WanVAEConfig


class ResidualDownBlock(nn.Module):
    """A level of Wan 2.2's encoder: residual blocks and a step down, with an averaging shortcut past both."""

    def __init__(
        self, config: WanVAEConfig, in_dim: int, out_dim: int, *, halves_space: bool, halves_time: bool
    ) -> None:
        super().__init__()
        self.time_factor, self.space_factor = 2 if halves_time else 1, 2 if halves_space else 1
        dims = [in_dim] + [out_dim] * config.num_res_blocks
        self.resnets = nn.ModuleList([ResidualBlock(a, b, config.dropout) for a, b in itertools.pairwise(dims)])
        self.downsampler = Downsample(out_dim, halves_time=halves_time) if halves_space else None

    def forward(self, x_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Return the next coarser level."""
        hidden = x_BCTHW
        for resnet in self.resnets:
            hidden = resnet(hidden, tape)
        if self.downsampler is not None:
            hidden = self.downsampler(hidden, tape)
        return tape.ops.add_average_down(hidden, x_BCTHW, self.time_factor, self.space_factor)


class UpBlock(nn.Module):
    """A level of the decoder: residual blocks and a step up.

    The step up is named `upsamplers.0` in Wan 2.1 checkpoints and `upsampler` in Wan 2.2 ones, which also have a
    repeating shortcut past the level.
    """

    def __init__(
        self, config: WanVAEConfig, in_dim: int, out_dim: int, *, doubles_space: bool, doubles_time: bool
    ) -> None:
        super().__init__()
        dims = [in_dim] + [out_dim] * (config.num_res_blocks + 1)
        self.resnets = nn.ModuleList([ResidualBlock(a, b, config.dropout) for a, b in itertools.pairwise(dims)])
        self.time_factor = 2 if doubles_time else 1
        self.upsampler: Upsample | None = None
        self.upsamplers: nn.ModuleList | None = None
        if doubles_space and config.is_residual:
            self.upsampler = Upsample(out_dim, out_dim, doubles_time=doubles_time)
        elif doubles_space:
            self.upsamplers = nn.ModuleList([Upsample(out_dim, out_dim // 2, doubles_time=doubles_time)])

    def forward(self, x_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Return the next finer level."""
        hidden = x_BCTHW
        for resnet in self.resnets:
            hidden = resnet(hidden, tape)
        step_up = self.upsampler if self.upsamplers is None else self.upsamplers[0]
        if step_up is not None:
            hidden = step_up(hidden, tape)
        if self.upsampler is None:
            return hidden
        return tape.ops.add_repeat_up(hidden, x_BCTHW, self.time_factor, 2, is_first=tape.is_first)


class Encoder(nn.Module):
    """Patches of pixels to the moments of the latents: means and log variances, before `quant_conv`."""

    def __init__(self, config: WanVAEConfig) -> None:
        super().__init__()
        dims = [config.base_dim * factor for factor in (1, *config.dim_mult)]
        self.conv_in = CausalConv3d(config.in_channels, dims[0], (3, 3, 3))
        self.down_blocks = nn.ModuleList(_down_blocks(config, dims))
        self.mid_block = MidBlock(dims[-1], config.dropout)
        self.norm_out = RMSNorm(dims[-1], 3)
        self.conv_out = CausalConv3d(dims[-1], config.z_dim * 2, (3, 3, 3))

    def forward(self, patches_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Return (B, 2Z, T', H', W')."""
        hidden = self.conv_in.causal(patches_BCTHW, tape)
        for block in self.down_blocks:
            hidden = block(hidden, tape)
        return self.conv_out.causal(self.mid_block(hidden, tape), tape, self.norm_out)


class Decoder(nn.Module):
    """Latents, after `post_quant_conv`, to patches of pixels."""

    def __init__(self, config: WanVAEConfig) -> None:
        super().__init__()
        base_dim = config.decoder_base_dim or config.base_dim
        factors = config.dim_mult[::-1]
        dims = [base_dim * factor for factor in (factors[0], *factors)]
        self.conv_in = CausalConv3d(config.z_dim, dims[0], (3, 3, 3))
        self.mid_block = MidBlock(dims[0], config.dropout)
        self.up_blocks = nn.ModuleList(_up_blocks(config, dims))
        self.norm_out = RMSNorm(dims[-1], 3)
        self.conv_out = CausalConv3d(dims[-1], config.out_channels, (3, 3, 3))

    def forward(self, latents_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Return (B, out_channels, T', H', W')."""
        hidden = self.mid_block(self.conv_in.causal(latents_BCTHW, tape), tape)
        for block in self.up_blocks:
            hidden = block(hidden, tape)
        return self.conv_out.causal(hidden, tape, self.norm_out)


def _down_blocks(config: WanVAEConfig, dims: list[int]) -> list[nn.Module]:
    blocks: list[nn.Module] = []
    for level, (in_dim, out_dim) in enumerate(itertools.pairwise(dims)):
        halves_space = level < len(config.temperal_downsample)
        halves_time = halves_space and config.temperal_downsample[level]
        if config.is_residual:
            blocks.append(
                ResidualDownBlock(config, in_dim, out_dim, halves_space=halves_space, halves_time=halves_time)
            )
            continue
        level_dims = [in_dim] + [out_dim] * config.num_res_blocks
        blocks += [ResidualBlock(a, b, config.dropout) for a, b in itertools.pairwise(level_dims)]
        if halves_space:
            blocks.append(Downsample(out_dim, halves_time=halves_time))
    return blocks


def _up_blocks(config: WanVAEConfig, dims: list[int]) -> list[nn.Module]:
    doublings = config.temperal_downsample[::-1]
    blocks: list[nn.Module] = []
    for level, (in_dim, out_dim) in enumerate(itertools.pairwise(dims)):
        # Wan 2.1's step up halves the channels, so that all levels but the first meet half of what the last one made.
        level_in_dim = in_dim // 2 if level > 0 and not config.is_residual else in_dim
        doubles_space = level < len(dims) - 2
        doubles_time = doubles_space and doublings[level]
        blocks.append(UpBlock(config, level_in_dim, out_dim, doubles_space=doubles_space, doubles_time=doubles_time))
    return blocks
