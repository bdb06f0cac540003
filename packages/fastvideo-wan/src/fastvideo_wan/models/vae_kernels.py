"""Convolutions and memory layout that the fast forms of the VAE's operations share.

Shapes: B batch rows; C, O channels in and out; T, H, W frames, rows, columns; N frames of all rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def channels_last(x_BCTHW: Tensor) -> Tensor:
    """View with channels as the last axis: (B, T, H, W, C)."""
    return x_BCTHW.permute(0, 2, 3, 4, 1)


def channels_second(x_BTHWC: Tensor) -> Tensor:
    """Undo `channels_last`."""
    return x_BTHWC.permute(0, 4, 1, 2, 3)


def conv3d(x_BCTHW: Tensor, weight: Tensor, bias: Tensor | None, time_stride: int = 1) -> Tensor:
    """Convolve; rows and columns are padded to keep their size, time is not padded.

    For a small batch of one, torch's own choice is a kernel several times slower: hence oneDNN by name, where it runs.
    """
    padding = (0, weight.shape[3] // 2, weight.shape[4] // 2)
    stride = (time_stride, 1, 1)
    if uses_onednn(x_BCTHW):
        return torch.mkldnn_convolution(x_BCTHW, weight, bias, padding, stride, (1, 1, 1), 1)
    return F.conv3d(x_BCTHW, weight, bias, stride, padding)


def conv3d_backward(grad_BOTHW: Tensor, x_BCTHW: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of `conv3d`, with stride 1, for its input and its weight."""
    padding = [0, weight.shape[3] // 2, weight.shape[4] // 2]
    ones, zeros = [1, 1, 1], [0, 0, 0]
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        grad_BOTHW, x_BCTHW, weight, None, ones, padding, ones, False, zeros, 1, [True, True, False]
    )
    return grad_x, grad_weight


def conv2d(x_NCHW: Tensor, weight: Tensor, bias: Tensor, *, stride: int = 1, padding: int = 0) -> Tensor:
    """Convolve frames, by the same choice of kernel as `conv3d`."""
    if uses_onednn(x_NCHW):
        spaced = ((padding, padding), (stride, stride), (1, 1))
        return torch.mkldnn_convolution(x_NCHW, weight, bias, *spaced, 1)
    return F.conv2d(x_NCHW, weight, bias, stride, padding)


def uses_onednn(x: Tensor) -> bool:
    """Whether oneDNN's kernels are called by name for this tensor."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and torch.backends.mkldnn.is_available()
