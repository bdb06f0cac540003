"""The VAE's arithmetic in the reference's order of operations and memory layout, so that its bits come out.

Same names and meanings as `vae_fast`; `VAEOps` lists them.

Shapes: B batch rows; C, O channels in and out; T, H, W frames, rows, columns; K frames of history; N frames of all
rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fastvideo_wan.models import vae_kernels as kernels


def norm(x: Tensor, gamma: Tensor) -> Tensor:
    """Scale every pixel's channel vector (axis 1) to length sqrt(C), times the learned gains."""
    is_half = x.dtype in (torch.float16, torch.bfloat16)
    unit = F.normalize(x.float() if is_half else x, dim=1).to(x.dtype)
    return unit * x.shape[1] ** 0.5 * gamma


def after(past_BCKHW: Tensor | None, x_BCTHW: Tensor, num_frames: int) -> tuple[Tensor, Tensor]:
    """Put the past in front of a chunk, and zeros before it where it is short.

    Args:
        past_BCKHW: Up to `num_frames` frames before the chunk; None or no frames if the clip starts here.
        x_BCTHW: The chunk.
        num_frames: Frames of history wanted.

    Returns:
        (B, C, num_frames + T, H, W), and the past of the next chunk, which may share memory. Where frames lie in
        memory decides how a convolution sums them, hence the reference's choice of what to join in which order.
    """
    last = x_BCTHW[:, :, -num_frames:]
    if past_BCKHW is None:
        return F.pad(x_BCTHW, (0, 0, 0, 0, num_frames, 0)), last
    num_past = past_BCKHW.shape[2]
    joined = torch.cat([past_BCKHW, x_BCTHW], dim=2) if num_past else x_BCTHW
    if last.shape[2] < num_frames:
        last = torch.cat([past_BCKHW[:, :, -1:] if num_past else torch.zeros_like(last), last], dim=2)
    return F.pad(joined, (0, 0, 0, 0, num_frames - num_past, 0)), last


def norm_silu_after(
    past_BCKHW: Tensor | None, x_BCTHW: Tensor, gamma: Tensor, num_frames: int
) -> tuple[Tensor, Tensor]:
    """Norm and SiLU of a chunk, behind the past, which has had them already; returns what `after` returns."""
    return after(past_BCKHW, F.silu(norm(x_BCTHW, gamma)), num_frames)


def no_past(x_BCTHW: Tensor, _num_frames: int) -> Tensor:
    """Return what to remember for a convolution that has seen no frame yet."""
    return x_BCTHW[:, :, :0]


def conv3d(x_BCTHW: Tensor, weight: Tensor, bias: Tensor, time_stride: int, _starts_clip: bool) -> Tensor:
    """Convolve; rows and columns are padded to keep their size, time is not padded."""
    rows, columns = weight.shape[3] // 2, weight.shape[4] // 2
    padded = F.pad(x_BCTHW, (columns, columns, rows, rows, 0, 0))
    if time_stride == 1 and kernels.is_matrix_product(padded, weight, bias):
        return kernels.conv3d_as_product(padded, weight, bias)
    return F.conv3d(padded, weight, bias, (time_stride, 1, 1))


def attend(x_BCTHW: Tensor, gamma: Tensor, qkv: tuple[Tensor, Tensor], proj: tuple[Tensor, Tensor]) -> Tensor:
    """Norm, one-headed attention among the pixels of each frame, projection, added to the input.

    Args:
        x_BCTHW: The frames, which do not see each other.
        gamma: Gains of the norm.
        qkv: Weight and bias of the 1x1 convolution to queries, keys and values.
        proj: Weight and bias of the 1x1 convolution of the result.
    """
    num_rows, dim, num_frames, height, width = x_BCTHW.shape
    packed = F.conv2d(norm(to_frames(x_BCTHW), gamma), *qkv).reshape(num_rows * num_frames, 1, dim * 3, -1)
    query, key, value = packed.transpose(2, 3).contiguous().chunk(3, dim=-1)
    mixed = F.scaled_dot_product_attention(query, key, value)
    mixed = mixed.squeeze(1).transpose(1, 2).reshape(num_rows * num_frames, dim, height, width)
    return to_clips(F.conv2d(mixed, *proj), num_rows) + x_BCTHW


def halve_space(x_BCTHW: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve every frame by 3x3 with stride 2, padded by one zero row below and one zero column on the right."""
    frames = F.pad(to_frames(x_BCTHW), (0, 1, 0, 1))
    return to_clips(F.conv2d(frames, weight, bias, stride=2), x_BCTHW.shape[0])


def double_space(x_BCTHW: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Repeat every pixel to a square of four, then convolve every frame by 3x3: (B, O, T, 2H, 2W)."""
    doubled = F.interpolate(to_frames(x_BCTHW), scale_factor=2.0, mode="nearest-exact")
    return to_clips(F.conv2d(doubled, weight, bias, padding=1), x_BCTHW.shape[0])


def interleave(x_BCTHW: Tensor) -> Tensor:
    """Turn the two halves of the channels into two frames, one after the other: (B, C / 2, 2T, H, W)."""
    num_rows, dim, num_frames, height, width = x_BCTHW.shape
    halves = x_BCTHW.reshape(num_rows, 2, dim // 2, num_frames, height, width)
    return torch.stack((halves[:, 0], halves[:, 1]), dim=3).reshape(num_rows, -1, num_frames * 2, height, width)


def add(y: Tensor, x: Tensor) -> Tensor:
    """Return y + x."""
    return y + x


def add_average_down(y: Tensor, x_BCTHW: Tensor, time_factor: int, space_factor: int) -> Tensor:
    """Add to `y` the blocks of `x`, folded into channels and averaged in groups of channels; see `average_down`."""
    return y + average_down(x_BCTHW, y.shape[1], time_factor, space_factor)


def add_repeat_up(y: Tensor, x_BCTHW: Tensor, time_factor: int, space_factor: int, *, is_first: bool) -> Tensor:
    """Add to `y` the channels of `x`, repeated and unfolded into blocks of pixels; see `repeat_up`."""
    up = repeat_up(x_BCTHW, y.shape[1], time_factor, space_factor)
    return y + (up[:, :, time_factor - 1 :] if is_first else up)


def average_down(x_BCTHW: Tensor, out_dim: int, time: int, space: int) -> Tensor:
    """Fold blocks of `time` x `space` x `space` pixels into channels, then average neighbouring channels.

    Time is padded with zero frames in front to a multiple of `time`: a clip's first frame shares its block with zeros.

    Returns:
        (B, out_dim, ceil(T / time), H / space, W / space).
    """
    padded = F.pad(x_BCTHW, (0, 0, 0, 0, -x_BCTHW.shape[2] % time, 0))
    num_rows, dim, num_frames, height, width = padded.shape
    blocks = padded.reshape(num_rows, dim, num_frames // time, time, height // space, space, width // space, space)
    folded = blocks.permute(0, 1, 3, 5, 7, 2, 4, 6).contiguous()
    return folded.view(num_rows, out_dim, -1, *folded.shape[5:]).mean(dim=2)


def repeat_up(x_BCTHW: Tensor, out_dim: int, time: int, space: int) -> Tensor:
    """Repeat channels, then unfold them into blocks of `time` x `space` x `space` pixels.

    Returns:
        (B, out_dim, T * time, H * space, W * space).
    """
    num_rows, dim, num_frames, height, width = x_BCTHW.shape
    repeated = x_BCTHW.repeat_interleave(out_dim * time * space**2 // dim, dim=1)
    blocks = repeated.view(num_rows, out_dim, time, space, space, num_frames, height, width)
    pixels = blocks.permute(0, 1, 5, 2, 6, 3, 7, 4).contiguous()
    return pixels.view(num_rows, out_dim, num_frames * time, height * space, width * space)


def to_frames(x_BCTHW: Tensor) -> Tensor:
    """Line up the frames of all rows: (N, C, H, W)."""
    return x_BCTHW.transpose(1, 2).reshape(-1, x_BCTHW.shape[1], *x_BCTHW.shape[3:])


def to_clips(frames_NCHW: Tensor, num_rows: int) -> Tensor:
    """Undo `to_frames`: (B, C, T, H, W)."""
    return frames_NCHW.view(num_rows, -1, *frames_NCHW.shape[1:]).transpose(1, 2)
