"""What attention backends are held to, and what every description is, one function a promise.

Shapes: B batch rows; S query tokens; L key tokens; N heads; K head width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from fastvideo_core.card import resolve_ref
from fastvideo_core.errors import FastVideoError
from fastvideo_core.extend import AttentionBackendSpec, PluginSpec
from fastvideo_core.loop.policies.precision import torch_dtype
from fastvideo_testing.contract.base import ContractError

__all__ = ["check_attention", "check_references", "why_not_here"]

_REFERENCES = ("implementation", "options", "state", "available", "parameters")
_BOUNDS = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 4e-3}
"""Greatest difference of outputs of order one: a few steps of the number format."""
_SHAPES = ((1, 16, 16, 2, 64), (2, 7, 11, 3, 32), (1, 1, 130, 1, 128))
"""B, S, L, N, K."""


def check_references(spec: PluginSpec) -> None:
    """All that a description names is there."""
    for name in _REFERENCES:
        ref = getattr(spec, name, None)
        if ref is None:
            continue
        try:
            resolve_ref(ref)
        except FastVideoError as error:
            raise ContractError(f"{spec.name}: {name} {ref!r} is not there: {error}") from error


def why_not_here(spec: Any) -> str | None:
    """Return why something cannot run on this machine, as its own description says; None if it can."""
    reason: str | None = None if spec.available is None else resolve_ref(spec.available)()
    return reason


def check_attention(spec: AttentionBackendSpec) -> None:
    """It gives softmax attention with logits over the root of the width, reads only, and gives the same again."""
    function, num_tried = resolve_ref(spec.implementation), 0
    for device, precision in _places(spec):
        for shape in _SHAPES:
            num_tried += 1
            _check_one(spec.name, function, shape, device, precision)
    if not num_tried:
        raise ContractError(f"{spec.name}: says that it can run here, and runs on {', '.join(spec.devices)} alone")


def _places(spec: AttentionBackendSpec) -> Iterator[tuple[str, str]]:
    there = {"cpu", *(["cuda"] if torch.cuda.is_available() else [])}
    for device in spec.devices:
        if device in there:
            yield from ((device, precision) for precision in spec.precisions)


def _check_one(name: str, function: Any, shape: tuple[int, ...], device: str, precision: str) -> None:
    batch, num_queries, num_keys, heads, width = shape
    generator = torch.Generator().manual_seed(num_keys)
    parts = [
        torch.randn((batch, length, heads, width), generator=generator).to(device, torch_dtype(precision))
        for length in (num_queries, num_keys, num_keys)
    ]
    before = [part.clone() for part in parts]
    mixed = function(*parts)
    where = f"{name} on {device} in {precision}, (B, S, L, N, K) of {shape}"
    if (mixed.shape, mixed.dtype) != (parts[0].shape, parts[0].dtype):
        raise ContractError(f"{where}: gives {tuple(mixed.shape)} in {mixed.dtype}; allowed: the query's")
    if not all(torch.equal(one, other) for one, other in zip(before, parts, strict=True)):
        raise ContractError(f"{where}: changes what it reads")
    distance = float((mixed.double() - _exact(*parts)).abs().max())
    if not distance <= _BOUNDS[precision]:
        raise ContractError(f"{where}: is off by {distance:.3g}; allowed: {_BOUNDS[precision]:g}")
    if not torch.equal(mixed, function(*parts)):
        raise ContractError(f"{where}: gives other bits when it is asked again")


def _exact(query_BSNK: torch.Tensor, key_BLNK: torch.Tensor, value_BLNK: torch.Tensor) -> torch.Tensor:
    """Return the attention in double precision."""
    query, key, value = (part.double() for part in (query_BSNK, key_BLNK, value_BLNK))
    logits_BNSL = torch.einsum("bsnk,blnk->bnsl", query, key) / math.sqrt(query.shape[-1])
    return torch.einsum("bnsl,blnk->bsnk", logits_BNSL.softmax(dim=-1), value)
