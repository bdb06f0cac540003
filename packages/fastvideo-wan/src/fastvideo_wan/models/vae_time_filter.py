"""A convolution over three frames with a third fewer products, by minimal filtering in time.

Two neighbouring output frames share two of their three input frames each. Filtering sums and differences of frames
gives both from four spatial convolutions instead of six:

    v = (d0 - d2, d1 + d2, d2 - d1, d1 - d3)        from the four frames d that the two outputs see
    m = v * (w0, (w0 + w1 + w2) / 2, (w0 - w1 + w2) / 2, w2)
    y = (m0 + m1 + m2, m1 - m2 - m3)

Source: F(2, 3) of Winograd, Arithmetic Complexity of Computations, 1980; Lavin and Gray 2016, arXiv:1509.09308.

Shapes: B batch rows; C, O channels in and out; T, H, W frames, rows, columns; P pairs of output frames; V the four
filtered frames of a pair; K, L the kernel's rows and columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastvideo_wan.models.vae_kernels import channels_last, channels_second, conv3d, conv3d_backward, uses_onednn

GROUP_BYTES = 8 << 20
"""Filtered frames that are held at a time without gradients: about what stays in a processor's last cache."""


SMALLEST_DIM = 48
"""Channels, in or out, from which the products saved outweigh the sums; measured on AVX2."""

SMALLEST_NUM_PIXELS = 2048
"""Pixels of a chunk, all rows and frames, from which filtering its kernels first pays; measured likewise."""


def pays_to_filter(joined_BCTHW: Tensor, weight_OC3KL: Tensor) -> bool:
    """Whether `conv_three_frames` is faster than the plain convolution here: large CPU chunks of two frames or more."""
    num_frames = joined_BCTHW.shape[2] - 2
    num_pixels = joined_BCTHW.shape[0] * num_frames * joined_BCTHW.shape[3:].numel()
    return (
        uses_onednn(joined_BCTHW)
        and weight_OC3KL.shape[2:] == (3, 3, 3)
        and min(weight_OC3KL.shape[:2]) >= SMALLEST_DIM
        and num_frames >= 2
        and num_pixels >= SMALLEST_NUM_PIXELS
    )


def conv_three_frames(joined_BCTHW: Tensor, weight_OC3KL: Tensor, bias_O: Tensor, *, starts_clip: bool) -> Tensor:
    """Convolve a chunk that has two frames of its past in front.

    Args:
        joined_BCTHW: The past and the chunk, T + 2 frames, at least 4; channels should lie last in memory.
        weight_OC3KL: Kernels of three frames; rows and columns are padded to keep their size.
        bias_O: Added to every output.
        starts_clip: Whether the two frames in front are zeros, so that the first output needs one tap alone.

    Returns:
        (B, O, T, H, W), channels last in memory.
    """
    if torch.is_grad_enabled():
        return _ConvThreeFrames.apply(joined_BCTHW, weight_OC3KL, bias_O, starts_clip)  # type: ignore[no-untyped-call]
    frames = channels_last(joined_BCTHW)
    num_rows, num_joined, height, width, dim = frames.shape
    out = frames.new_empty(num_rows, num_joined - 2, height, width, weight_OC3KL.shape[0])
    is_odd = num_joined % 2
    if is_odd:
        out[:, :1] = _conv_first(frames[:, :3], weight_OC3KL, bias_O, starts_clip=starts_clip)
    pair_bytes = 4 * num_rows * height * width * dim * frames.element_size()
    group_frames = 2 * max(1, GROUP_BYTES // pair_bytes)
    filters = filter_weights(weight_OC3KL)
    for start in range(is_odd, num_joined - 2, group_frames):
        group = frames[:, start : start + group_frames + 2]
        _unfilter_outputs(out[:, start : start + group_frames], _conv_filtered(_filter_inputs(group), filters, bias_O))
    return channels_second(out)


def filter_weights(weight_OC3KL: Tensor) -> Tensor:
    """Return the kernels of the four filtered frames, (4, O, C, K, L)."""
    first, middle, last = weight_OC3KL.unbind(2)
    half_ends, half_middle = (first + last) * 0.5, middle * 0.5
    return torch.stack([first, half_ends + half_middle, half_ends - half_middle, last])


class _ConvThreeFrames(torch.autograd.Function):
    """The same with gradients; filtered frames are kept for the kernels' gradient."""

    @staticmethod
    def forward(ctx: Any, joined_BCTHW: Tensor, weight: Tensor, bias: Tensor, starts_clip: bool) -> Tensor:
        frames = channels_last(joined_BCTHW)
        is_odd = frames.shape[1] % 2
        filtered, filters = _filter_inputs(frames[:, is_odd:]), filter_weights(weight)
        out = frames.new_empty(frames.shape[0], frames.shape[1] - 2, *frames.shape[2:4], weight.shape[0])
        if is_odd:
            out[:, :1] = _conv_first(frames[:, :3], weight, bias, starts_clip=starts_clip)
        _unfilter_outputs(out[:, is_odd:], _conv_filtered(filtered, filters, bias))
        ctx.save_for_backward(frames[:, :3].clone() if is_odd else frames[:, :0], filtered, filters, weight)
        ctx.starts_clip = starts_clip
        return channels_second(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BOTHW: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        first, filtered, filters, weight = ctx.saved_tensors
        grad = channels_last(grad_BOTHW)
        is_odd = first.shape[1] // 3
        grad_frames = grad.new_empty(grad.shape[0], grad.shape[1] + 2, *filtered.shape[3:])
        grad_filtered, grad_filters = _conv_filtered_backward(grad[:, is_odd:], filtered, filters)
        _filter_inputs_backward(grad_frames[:, is_odd:], grad_filtered)
        grad_weight = _filter_weights_backward(grad_filters)
        if is_odd:
            taps = slice(2, 3) if ctx.starts_clip else slice(0, 3)
            grads = _conv_backward(grad[:, :1], first[:, taps], weight[:, :, taps])
            grad_frames[:, 0] = 0.0
            grad_frames[:, taps] += grads[0]
            grad_weight[:, :, taps] += grads[1]
        return channels_second(grad_frames), grad_weight, grad.sum(dim=(0, 1, 2, 3)), None


def _filter_inputs(frames_BTHWC: Tensor) -> Tensor:
    """Return the sums and differences of each four frames that a pair sees, (V, B, P, H, W, C)."""
    num_pairs = frames_BTHWC.shape[1] // 2 - 1
    d0, d1, d2, d3 = (frames_BTHWC[:, index : index + 2 * num_pairs : 2] for index in range(4))
    filtered = frames_BTHWC.new_empty(4, *d0.shape)
    torch.sub(d0, d2, out=filtered[0])
    torch.add(d1, d2, out=filtered[1])
    torch.sub(d2, d1, out=filtered[2])
    torch.sub(d1, d3, out=filtered[3])
    return filtered


def _filter_inputs_backward(grad_frames_BTHWC: Tensor, grad: Tensor) -> None:
    """Fill the frames' gradient with that of `_filter_inputs`."""
    # Frame 2p is d0 of pair p and d2 of pair p - 1; frame 2p + 1 is d1 and d3 likewise.
    evens, odds = grad_frames_BTHWC[:, 0::2], grad_frames_BTHWC[:, 1::2]
    evens[:, :-1] = grad[0]
    evens[:, -1] = 0.0
    evens[:, 1:] += (grad[1] + grad[2]).sub_(grad[0])
    odds[:, -1] = 0.0
    torch.sub(grad[1], grad[2], out=odds[:, :-1])
    odds[:, :-1] += grad[3]
    odds[:, 1:] -= grad[3]


def _filter_weights_backward(grad: Tensor) -> Tensor:
    """Return the kernels' gradient from that of `filter_weights`."""
    half_sum = (grad[1] + grad[2]).mul_(0.5)
    return torch.stack([grad[0] + half_sum, (grad[1] - grad[2]).mul_(0.5), grad[3] + half_sum], dim=2)


def _conv_filtered(filtered: Tensor, filters: Tensor, bias_O: Tensor) -> list[Tensor]:
    """Convolve each of the four with its kernels; the bias goes where both outputs meet it once."""
    return [_conv(filtered[index], filters[index].unsqueeze(2), bias_O if index == 1 else None) for index in range(4)]


def _conv_filtered_backward(grad_BTHWO: Tensor, filtered: Tensor, filters: Tensor) -> tuple[Tensor, Tensor]:
    first, second = grad_BTHWO[:, 0::2].contiguous(), grad_BTHWO[:, 1::2].contiguous()
    grads = (first, first + second, first - second, second.neg_())
    pairs = [_conv_backward(grads[index], filtered[index], filters[index].unsqueeze(2)) for index in range(4)]
    return torch.stack([pair[0] for pair in pairs]), torch.stack([pair[1].squeeze(2) for pair in pairs])


def _unfilter_outputs(out_BTHWO: Tensor, products: list[Tensor]) -> None:
    first, second = out_BTHWO[:, 0::2], out_BTHWO[:, 1::2]
    torch.add(products[1], products[2], out=first)
    first += products[0]
    torch.sub(products[1], products[2], out=second)
    second -= products[3]


def _conv_first(frames_B3HWC: Tensor, weight: Tensor, bias_O: Tensor, *, starts_clip: bool) -> Tensor:
    """Convolve three frames to one, or the last of them alone if the others are zeros: (B, 1, H, W, O)."""
    taps = slice(2, 3) if starts_clip else slice(0, 3)
    return _conv(frames_B3HWC[:, taps], weight[:, :, taps], bias_O)


def _conv(frames_BTHWC: Tensor, weight: Tensor, bias_O: Tensor | None) -> Tensor:
    return channels_last(conv3d(channels_second(frames_BTHWC), weight, bias_O))


def _conv_backward(grad_BTHWO: Tensor, frames_BTHWC: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    grad_x, grad_weight = conv3d_backward(channels_second(grad_BTHWO), channels_second(frames_BTHWC), weight)
    return channels_last(grad_x), grad_weight
