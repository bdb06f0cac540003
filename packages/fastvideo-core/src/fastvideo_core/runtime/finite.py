"""The check for finite values, for steps whose body leaves it to the runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

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
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex():
            yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _floating(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _floating(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _floating(getattr(value, field.name))
