"""Mathematically equal but faster forms of the elementwise work in a block, for calls that are not `exact`.

On a CPU such work is bound by the number of passes over memory; each function here makes as few as the library's
kernels allow. While gradients are recorded nothing is changed in place.

Shapes: B batch rows; S tokens; G groups of tokens that share a timestep; D stream width; N heads; K head
width; P = K / 2.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# gelu(x) with the tanh approximation equals x * sigmoid(x * (GELU_LINEAR + GELU_CUBIC * x^2)).
GELU_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715 * GELU_LINEAR


def modulated_norm(hidden_BSD: Tensor, scale_G1D: Tensor, shift_G1D: Tensor, eps: float) -> Tensor:
    """Return `layer_norm(hidden) * scale + shift` in the stream's type.

    Args:
        hidden_BSD: The stream.
        scale_G1D: Float32 factors, one row for each group of consecutive tokens.
        shift_G1D: Float32 offsets, same shape.
        eps: Added to the variance.
    """
    width, num_groups = hidden_BSD.shape[-1], scale_G1D.shape[0]
    if num_groups == 1:
        normed = F.layer_norm(hidden_BSD.float(), (width,), scale_G1D.view(width), shift_G1D.view(width), eps)
        return normed.to(hidden_BSD.dtype)
    normed = F.layer_norm(hidden_BSD.float(), (width,), eps=eps).view(num_groups, -1, width)
    return torch.addcmul(shift_G1D, normed, scale_G1D).view_as(hidden_BSD).to(hidden_BSD.dtype)


def gated_sum(hidden_BSD: Tensor, update_BSD: Tensor, gate_G1D: Tensor, *, may_overwrite: bool) -> Tensor:
    """Return `hidden + update * gate`; with `may_overwrite`, in the stream's own memory where no gradient needs it."""
    shape = (gate_G1D.shape[0], -1, hidden_BSD.shape[-1])
    if hidden_BSD.dtype != gate_G1D.dtype:
        summed = torch.addcmul(hidden_BSD.float().view(shape), update_BSD.float().view(shape), gate_G1D)
        return summed.view_as(hidden_BSD).to(hidden_BSD.dtype)
    if may_overwrite and not torch.is_grad_enabled():
        hidden_BSD.view(shape).addcmul_(update_BSD.view(shape), gate_G1D)
        return hidden_BSD
    return torch.addcmul(hidden_BSD.view(shape), update_BSD.view(shape), gate_G1D).view_as(hidden_BSD)


def inverse_rms(tokens_BSD: Tensor, eps: float) -> Tensor:
    """Return `1 / sqrt(mean(tokens^2) + eps)` over the last axis, float32, shape (B, S, 1)."""
    norm_BS1 = torch.linalg.vector_norm(tokens_BSD, dim=-1, keepdim=True, dtype=torch.float32)
    return torch.rsqrt(norm_BS1.square() / tokens_BSD.shape[-1] + eps)


def normalize_and_rotate(tokens_BSD: Tensor, weight_D: Tensor, eps: float, turns_S1P: Tensor) -> Tensor:
    """Return RMS-normalized, rotated heads, shape (B, S, N, K); may overwrite the input where no gradient needs it.

    The norm is one number a token, the same for all heads, so it goes into the rotation's factors.

    Args:
        tokens_BSD: Queries or keys as they are projected.
        weight_D: Weight of the norm.
        eps: Of the norm.
        turns_S1P: The rotations as complex numbers.
    """
    turns_BS1P = turns_S1P * inverse_rms(tokens_BSD, eps).unsqueeze(-1)
    pairs = (-1, turns_S1P.shape[-1], 2)
    if torch.is_grad_enabled() or tokens_BSD.dtype != torch.float32:
        scaled = torch.view_as_complex((tokens_BSD.float() * weight_D).unflatten(-1, pairs))
        return torch.view_as_real(scaled * turns_BS1P).flatten(-2).to(tokens_BSD.dtype)
    scaled = torch.view_as_complex(tokens_BSD.mul_(weight_D).unflatten(-1, pairs))
    return torch.view_as_real(scaled.mul_(turns_BS1P)).flatten(-2)


def tanh_gelu(hidden: Tensor) -> Tensor:
    """Return GELU with the tanh approximation; may overwrite the input where no gradient needs it."""
    if torch.is_grad_enabled() or hidden.dtype != torch.float32:
        return F.gelu(hidden, approximate="tanh")
    linear = hidden.new_tensor(GELU_LINEAR)
    slope = torch.addcmul(linear, hidden, hidden, value=GELU_CUBIC)
    return F.silu(hidden.mul_(slope), inplace=True).div_(slope)
