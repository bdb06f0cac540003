"""Convolutions and memory layout that the fast forms of the VAE's operations share.

Shapes: B batch rows; C, O channels in and out; T, H, W frames, rows, columns; N frames of all rows; J, K, L frames,
rows, columns of a kernel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_select_backend = getattr(torch._C, "_select_conv_backend", None)  # noqa: SLF001 - there is no public way to ask


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


def is_matrix_product(x_BCTHW: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether torch computes this convolution, without stride or padding, as a product with one matrix of all windows.

    False where torch does not tell, so that its own convolution runs.
    """
    if _select_backend is None or x_BCTHW.shape[0] != 1 or torch.is_grad_enabled() or not x_BCTHW.is_contiguous():
        return False
    ones, zeros = [1, 1, 1], [0, 0, 0]
    backend = _select_backend(x_BCTHW, weight, bias, ones, zeros, ones, False, zeros, 1, [bias.shape[0]])
    return str(backend).endswith(".Slow3d")


def conv3d_as_product(x_1CTHW: Tensor, weight_OCJKL: Tensor, bias_O: Tensor) -> Tensor:
    """Convolve without padding, as a product of the kernels with one matrix of all windows: torch's bits, sooner.

    torch's own kernel makes the same matrix, on one thread and window by window.

    Args:
        x_1CTHW: Padded frames.
        weight_OCJKL: Kernels, J frames by K rows by L columns.
        bias_O: Added to every output.

    Returns:
        (1, O, T - J + 1, H - K + 1, W - L + 1).
    """
    num_out, channels, *kernel = weight_OCJKL.shape
    sizes = [size - edge + 1 for size, edge in zip(x_1CTHW.shape[2:], kernel, strict=True)]
    stride = x_1CTHW.stride()
    windows = x_1CTHW.as_strided((channels, *kernel, *sizes), (*stride[1:], *stride[2:]))
    matrix = windows.reshape(channels * math.prod(kernel), -1)
    return torch.addmm(bias_O.unsqueeze(1), weight_OCJKL.flatten(1), matrix).view(1, num_out, *sizes)


def conv2d(x_NCHW: Tensor, weight: Tensor, bias: Tensor, *, stride: int = 1, padding: int = 0) -> Tensor:
    """Convolve frames, by the same choice of kernel as `conv3d`."""
    if uses_onednn(x_NCHW):
        spaced = ((padding, padding), (stride, stride), (1, 1))
        return torch.mkldnn_convolution(x_NCHW, weight, bias, *spaced, 1)
    return F.conv2d(x_NCHW, weight, bias, stride, padding)


def uses_onednn(x: Tensor) -> bool:
    """Whether oneDNN's kernels are called by name for this tensor."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and torch.backends.mkldnn.is_available()
