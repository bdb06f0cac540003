"""The layers of the video autoencoder. None keeps anything between calls: a `Tape` carries the clip's past.

Where frames lie in memory decides how a convolution adds them up, so that the order of joining and padding here is the
reference's, and float32 results have its bits.

Shape letters: B clips; C channels; T, H, W frames, rows, columns; N frames of all clips; K frames of the past.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastvideo_cosmos3.models.vae_config import VideoVAEConfig

__all__ = ["CausalConv3d", "Decoder", "Encoder", "Tape"]

_PAST_FRAMES = 2
"""Frames before the current one that a temporal kernel of three reads."""


class Tape:
    """One pass through the encoder or the decoder: hands out what each temporal convolution saw last, and collects it.

    Args:
        slots: What the chunk before left behind; empty before a clip's first chunk.
    """

    __slots__ = ("_index", "_old", "is_first", "slots")

    def __init__(self, slots: tuple[Tensor, ...]) -> None:
        self._old = slots
        self._index = 0
        self.is_first = not slots
        self.slots: list[Tensor] = []

    def past(self) -> Tensor | None:
        """Return what the next temporal convolution saw last; None at a clip's start."""
        if self.is_first:
            return None
        self._index += 1
        return self._old[self._index - 1]

    def remember(self, frames_BCKHW: Tensor) -> None:
        """Keep a copy of what a temporal convolution saw last."""
        self.slots.append(frames_BCKHW.clone())


class _Norm(nn.Module):
    """Scales every pixel's channels to length sqrt(C), times learned gains."""

    def __init__(self, dim: int, num_trailing: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim, *[1] * num_trailing))

    def forward(self, x: Tensor) -> Tensor:
        unit = F.normalize(x if x.dtype == torch.float32 else x.float(), dim=1).to(x.dtype)
        return unit * x.shape[1] ** 0.5 * self.gamma


class CausalConv3d(nn.Conv3d):
    """A convolution that sees no later frame; rows and columns keep their size.

    Args:
        in_dim: Channels in.
        out_dim: Channels out.
        kernel: Frames, rows, columns.
        time_stride: Frames from one output to the next.
    """

    def __init__(self, in_dim: int, out_dim: int, kernel: tuple[int, int, int], time_stride: int = 1) -> None:
        super().__init__(in_dim, out_dim, kernel, stride=(time_stride, 1, 1))

    def forward(self, x: Tensor, num_zeros: int = 0) -> Tensor:
        """Convolve frames that have their past in front; `num_zeros` frames of zeros come before them."""
        rows, columns = self.kernel_size[1] // 2, self.kernel_size[2] // 2
        return super().forward(F.pad(x, (columns, columns, rows, rows, num_zeros, 0)))

    def causal(self, x_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Convolve a chunk behind its past, and remember its end."""
        past = tape.past()
        last = x_BCTHW[:, :, -_PAST_FRAMES:]
        if past is None:
            tape.remember(last)
            return self(x_BCTHW, _PAST_FRAMES)
        joined = torch.cat([past, x_BCTHW], dim=2) if past.shape[2] else x_BCTHW
        if last.shape[2] < _PAST_FRAMES:
            before = past[:, :, -1:] if past.shape[2] else torch.zeros_like(last)
            last = torch.cat([before, last], dim=2)
        tape.remember(last)
        return self(joined, _PAST_FRAMES - past.shape[2])


class _Residual(nn.Module):
    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.norm1 = _Norm(in_dim, 3)
        self.conv1 = CausalConv3d(in_dim, out_dim, (3, 3, 3))
        self.norm2 = _Norm(out_dim, 3)
        self.conv2 = CausalConv3d(out_dim, out_dim, (3, 3, 3))
        self.conv_shortcut = CausalConv3d(in_dim, out_dim, (1, 1, 1)) if in_dim != out_dim else None

    def forward(self, x: Tensor, tape: Tape) -> Tensor:
        shortcut = x if self.conv_shortcut is None else self.conv_shortcut(x)
        hidden = self.conv1.causal(F.silu(self.norm1(x)), tape)
        return self.conv2.causal(F.silu(self.norm2(hidden)), tape) + shortcut


class _Attention(nn.Module):
    """One-headed attention among the pixels of each frame, added to the input."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = _Norm(dim, 2)
        self.to_qkv = nn.Conv2d(dim, dim * 3, 1)
        self.proj = nn.Conv2d(dim, dim, 1)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        frames_NCHW = _to_frames(x_BCTHW)
        packed = self.to_qkv(self.norm(frames_NCHW)).flatten(2).unsqueeze(1)
        query, key, value = packed.transpose(2, 3).contiguous().chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(query, key, value)
        mixed = mixed.squeeze(1).transpose(1, 2).reshape(frames_NCHW.shape)
        return _to_clips(self.proj(mixed), x_BCTHW.shape[0]) + x_BCTHW


class _Middle(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attentions = nn.ModuleList([_Attention(dim)])
        self.resnets = nn.ModuleList([_Residual(dim, dim), _Residual(dim, dim)])

    def forward(self, x: Tensor, tape: Tape) -> Tensor:
        return self.resnets[1](self.attentions[0](self.resnets[0](x, tape)), tape)


class _StepDown(nn.Module):
    """Halves rows and columns and, if asked, time; a clip's first frame merges with no other."""

    def __init__(self, dim: int, *, halves_time: bool) -> None:
        super().__init__()
        # Checkpoints name the convolution by its place behind a padding without parameters.
        self.resample = nn.ModuleDict({"1": nn.Conv2d(dim, dim, 3, stride=2)})
        self.time_conv = CausalConv3d(dim, dim, (3, 1, 1), time_stride=2) if halves_time else None

    def forward(self, x_BCTHW: Tensor, tape: Tape) -> Tensor:
        frames = self.resample["1"](F.pad(_to_frames(x_BCTHW), (0, 1, 0, 1)))
        hidden = _to_clips(frames, x_BCTHW.shape[0])
        if self.time_conv is None:
            return hidden
        past = tape.past()
        tape.remember(hidden[:, :, -1:])
        return hidden if past is None else self.time_conv(torch.cat([past, hidden], dim=2))


class _StepUp(nn.Module):
    """Doubles rows and columns and, if asked, every frame but a clip's first."""

    def __init__(self, dim: int, *, doubles_time: bool) -> None:
        super().__init__()
        self.resample = nn.ModuleDict({"1": nn.Conv2d(dim, dim, 3, padding=1)})
        self.time_conv = CausalConv3d(dim, dim * 2, (3, 1, 1)) if doubles_time else None

    def forward(self, x_BCTHW: Tensor, tape: Tape) -> Tensor:
        hidden = x_BCTHW
        if self.time_conv is not None and tape.is_first:
            tape.remember(x_BCTHW[:, :, :0])  # what follows does not see the first frame: its past is zeros
        elif self.time_conv is not None:
            hidden = _interleave(self.time_conv.causal(x_BCTHW, tape))
        doubled = F.interpolate(_to_frames(hidden), scale_factor=2.0, mode="nearest-exact")
        return _to_clips(self.resample["1"](doubled), x_BCTHW.shape[0])


class _LevelDown(nn.Module):
    def __init__(self, dims: list[int], *, halves_space: bool, halves_time: bool) -> None:
        super().__init__()
        self.out_dim, self.factors = dims[-1], (2 if halves_time else 1, 2 if halves_space else 1)
        self.resnets = nn.ModuleList([_Residual(*pair) for pair in itertools.pairwise(dims)])
        self.downsampler = _StepDown(dims[-1], halves_time=halves_time) if halves_space else None

    def forward(self, x: Tensor, tape: Tape) -> Tensor:
        hidden = x
        for resnet in self.resnets:
            hidden = resnet(hidden, tape)
        if self.downsampler is not None:
            hidden = self.downsampler(hidden, tape)
        return hidden + _average_down(x, self.out_dim, *self.factors)


class _LevelUp(nn.Module):
    def __init__(self, dims: list[int], *, doubles_space: bool, doubles_time: bool) -> None:
        super().__init__()
        self.out_dim, self.time_factor = dims[-1], 2 if doubles_time else 1
        self.resnets = nn.ModuleList([_Residual(*pair) for pair in itertools.pairwise(dims)])
        self.upsampler = _StepUp(dims[-1], doubles_time=doubles_time) if doubles_space else None

    def forward(self, x: Tensor, tape: Tape) -> Tensor:
        hidden = x
        for resnet in self.resnets:
            hidden = resnet(hidden, tape)
        if self.upsampler is None:
            return hidden
        shortcut = _repeat_up(x, self.out_dim, self.time_factor, 2)
        return self.upsampler(hidden, tape) + (shortcut[:, :, self.time_factor - 1 :] if tape.is_first else shortcut)


class Encoder(nn.Module):
    """Patches of pixels to moments: means and log variances, before `quant_conv`."""

    def __init__(self, config: VideoVAEConfig) -> None:
        super().__init__()
        dims = [config.base_dim * factor for factor in (1, *config.dim_mult)]
        num_steps = len(config.temperal_downsample)
        self.conv_in = CausalConv3d(config.in_channels, dims[0], (3, 3, 3))
        self.down_blocks = nn.ModuleList(
            _LevelDown(
                [dims[level], *[dims[level + 1]] * config.num_res_blocks],
                halves_space=level < num_steps,
                halves_time=level < num_steps and config.temperal_downsample[level],
            )
            for level in range(len(dims) - 1)
        )
        self.mid_block = _Middle(dims[-1])
        self.norm_out = _Norm(dims[-1], 3)
        self.conv_out = CausalConv3d(dims[-1], config.z_dim * 2, (3, 3, 3))

    def forward(self, patches_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Return (B, 2 z_dim, T', H', W')."""
        hidden = self.conv_in.causal(patches_BCTHW, tape)
        for block in self.down_blocks:
            hidden = block(hidden, tape)
        return self.conv_out.causal(F.silu(self.norm_out(self.mid_block(hidden, tape))), tape)


class Decoder(nn.Module):
    """Latents, after `post_quant_conv`, to patches of pixels."""

    def __init__(self, config: VideoVAEConfig) -> None:
        super().__init__()
        base, factors = config.decoder_base_dim or config.base_dim, config.dim_mult[::-1]
        dims = [base * factor for factor in (factors[0], *factors)]
        doublings = config.temperal_downsample[::-1]
        self.conv_in = CausalConv3d(config.z_dim, dims[0], (3, 3, 3))
        self.mid_block = _Middle(dims[0])
        self.up_blocks = nn.ModuleList(
            _LevelUp(
                [dims[level], *[dims[level + 1]] * (config.num_res_blocks + 1)],
                doubles_space=level < len(doublings),
                doubles_time=level < len(doublings) and doublings[level],
            )
            for level in range(len(dims) - 1)
        )
        self.norm_out = _Norm(dims[-1], 3)
        self.conv_out = CausalConv3d(dims[-1], config.out_channels, (3, 3, 3))

    def forward(self, latents_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Return (B, out_channels, T', H', W')."""
        hidden = self.mid_block(self.conv_in.causal(latents_BCTHW, tape), tape)
        for block in self.up_blocks:
            hidden = block(hidden, tape)
        return self.conv_out.causal(F.silu(self.norm_out(hidden)), tape)


def _interleave(x_BCTHW: Tensor) -> Tensor:
    """Turn the two halves of the channels into two frames, one after the other."""
    num_clips, dim, num_frames, height, width = x_BCTHW.shape
    halves = x_BCTHW.reshape(num_clips, 2, dim // 2, num_frames, height, width)
    return torch.stack((halves[:, 0], halves[:, 1]), dim=3).reshape(num_clips, -1, num_frames * 2, height, width)


def _average_down(x_BCTHW: Tensor, out_dim: int, time: int, space: int) -> Tensor:
    """Fold blocks of pixels into channels and average neighbouring channels; short time is padded in front."""
    padded = F.pad(x_BCTHW, (0, 0, 0, 0, -x_BCTHW.shape[2] % time, 0))
    num_clips, dim, num_frames, height, width = padded.shape
    blocks = padded.reshape(num_clips, dim, num_frames // time, time, height // space, space, width // space, space)
    folded = blocks.permute(0, 1, 3, 5, 7, 2, 4, 6).contiguous()
    return folded.view(num_clips, out_dim, -1, *folded.shape[5:]).mean(dim=2)


def _repeat_up(x_BCTHW: Tensor, out_dim: int, time: int, space: int) -> Tensor:
    """Repeat channels and unfold them into blocks of pixels."""
    num_clips, dim, num_frames, height, width = x_BCTHW.shape
    repeated = x_BCTHW.repeat_interleave(out_dim * time * space**2 // dim, dim=1)
    blocks = repeated.view(num_clips, out_dim, time, space, space, num_frames, height, width)
    pixels = blocks.permute(0, 1, 5, 2, 6, 3, 7, 4).contiguous()
    return pixels.view(num_clips, out_dim, num_frames * time, height * space, width * space)


def _to_frames(x_BCTHW: Tensor) -> Tensor:
    return x_BCTHW.transpose(1, 2).reshape(-1, x_BCTHW.shape[1], *x_BCTHW.shape[3:])


def _to_clips(frames_NCHW: Tensor, num_clips: int) -> Tensor:
    return frames_NCHW.view(num_clips, -1, *frames_NCHW.shape[1:]).transpose(1, 2)
