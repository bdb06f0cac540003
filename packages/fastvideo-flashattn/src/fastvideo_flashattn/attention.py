"""Attention by flash-attn, in the layout of the runtime's backends.

Shapes: B batch rows; S query tokens; L key tokens; N heads; K head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F

from fastvideo_core.errors import ExecutionError
from fastvideo_flashattn.availability import KERNELS, best_kernel

__all__ = ["flash", "flash2", "flash3"]

_DTYPES = (torch.bfloat16, torch.float16)
_MAX_WIDTH = 256
_WIDTH_STEP = 8
"""The kernels read heads in pieces of 16 bytes."""


def flash(query_BSNK: torch.Tensor, key_BLNK: torch.Tensor, value_BLNK: torch.Tensor) -> torch.Tensor:
    """Attend with the newest version that can run here; see `flash2`."""
    return flash3(query_BSNK, key_BLNK, value_BLNK) if best_kernel() == 3 else flash2(query_BSNK, key_BLNK, value_BLNK)


def flash2(query_BSNK: torch.Tensor, key_BLNK: torch.Tensor, value_BLNK: torch.Tensor) -> torch.Tensor:
    """Attend with version 2: softmax over the keys, logits over the square root of K, no mask.

    Args:
        query_BSNK: Queries, bfloat16 or float16, K at most 256.
        key_BLNK: Keys.
        value_BLNK: Values.

    Returns:
        Shape (B, S, N, K), in the query's format.

    Raises:
        ExecutionError: A format, width or shape that the kernels do not take.
    """

    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Any:
        function = import_module(KERNELS[2].module).flash_attn_func
        return function(query, key, value, dropout_p=0.0, softmax_scale=scale, causal=False)

    return _attend(kernel, query_BSNK, key_BLNK, value_BLNK)


def flash3(query_BSNK: torch.Tensor, key_BLNK: torch.Tensor, value_BLNK: torch.Tensor) -> torch.Tensor:
    """Attend with version 3, which has no dropout and, in its first releases, gives the logits' sums too."""

    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Any:
        function = import_module(KERNELS[3].module).flash_attn_func
        return function(query, key, value, softmax_scale=scale, causal=False)

    return _attend(kernel, query_BSNK, key_BLNK, value_BLNK)


def _attend(
    kernel: Callable[..., Any], query_BSNK: torch.Tensor, key_BLNK: torch.Tensor, value_BLNK: torch.Tensor
) -> torch.Tensor:
    _check(query_BSNK, key_BLNK, value_BLNK)
    width = query_BSNK.shape[-1]
    # Zeros add nothing to a product, and what they give is cut off.
    parts = [_padded(part) for part in (query_BSNK, key_BLNK, value_BLNK)]
    given = kernel(*parts, 1.0 / math.sqrt(width))
    mixed: torch.Tensor = given[0] if isinstance(given, tuple) else given
    return mixed[..., :width]


def _padded(part: torch.Tensor) -> torch.Tensor:
    missing = -part.shape[-1] % _WIDTH_STEP
    padded = F.pad(part, (0, missing)) if missing else part
    return padded if padded.stride(-1) == 1 else padded.contiguous()


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    for name, part in (("query", query), ("key", key), ("value", value)):
        if part.dtype not in _DTYPES or part.dtype != query.dtype:
            raise ExecutionError(
                f"flash-attn: {name} is {part.dtype}; allowed: bfloat16 or float16, one format for all three"
            )
        if part.dim() != 4:
            raise ExecutionError(f"flash-attn: {name} has shape {tuple(part.shape)}; allowed: four dimensions")
    if query.shape[-1] > _MAX_WIDTH:
        raise ExecutionError(f"flash-attn: heads are {query.shape[-1]} wide; allowed: {_MAX_WIDTH} at most")
    if key.shape != value.shape or (key.shape[0], *key.shape[2:]) != (query.shape[0], *query.shape[2:]):
        raise ExecutionError(
            f"flash-attn: query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do not "
            "belong together"
        )
