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
    """Return results that all say whether they are finite; the verdicts come from the device in one copy."""
    asked = [result for result in results if result.is_finite is None]
    if not asked:
        return results
    verdicts = iter(_are_finite([result.values for result in asked]))
    return [
        result if result.is_finite is not None else dataclasses.replace(result, is_finite=next(verdicts))
        for result in results
    ]


def _are_finite(values: Sequence[Any]) -> list[bool]:
    flags, owners = [], []
    for index, value in enumerate(values):
        for tensor in _floating(value):
            flags.append(torch.isfinite(tensor).all())
            owners.append(index)
    verdicts = [True] * len(values)
    if flags:
        device = flags[0].device
        for index, is_finite in zip(owners, torch.stack([flag.to(device) for flag in flags]).tolist(), strict=True):
            verdicts[index] &= is_finite
    return verdicts


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
