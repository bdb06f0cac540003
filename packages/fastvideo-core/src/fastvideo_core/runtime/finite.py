"""The check for finite values, for steps whose body leaves it to the runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fastvideo_core.cache import tensors_in
from fastvideo_core.loop.work import StepResult

__all__ = ["check_finite"]


def check_finite(results: Sequence[StepResult[Any]]) -> Sequence[StepResult[Any]]:
    """Return results of which none is left that is not finite and does not say so.

    That all are finite, the usual case, is told by one reduction over all of them; the rows are looked at one by one
    only where it is not so.
    """
    asked = [result for result in results if result.is_finite is None]
    if not asked or _are_all_finite(list(_floating([result.values for result in asked]))):
        return results
    return [result if result.is_finite is not None else _checked(result) for result in results]


def _are_all_finite(tensors: Sequence[Tensor]) -> bool:
    alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.dtype, tensor.device), []).append(tensor.reshape(-1))
    return all(bool(torch.isfinite(torch.cat(group)).all()) for group in alike.values())


def _checked(result: StepResult[Any]) -> StepResult[Any]:
    return dataclasses.replace(result, is_finite=_are_all_finite(list(_floating(result.values))))


def _floating(value: Any) -> Iterator[Tensor]:
    return (tensor for tensor in tensors_in(value) if tensor.is_floating_point() or tensor.is_complex())
