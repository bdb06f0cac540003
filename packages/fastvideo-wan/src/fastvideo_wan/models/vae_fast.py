"""The VAE's arithmetic, arranged to be fast: equal to `vae_exact` but for rounding.

Tensors keep the logical order (B, C, T, H, W) and lie in memory with channels last, where norms read contiguous
vectors and the convolution kernels need no reordering. Without gradients, results are written in place into buffers
that this module made; with gradients, nothing is.

Shapes: B batch rows; C, O channels in and out; T, H, W frames, rows, columns; K frames of history; N frames of all
rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fastvideo_wan.models import vae_exact
from fastvideo_wan.models import vae_kernels as kernels
from fastvideo_wan.models.vae_kernels import channels_last, channels_second
from fastvideo_wan.models.vae_time_filter import conv_three_frames, pays_to_filter

SMALLEST_NORM = 1e-12
"""Shorter channel vectors are divided by this instead of by their length, as in the reference."""


def after(past_BCKHW: Tensor | None, x_BCTHW: Tensor, num_frames: int) -> tuple[Tensor, Tensor]:
    """See `vae_exact.after`; the result lies channels last."""
    past = _whole_past(past_BCKHW, x_BCTHW, num_frames)
    joined = channels_second(torch.cat([channels_last(past), channels_last(x_BCTHW)], dim=1))
    return joined, joined[:, :, -num_frames:]


def norm_silu_after(
    past_BCKHW: Tensor | None, x_BCTHW: Tensor, gamma: Tensor, num_frames: int
) -> tuple[Tensor, Tensor]:
    """See `vae_exact.norm_silu_after`; one buffer, written once."""
    past = _whole_past(past_BCKHW, x_BCTHW, num_frames)
    joined: Tensor
    if torch.is_grad_enabled():
        joined = _NormSiluAfter.apply(past, x_BCTHW, gamma)  # type: ignore[no-untyped-call]
    else:
        joined = _norm_silu_after(past, x_BCTHW, gamma)
    return joined, joined[:, :, -num_frames:]


def no_past(x_BCTHW: Tensor, num_frames: int) -> Tensor:
    """See `vae_exact.no_past`; zeros, so that clips of any age stack."""
    return torch.zeros_like(x_BCTHW[:, :, :1]).expand(-1, -1, num_frames, -1, -1)


def conv3d(x_BCTHW: Tensor, weight: Tensor, bias: Tensor, time_stride: int, starts_clip: bool) -> Tensor:
    """See `vae_exact.conv3d`; behind zeros a lone frame meets the last tap only, larger chunks are filtered in time."""
    num_past = weight.shape[2] - 1
    if starts_clip and x_BCTHW.shape[2] == num_past + 1:
        return kernels.conv3d(x_BCTHW[:, :, num_past:], weight[:, :, num_past:], bias)
    if time_stride == 1 and pays_to_filter(x_BCTHW, weight):
        return conv_three_frames(x_BCTHW, weight, bias, starts_clip=starts_clip)
    return kernels.conv3d(x_BCTHW, weight, bias, time_stride)


def attend(x_BCTHW: Tensor, gamma: Tensor, qkv: tuple[Tensor, Tensor], proj: tuple[Tensor, Tensor]) -> Tensor:
    """See `vae_exact.attend`."""
    num_rows, dim, num_frames, height, width = x_BCTHW.shape
    x_last = channels_last(x_BCTHW).reshape(num_rows * num_frames, 1, height * width, dim)
    is_half = x_last.dtype in (torch.float16, torch.bfloat16)
    unit = F.normalize(x_last.float() if is_half else x_last, dim=-1).to(x_last.dtype) * (gamma.flatten() * dim**0.5)
    query, key, value = F.linear(unit, qkv[0].flatten(1), qkv[1]).chunk(3, dim=-1)
    mixed = F.scaled_dot_product_attention(query, key, value)
    result = x_last + F.linear(mixed, proj[0].flatten(1), proj[1])
    return channels_second(result.view(num_rows, num_frames, height, width, dim))


def halve_space(x_BCTHW: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """See `vae_exact.halve_space`."""
    return _to_clips(kernels.conv2d(F.pad(_to_frames(x_BCTHW), (0, 1, 0, 1)), weight, bias, stride=2), x_BCTHW.shape[0])


def double_space(x_BCTHW: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """See `vae_exact.double_space`.

    Repeated pixels meet several taps of the kernel, so that summing those taps first leaves 2x2 kernels on the small
    frames, one for each of the four positions in a square: 16 products a pixel instead of 36.
    """
    frames = _to_frames(x_BCTHW)
    if torch.is_grad_enabled():
        doubled = F.interpolate(frames, scale_factor=2.0, mode="nearest-exact")
        return _to_clips(kernels.conv2d(doubled, weight, bias, padding=1), x_BCTHW.shape[0])
    num_frames, _, height, width = frames.shape
    out_dim = weight.shape[0]
    sums = kernels.conv2d(frames, _square_kernels(weight), bias.repeat(4), padding=1)
    squares = sums.permute(0, 2, 3, 1).unflatten(-1, (2, 2, out_dim))
    result = sums.new_empty(num_frames, height, 2, width, 2, out_dim)
    for row in range(2):
        for column in range(2):
            result[:, :, row, :, column] = squares[:, row : row + height, column : column + width, row, column]
    return _to_clips(result.view(num_frames, height * 2, width * 2, out_dim).permute(0, 3, 1, 2), x_BCTHW.shape[0])


def interleave(x_BCTHW: Tensor) -> Tensor:
    """See `vae_exact.interleave`."""
    halves = channels_last(x_BCTHW).unflatten(-1, (2, -1))
    return channels_second(halves.permute(0, 1, 4, 2, 3, 5).flatten(1, 2))


def add(y: Tensor, x: Tensor) -> Tensor:
    """Return y + x; without gradients `y` is overwritten, so it must be the caller's own."""
    return y + x if torch.is_grad_enabled() else y.add_(x)


def add_average_down(y: Tensor, x_BCTHW: Tensor, time_factor: int, space_factor: int) -> Tensor:
    """See `vae_exact.add_average_down`; may overwrite `y`."""
    return add(y, vae_exact.average_down(x_BCTHW, y.shape[1], time_factor, space_factor))


def add_repeat_up(y: Tensor, x_BCTHW: Tensor, time_factor: int, space_factor: int, *, is_first: bool) -> Tensor:
    """See `vae_exact.add_repeat_up`; a broadcast sum, for blocks that the channels divide. May overwrite `y`."""
    num_rows, dim, num_frames, height, width = x_BCTHW.shape
    num_channels = dim // y.shape[1]
    if num_channels * y.shape[1] != dim or num_channels not in (1, 2, 4, 8) or max(time_factor, space_factor) > 2:
        return vae_exact.add_repeat_up(y, x_BCTHW, time_factor, space_factor, is_first=is_first)
    # An output channel's block is filled by its own few input channels: frames first, then rows, then columns.
    in_time = min(num_channels, time_factor)
    in_rows = min(num_channels // in_time, space_factor)
    x = channels_last(x_BCTHW).unflatten(-1, (y.shape[1], in_time, in_rows, -1)).permute(0, 1, 5, 2, 6, 3, 7, 4)
    sizes = (num_rows, num_frames, time_factor, height, space_factor, width, space_factor, y.shape[1])
    blocks = x.expand(sizes)
    if torch.is_grad_enabled():
        up = channels_second(blocks.flatten(5, 6).flatten(3, 4).flatten(1, 2))
        return y + (up[:, :, time_factor - 1 :] if is_first else up)
    num_first = 1 if is_first else 0
    y_last = channels_last(y)
    y_last[:, :num_first].unflatten(2, (height, -1)).unflatten(4, (width, -1)).add_(blocks[:, :num_first, -1])
    later = y_last[:, num_first:].unflatten(1, (-1, time_factor)).unflatten(3, (height, -1)).unflatten(5, (width, -1))
    later.add_(blocks[:, num_first:])
    return y


class _NormSiluAfter(torch.autograd.Function):
    """`norm_silu_after` with its gradient worked out: it keeps the input alone and passes over memory half as often."""

    @staticmethod
    def forward(ctx: Any, past_BCKHW: Tensor, x_BCTHW: Tensor, gamma: Tensor) -> Tensor:
        ctx.save_for_backward(x_BCTHW, gamma)
        ctx.num_frames = past_BCKHW.shape[2]
        return _norm_silu_after(past_BCKHW, x_BCTHW, gamma)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BCTHW: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """With n = |x|, s = sqrt(C) / n, z = s x gamma: dx = s gamma dz - x (x . gamma s dz) / n^2."""
        x_BCTHW, gamma = ctx.saved_tensors
        grad_past, grad = grad_BCTHW[:, :, : ctx.num_frames], channels_last(grad_BCTHW[:, :, ctx.num_frames :])
        x, gains = channels_last(x_BCTHW), gamma.flatten()
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min_(SMALLEST_NORM)
        scale = gains.shape[0] ** 0.5 / length
        scaled = x * scale
        grad_z = torch.ops.aten.silu_backward(grad.contiguous(), scaled * gains)
        scaled.mul_(grad_z)
        grad_gamma = scaled.flatten(0, -2).sum(dim=0).view_as(gamma)
        along = torch.mv(scaled.flatten(0, -2), gains).view_as(length).div_(length.square_())
        grad_x = grad_z.mul_(gains).mul_(scale).addcmul_(x, along, value=-1.0)
        return grad_past if ctx.needs_input_grad[0] else None, channels_second(grad_x), grad_gamma


def _norm_silu_after(past_BCKHW: Tensor, x_BCTHW: Tensor, gamma: Tensor) -> Tensor:
    x, num_frames = channels_last(x_BCTHW), past_BCKHW.shape[2]
    joined = x.new_empty(x.shape[0], num_frames + x.shape[1], *x.shape[2:])
    joined[:, :num_frames] = channels_last(past_BCKHW)
    _write_norm_silu(joined[:, num_frames:], x, gamma.flatten())
    return channels_second(joined)


def _whole_past(past_BCKHW: Tensor | None, x_BCTHW: Tensor, num_frames: int) -> Tensor:
    """Return `num_frames` frames of history, with zeros where there is less."""
    num_past = 0 if past_BCKHW is None else past_BCKHW.shape[2]
    if past_BCKHW is not None and num_past == num_frames:
        return past_BCKHW
    zeros = x_BCTHW.new_zeros(()).expand(*x_BCTHW.shape[:2], num_frames - num_past, *x_BCTHW.shape[3:])
    return zeros if past_BCKHW is None else torch.cat([zeros, past_BCKHW], dim=2)


def _write_norm_silu(out: Tensor, x: Tensor, gains: Tensor) -> None:
    """Fill `out` with the norm and SiLU of `x`; both have channels as their last axis."""
    if x.dtype in (torch.float16, torch.bfloat16):
        unit = F.normalize(x.float(), dim=-1)
        out.copy_(F.silu(unit.mul_(gains.float() * gains.shape[0] ** 0.5)))
        return
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min_(SMALLEST_NORM)
    torch.mul(x, gains.shape[0] ** 0.5 / length, out=out)
    torch.ops.aten.silu_(out.mul_(gains))


def _square_kernels(weight: Tensor) -> Tensor:
    """Sum the taps of 3x3 kernels that meet one small pixel: (4 O, C, 2, 2), by row and column within the square."""
    out_dim, dim = weight.shape[:2]
    # Row 2 p + a: the taps that small pixel a of two meets for position p of two.
    sums = weight.new_tensor([[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 1]])
    kernels_OCPAQB = (weight.flatten(2) @ torch.kron(sums, sums).T).view(out_dim, dim, 2, 2, 2, 2)
    return kernels_OCPAQB.permute(2, 4, 0, 1, 3, 5).reshape(4 * out_dim, dim, 2, 2)


def _to_frames(x_BCTHW: Tensor) -> Tensor:
    """Line up the frames of all rows, (N, C, H, W); a view where channels lie last."""
    return channels_last(x_BCTHW).flatten(0, 1).permute(0, 3, 1, 2)


def _to_clips(frames_NCHW: Tensor, num_rows: int) -> Tensor:
    """Undo `_to_frames`: (B, C, T, H, W)."""
    return frames_NCHW.unflatten(0, (num_rows, -1)).transpose(1, 2)
