"""The layers of the Wan video autoencoder. No layer keeps anything between calls: a `Tape` carries the clip's past.

Shapes: B batch rows; C channels; T, H, W frames, rows, columns; N frames of all rows together.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastvideo_wan.models.vae_cache import Tape


class RMSNorm(nn.Module):
    """Root-mean-square norm over channels, which are axis 1.

    Args:
        dim: Channels.
        num_trailing: Axes after the channels; it only shapes the parameter, as checkpoints have it.
    """

    def __init__(self, dim: int, num_trailing: int) -> None:
        super().__init__()
        self.scale = dim**0.5
        self.gamma = nn.Parameter(torch.ones(dim, *[1] * num_trailing))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with every pixel's channel vector scaled to length sqrt(C), times the learned gains."""
        is_half = x.dtype in (torch.float16, torch.bfloat16)
        unit = F.normalize(x.float() if is_half else x, dim=1).to(x.dtype)
        return unit * self.scale * self.gamma


class CausalConv3d(nn.Conv3d):
    """A 3D convolution that sees no later frame.

    Args:
        in_dim: Channels in.
        out_dim: Channels out.
        kernel_size: Frames, rows, columns; the spatial axes keep their size.
        time_stride: Frames from one output to the next.
    """

    def __init__(self, in_dim: int, out_dim: int, kernel_size: tuple[int, int, int], time_stride: int = 1) -> None:
        super().__init__(in_dim, out_dim, kernel_size, stride=(time_stride, 1, 1))

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """Convolve; the caller has put the frames before the chunk in front of it."""
        rows, columns = self.kernel_size[1] // 2, self.kernel_size[2] // 2
        padded = F.pad(x_BCTHW, (columns, columns, rows, rows, 0, 0))
        return F.conv3d(padded, self.weight, self.bias, self.stride)


class ResidualBlock(nn.Module):
    """Norm, SiLU, convolution, twice, added to the input."""

    def __init__(self, in_dim: int, out_dim: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm1 = RMSNorm(in_dim, 3)
        self.conv1 = CausalConv3d(in_dim, out_dim, (3, 3, 3))
        self.norm2 = RMSNorm(out_dim, 3)
        self.conv2 = CausalConv3d(out_dim, out_dim, (3, 3, 3))
        self.conv_shortcut = CausalConv3d(in_dim, out_dim, (1, 1, 1)) if in_dim != out_dim else None

    def forward(self, x_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Return (B, out_dim, T, H, W)."""
        shortcut = x_BCTHW if self.conv_shortcut is None else self.conv_shortcut(x_BCTHW)
        hidden = self.conv1(tape.extend(F.silu(self.norm1(x_BCTHW))))
        hidden = F.silu(self.norm2(hidden))
        if self.training and self.dropout:
            hidden = F.dropout(hidden, self.dropout)
        hidden = self.conv2(tape.extend(hidden))
        return hidden + shortcut


class AttentionBlock(nn.Module):
    """Self-attention with one head among the pixels of each frame, added to the input."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = RMSNorm(dim, 2)
        self.to_qkv = nn.Conv2d(dim, dim * 3, 1)
        self.proj = nn.Conv2d(dim, dim, 1)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """Return the same shape; frames do not see each other."""
        num_rows, dim, num_frames, height, width = x_BCTHW.shape
        frames_NCHW = _frames(x_BCTHW)
        qkv = self.to_qkv(self.norm(frames_NCHW)).reshape(num_rows * num_frames, 1, dim * 3, -1)
        query, key, value = qkv.transpose(2, 3).contiguous().chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(query, key, value)
        mixed = mixed.squeeze(1).transpose(1, 2).reshape(num_rows * num_frames, dim, height, width)
        return _clips(self.proj(mixed), num_rows) + x_BCTHW


class MidBlock(nn.Module):
    """Residual, attention, residual, at the coarsest level."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.attentions = nn.ModuleList([AttentionBlock(dim)])
        self.resnets = nn.ModuleList([ResidualBlock(dim, dim, dropout) for _ in range(2)])

    def forward(self, x_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Return the same shape."""
        hidden = self.resnets[0](x_BCTHW, tape)
        return self.resnets[1](self.attentions[0](hidden), tape)  # type: ignore[no-any-return]


class Downsample(nn.Module):
    """Halves rows and columns and, if asked, time; a clip's first frame never merges with others.

    Args:
        dim: Channels in and out.
        halves_time: Whether later frames are also merged two by two.
    """

    def __init__(self, dim: int, *, halves_time: bool) -> None:
        super().__init__()
        # Index 1 of a sequence: the name that checkpoints have.
        self.resample = nn.ModuleList([nn.Identity(), nn.Conv2d(dim, dim, 3, stride=2)])
        self.time_conv = CausalConv3d(dim, dim, (3, 1, 1), time_stride=2) if halves_time else None

    def forward(self, x_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Return (B, C, T', H/2, W/2); T' counts the first frame once and the others in pairs."""
        frames = F.pad(_frames(x_BCTHW), (0, 1, 0, 1))
        hidden = _clips(self.resample[1](frames), x_BCTHW.shape[0])
        return hidden if self.time_conv is None else self._merge_frames(hidden, self.time_conv, tape)

    def _merge_frames(self, x_BCTHW: Tensor, time_conv: nn.Module, tape: Tape) -> Tensor:
        if not tape.is_first:
            return time_conv(tape.extend(x_BCTHW, 1))  # type: ignore[no-any-return]
        tape.remember(x_BCTHW, 1)
        if x_BCTHW.shape[2] == 1:
            return x_BCTHW
        return torch.cat([x_BCTHW[:, :, :1], time_conv(x_BCTHW)], dim=2)


class Upsample(nn.Module):
    """Doubles rows and columns and, if asked, every frame but a clip's first.

    Args:
        in_dim: Channels in.
        out_dim: Channels out.
        doubles_time: Whether a later frame becomes two.
    """

    def __init__(self, in_dim: int, out_dim: int, *, doubles_time: bool) -> None:
        super().__init__()
        self.resample = nn.ModuleList([nn.Identity(), nn.Conv2d(in_dim, out_dim, 3, padding=1)])
        self.time_conv = CausalConv3d(in_dim, in_dim * 2, (3, 1, 1)) if doubles_time else None

    def forward(self, x_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Return (B, out_dim, T', 2H, 2W); T' counts the first frame once and the others twice."""
        hidden = x_BCTHW if self.time_conv is None else self._double_frames(x_BCTHW, self.time_conv, tape)
        frames = _frames(hidden)
        doubled = F.interpolate(frames.float(), scale_factor=2.0, mode="nearest-exact").to(frames.dtype)
        return _clips(self.resample[1](doubled), x_BCTHW.shape[0])

    def _double_frames(self, x_BCTHW: Tensor, time_conv: nn.Module, tape: Tape) -> Tensor:
        if not tape.is_first:
            return _interleave(time_conv(tape.extend(x_BCTHW)))
        # The first frame goes through alone, and the frames after it do not see it: their past is zeros.
        first, later = x_BCTHW[:, :, :1], x_BCTHW[:, :, 1:]
        if later.shape[2] == 0:
            tape.remember(torch.zeros_like(first).expand(-1, -1, 2, -1, -1), 2)
            return first
        return torch.cat([first, _interleave(time_conv(tape.extend(later)))], dim=2)


class AverageDown(nn.Module):
    """Folds blocks of pixels into channels and averages channel groups: Wan 2.2's shortcut past a level down."""

    def __init__(self, out_dim: int, *, time_factor: int, space_factor: int) -> None:
        super().__init__()
        self.out_dim, self.time_factor, self.space_factor = out_dim, time_factor, space_factor

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """Return (B, out_dim, ceil(T / time_factor), H / space_factor, W / space_factor)."""
        time, space = self.time_factor, self.space_factor
        padded = F.pad(x_BCTHW, (0, 0, 0, 0, -x_BCTHW.shape[2] % time, 0))
        num_rows, dim, num_frames, height, width = padded.shape
        blocks = padded.view(num_rows, dim, num_frames // time, time, height // space, space, width // space, space)
        folded = blocks.permute(0, 1, 3, 5, 7, 2, 4, 6).contiguous()
        return folded.view(num_rows, self.out_dim, -1, *folded.shape[5:]).mean(dim=2)


class RepeatUp(nn.Module):
    """Repeats channels and unfolds them into blocks of pixels: Wan 2.2's shortcut past a level up."""

    def __init__(self, in_dim: int, out_dim: int, *, time_factor: int, space_factor: int) -> None:
        super().__init__()
        self.out_dim, self.time_factor, self.space_factor = out_dim, time_factor, space_factor
        self.num_repeats = out_dim * time_factor * space_factor**2 // in_dim

    def forward(self, x_BCTHW: Tensor, *, is_first: bool) -> Tensor:
        """Return (B, out_dim, T', H * space_factor, W * space_factor); a clip's first frame becomes one frame."""
        time, space = self.time_factor, self.space_factor
        num_rows, _, num_frames, height, width = x_BCTHW.shape
        repeated = x_BCTHW.repeat_interleave(self.num_repeats, dim=1)
        blocks = repeated.view(num_rows, self.out_dim, time, space, space, num_frames, height, width)
        pixels = blocks.permute(0, 1, 5, 2, 6, 3, 7, 4).contiguous()
        pixels = pixels.view(num_rows, self.out_dim, num_frames * time, height * space, width * space)
        return pixels[:, :, time - 1 :] if is_first else pixels


def _interleave(x_BCTHW: Tensor) -> Tensor:
    """Turn two halves of the channels into two frames, one after the other."""
    num_rows, dim, num_frames, height, width = x_BCTHW.shape
    halves = x_BCTHW.reshape(num_rows, 2, dim // 2, num_frames, height, width)
    return torch.stack((halves[:, 0], halves[:, 1]), dim=3).reshape(num_rows, -1, num_frames * 2, height, width)


def _frames(x_BCTHW: Tensor) -> Tensor:
    """Line up the frames of all rows: (B * T, C, H, W)."""
    return x_BCTHW.transpose(1, 2).reshape(-1, x_BCTHW.shape[1], *x_BCTHW.shape[3:])


def _clips(frames_NCHW: Tensor, num_rows: int) -> Tensor:
    """Undo `_frames`: (B, C, T, H, W)."""
    return frames_NCHW.view(num_rows, -1, *frames_NCHW.shape[1:]).transpose(1, 2)
