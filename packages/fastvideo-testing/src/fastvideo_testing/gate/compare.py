"""What differs between two results of one request."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["describe_differences", "largest_relative_error"]


def describe_differences(alone: Mapping[str, Any], among: Mapping[str, Any], bound: float | None) -> list[str]:
    """Return one line for each part of the artifacts that differs by more than it may.

    Args:
        alone: Artifacts of the request alone, by name.
        among: The same of the request among others.
        bound: Most of max|a - b| / max|b|; None allows no other bit. Pixels may differ by what it is of 255, and by one
            level at least: a value between two levels goes either way.
    """
    lines = []
    if alone.keys() != among.keys():
        lines.append(f"it made {', '.join(sorted(among))} and not {', '.join(sorted(alone))}")
    for name, one, other in _pairs(alone, among):
        if (why := _difference(one, other, bound)) is not None:
            lines.append(f"{name} {why}")
    return lines


def largest_relative_error(alone: Mapping[str, Any], among: Mapping[str, Any]) -> float:
    """Return the largest max|a - b| / max|b| of the artifacts' floating-point parts."""
    errors = [
        _relative(one, other)
        for _, one, other in _pairs(alone, among)
        if isinstance(one, np.ndarray) and np.issubdtype(one.dtype, np.floating) and one.shape == np.shape(other)
    ]
    return max(errors, default=0.0)


def _pairs(alone: Mapping[str, Any], among: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in sorted(alone.keys() & among.keys()):
        yield from _fields(name, alone[name], among[name])


def _fields(path: str, alone: Any, among: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields of two artifacts, and in place of an artifact within them its fields."""
    for field in dataclasses.fields(alone):
        if field.name in ("name", "provenance"):
            continue
        one, other = (getattr(artifact, field.name, None) for artifact in (alone, among))
        place = path if path == field.name else f"{path}.{field.name}"
        if dataclasses.is_dataclass(one) and type(one) is type(other):
            yield from _fields(place, one, other)
        else:
            yield place, _plain(one), _plain(other)


def _plain(value: Any) -> Any:
    """Return a tensor as an array, with the values that it has; bfloat16, which arrays lack, as float32."""
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()


def _difference(one: Any, other: Any, bound: float | None) -> str | None:
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return None if one == other else f"is {other!r} and not {one!r}"
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return f"is {other.dtype}{list(other.shape)} and not {one.dtype}{list(one.shape)}"
    if one.tobytes() == other.tobytes():
        return None
    distance = np.abs(one.astype(np.float64) - other.astype(np.float64))
    if bound is not None and _is_within(one, other, distance, bound):
        return None
    count, allowed = int((one != other).sum()), "no other bit" if bound is None else f"{bound:g} relative"
    place = tuple(int(i) for i in np.unravel_index(int(distance.argmax()), one.shape))
    return (
        f"differs in {count} of {one.size} values, by at most {distance.max():.3g} (at {place}); allowed: {allowed}, "
        f"got {_relative(one, other):.2g}"
    )


def _is_within(one: Any, other: Any, distance: Any, bound: float) -> bool:
    if np.issubdtype(one.dtype, np.floating):
        return _relative(one, other) <= bound
    return bool(distance.max() <= max(1, math.ceil(bound * 255)))


def _relative(one: Any, other: Any) -> float:
    scale = float(np.abs(one.astype(np.float64)).max()) if one.size else 0.0
    largest = float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max()) if one.size else 0.0
    return largest / scale if scale else math.inf * largest if largest else 0.0
