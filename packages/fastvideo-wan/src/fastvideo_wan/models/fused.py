"""Mathematically equal but faster forms of the elementwise work in a block, for calls that are not `exact`.

On a CPU such work is bound by the number of passes over memory; each function here makes as few as the library's
kernels allow. While gradients are recorded nothing is changed in place.

Shapes: B batch rows; S tokens; G groups of consecutive tokens that share a timestep; D stream width; N heads; K head
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
GELU_PIECE = 1 << 18  # numbers: 1 MiB
_GELU_LINEAR = torch.tensor(GELU_LINEAR, dtype=torch.float32, device="cpu")  # addcmul takes no number here


def modulated_norm(hidden_BSD: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Return `layer_norm(hidden) * scale + shift` in the stream's type.

    Args:
        hidden_BSD: The stream.
        scale: Float32 factors, shape (D,), or (G, 1, D) with a row for each group of consecutive tokens.
        shift: Float32 offsets, same shape.
        eps: Added to the variance.
    """
    width = hidden_BSD.shape[-1]
    if scale.ndim == 1:
        return F.layer_norm(hidden_BSD.float(), (width,), scale, shift, eps).to(hidden_BSD.dtype)
    normed = F.layer_norm(hidden_BSD.float(), (width,), eps=eps).view(scale.shape[0], -1, width)
    return torch.addcmul(shift, normed, scale).view_as(hidden_BSD).to(hidden_BSD.dtype)


def gated_sum(hidden_BSD: Tensor, update_BSD: Tensor, gate: Tensor, *, may_overwrite: bool) -> Tensor:
    """Return `hidden + update * gate` in the stream's type.

    Args:
        hidden_BSD: The stream.
        update_BSD: What is added to it.
        gate: Float32 factors, shape (D,) or (G, 1, D) as for `modulated_norm`.
        may_overwrite: Whether the result may take the stream's memory, where no gradient needs it.
    """
    stream, update = hidden_BSD.float(), update_BSD.float()
    if gate.ndim == 3:
        grouped = (gate.shape[0], -1, hidden_BSD.shape[-1])
        stream, update = stream.view(grouped), update.view(grouped)
    is_in_place = may_overwrite and not torch.is_grad_enabled()
    summed = stream.addcmul_(update, gate) if is_in_place else torch.addcmul(stream, update, gate)
    return summed.view_as(hidden_BSD).to(hidden_BSD.dtype)


def inverse_norm(tokens: Tensor, eps: float) -> Tensor:
    """Return `1 / sqrt(sum(tokens^2) + width * eps)` over the last axis, which is kept; float32.

    This is the factor of an RMS norm without the square root of the width, which goes where it costs nothing.
    """
    norm = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True, dtype=torch.float32)
    return (norm.square() + tokens.shape[-1] * eps).rsqrt()


def normalize_and_rotate(tokens_BSD: Tensor, weight_D: Tensor, eps: float, turns_S1P: Tensor) -> Tensor:
    """Return RMS-normalized tokens with their heads' pairs rotated; may overwrite them where no gradient needs them.

    The norm is one number a token, the same for all heads, so that it goes into the rotation's factors.

    Args:
        tokens_BSD: Queries or keys as they are projected.
        weight_D: Weight of the norm.
        eps: Of the norm.
        turns_S1P: The rotations as complex numbers times the square root of D.

    Returns:
        Shape (B, S, N, K).
    """
    turns_BS1P = turns_S1P * inverse_norm(tokens_BSD, eps).unsqueeze(-1)
    pairs = (-1, turns_S1P.shape[-1], 2)
    if torch.is_grad_enabled() or tokens_BSD.dtype != torch.float32:
        heads = torch.view_as_complex((tokens_BSD.float() * weight_D).unflatten(-1, pairs))
        return torch.view_as_real(heads * turns_BS1P).flatten(-2).to(tokens_BSD.dtype)
    heads = torch.view_as_complex(tokens_BSD.mul_(weight_D).unflatten(-1, pairs))
    return torch.view_as_real(heads.mul_(turns_BS1P)).flatten(-2)


def tanh_gelu(hidden: Tensor) -> Tensor:
    """Return GELU with the tanh approximation; may overwrite the input where no gradient needs it.

    On a CPU four vectorized passes are faster than the library's one, which spends its time in the tanh. They go over
    pieces that stay in the cache.
    """
    if torch.is_grad_enabled() or hidden.dtype != torch.float32 or hidden.device.type != "cpu":
        return F.gelu(hidden, approximate="tanh")
    for piece in hidden.view(-1).split(GELU_PIECE):
        slope = torch.addcmul(_GELU_LINEAR, piece, piece, value=GELU_CUBIC)
        F.silu(piece.mul_(slope), inplace=True).div_(slope)
    return hidden
