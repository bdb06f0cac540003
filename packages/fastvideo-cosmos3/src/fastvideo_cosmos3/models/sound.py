"""The sound decoder: latents to a waveform. Encoders of checkpoints are left aside: no task takes sound in.

Shape letters: B clips; C channels; T latent frames; N samples.

Source: Evans et al. 2024, arXiv:2402.04825 (the decoder's make); Ziyin et al. 2020, arXiv:2006.08195 (snake).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from fastvideo_cosmos3.models.config_file import parse_config

__all__ = ["SOUND_CLASS", "SoundConfig", "SoundDecoder", "is_decoder_name"]

Count = Annotated[int, Field(ge=1)]

SOUND_CLASS = "Cosmos3AVAEAudioTokenizer"


class SoundConfig(BaseModel):
    """What fixes the decoder's parameters, of a `sound_tokenizer/config.json`; the encoder's keys may say anything.

    Attributes:
        sampling_rate: Samples a second.
        vocoder_input_dim: Channels of the latents.
        dec_dim: Channels of the decoder's finest level.
        dec_c_mults: Channels of each level, in multiples of `dec_dim`.
        dec_strides: Steps up of each level, the finest first.
        dec_out_channels: Channels of the waveform.
        hop_size: Samples a latent frame; None takes the product of the steps.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    model_type: Literal["autoencoder_v2"] = "autoencoder_v2"
    sampling_rate: Count = 48000
    vocoder_input_dim: Count = 64
    dec_dim: Count = 320
    dec_c_mults: tuple[Count, ...] = (1, 2, 4, 8, 16)
    dec_strides: tuple[Count, ...] = (2, 4, 5, 6, 8)
    dec_out_channels: Literal[1, 2] = 2
    hop_size: Count | None = None
    dec_type: Literal["oobleck"] = "oobleck"
    dec_use_snake: Literal[True] = True
    dec_final_tanh: Literal[False] = False
    dec_anti_aliasing: Literal[False] = False
    dec_use_nearest_upsample: Literal[False] = False
    dec_use_tanh_at_final: Literal[False] = False
    activation: Literal["snakebeta"] = "snakebeta"
    snake_logscale: Literal[True] = True
    anti_aliasing: Literal[False] = False
    latent_mean: None = None
    latent_std: None = None

    @model_validator(mode="after")
    def _levels_match(self) -> Self:
        if len(self.dec_c_mults) != len(self.dec_strides):
            raise ValueError("dec_c_mults and dec_strides need one entry a level")
        return self

    @classmethod
    def from_diffusers(cls, raw: Mapping[str, Any]) -> Self:
        """Check the contents of a `sound_tokenizer/config.json`.

        Raises:
            CheckpointError: The file describes another class, or a decoder that is not supported.
        """
        known = {key: value for key, value in raw.items() if key in cls.model_fields}
        named = {**known, "_class_name": raw.get("_class_name", SOUND_CLASS)}
        return parse_config(cls, named, label="sound", class_name=SOUND_CLASS)

    @property
    def hop(self) -> int:
        """Samples a latent frame."""
        return self.hop_size or math.prod(self.dec_strides)

    def latent_frames(self, num_frames: int, fps: float) -> int:
        """Return the latent frames of sound for a video."""
        num_samples = int(num_frames / fps * self.sampling_rate)
        return -(-num_samples // self.hop)


def is_decoder_name(name: str) -> bool:
    """Tell whether a tensor of a sound checkpoint is the decoder's."""
    return name.startswith("decoder.")


def _scaled(direction: Tensor, length: Tensor) -> Tensor:
    """Return a weight of a direction and a length; torch's own kernel, whose bits the reference has."""
    return torch._weight_norm(direction, length, 0)  # noqa: SLF001 - the public way keeps a hook on the module


class _Conv(nn.Module):
    """A convolution in time whose weight is a direction and a length for each channel of its first axis.

    Args:
        in_dim: Channels in.
        out_dim: Channels out.
        kernel: Samples that it sees.
        dilation: Distance between them.
        has_bias: Whether something is added.
    """

    def __init__(self, in_dim: int, out_dim: int, kernel: int, *, dilation: int = 1, has_bias: bool = True) -> None:
        super().__init__()
        self.weight_v = nn.Parameter(torch.randn(out_dim, in_dim, kernel) / math.sqrt(in_dim * kernel))
        self.weight_g = nn.Parameter(self.weight_v.detach().flatten(1).norm(dim=1).view(-1, 1, 1))
        self.bias = nn.Parameter(torch.zeros(out_dim)) if has_bias else None
        self.dilation = dilation

    def forward(self, x_BCT: Tensor) -> Tensor:
        weight = _scaled(self.weight_v, self.weight_g)
        padding = self.dilation * (weight.shape[2] // 2)
        return F.conv1d(x_BCT, weight, self.bias, padding=padding, dilation=self.dilation)


class _ConvUp(nn.Module):
    """A transposed convolution that makes `stride` samples of one; its weight is kept as that of `_Conv`."""

    def __init__(self, in_dim: int, out_dim: int, stride: int) -> None:
        super().__init__()
        self.weight_v = nn.Parameter(torch.randn(in_dim, out_dim, 2 * stride) / math.sqrt(2 * in_dim))
        self.weight_g = nn.Parameter(self.weight_v.detach().flatten(1).norm(dim=1).view(-1, 1, 1))
        self.bias = nn.Parameter(torch.zeros(out_dim))
        self.stride = stride

    def forward(self, x_BCT: Tensor) -> Tensor:
        weight = _scaled(self.weight_v, self.weight_g)
        padding, extra = math.ceil(self.stride / 2), self.stride % 2
        return F.conv_transpose1d(x_BCT, weight, self.bias, self.stride, padding, extra)


class _Snake(nn.Module):
    """x + sin²(a x) / b, with a and b in logarithms, for each channel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(1, dim, 1))
        self.beta = nn.Parameter(torch.zeros(1, dim, 1))

    def forward(self, x_BCT: Tensor) -> Tensor:
        return x_BCT + (self.beta.exp() + 1e-9).reciprocal() * torch.sin(self.alpha.exp() * x_BCT).pow(2)


class _ResidualUnit(nn.Module):
    def __init__(self, dim: int, dilation: int) -> None:
        super().__init__()
        self.snake1 = _Snake(dim)
        self.conv1 = _Conv(dim, dim, 7, dilation=dilation)
        self.snake2 = _Snake(dim)
        self.conv2 = _Conv(dim, dim, 1)

    def forward(self, x_BCT: Tensor) -> Tensor:
        return x_BCT + self.conv2(self.snake2(self.conv1(self.snake1(x_BCT))))


class _Level(nn.Module):
    def __init__(self, in_dim: int, out_dim: int, stride: int) -> None:
        super().__init__()
        self.snake1 = _Snake(in_dim)
        self.conv_t1 = _ConvUp(in_dim, out_dim, stride)
        self.res_unit1 = _ResidualUnit(out_dim, 1)
        self.res_unit2 = _ResidualUnit(out_dim, 3)
        self.res_unit3 = _ResidualUnit(out_dim, 9)

    def forward(self, x_BCT: Tensor) -> Tensor:
        hidden = self.conv_t1(self.snake1(x_BCT))
        return self.res_unit3(self.res_unit2(self.res_unit1(hidden)))


class _Decoder(nn.Module):
    def __init__(self, config: SoundConfig) -> None:
        super().__init__()
        dims = [config.dec_dim * factor for factor in (1, *config.dec_c_mults)][::-1]
        self.conv1 = _Conv(config.vocoder_input_dim, dims[0], 7)
        self.block = nn.ModuleList(
            _Level(*pair, stride)
            for pair, stride in zip(itertools.pairwise(dims), config.dec_strides[::-1], strict=True)
        )
        self.snake1 = _Snake(config.dec_dim)
        self.conv2 = _Conv(config.dec_dim, config.dec_out_channels, 7, has_bias=False)

    def forward(self, latents_BCT: Tensor) -> Tensor:
        hidden = self.conv1(latents_BCT)
        for level in self.block:
            hidden = level(hidden)
        return self.conv2(self.snake1(hidden))


class SoundDecoder(nn.Module):
    """Turns latents into a waveform.

    Args:
        config: The decoder's shape.
    """

    def __init__(self, config: SoundConfig) -> None:
        super().__init__()
        self.config = config
        self.decoder = _Decoder(config)

    def forward(self, latents_BCT: Tensor) -> Tensor:
        """Return samples in [-1, 1], (B, channels, T * hop)."""
        return self.decoder(latents_BCT).clamp(-1.0, 1.0)
