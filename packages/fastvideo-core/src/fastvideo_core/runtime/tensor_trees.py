"""Structures of tensors taken apart and put together again: tuples, lists, dictionaries and dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from torch import Tensor

__all__ = ["NotATreeError", "flatten_tree"]

_CONSTANTS = (bool, int, float, str, bytes, type(None))


class NotATreeError(TypeError):
    """A structure holds something that is neither a tensor, nor a constant, nor a structure."""


def flatten_tree(value: Any) -> tuple[list[Tensor], Callable[[list[Tensor]], Any], Hashable]:
    """Take a structure apart.

    Returns:
        Its tensors in order; a function that puts the same structure together of others; and its shape, equal for
        structures that differ only in the content of their tensors.

    Raises:
        NotATreeError: It holds something else.
    """
    tensors: list[Tensor] = []
    shape = _shape_of(value, tensors)

    def rebuild(others: list[Tensor]) -> Any:
        return _rebuild(value, iter(others))

    return tensors, rebuild, shape


def _shape_of(value: Any, tensors: list[Tensor]) -> Hashable:
    if isinstance(value, Tensor):
        tensors.append(value)
        return ("tensor", value.shape, value.stride(), value.dtype, value.device)
    if isinstance(value, _CONSTANTS):
        return (type(value), value)
    if type(value) in (tuple, list):
        return (type(value), tuple(_shape_of(part, tensors) for part in value))
    if type(value) is dict:
        return (dict, tuple((key, _shape_of(part, tensors)) for key, part in value.items()))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = ((one.name, _shape_of(getattr(value, one.name), tensors)) for one in dataclasses.fields(value))
        return (type(value), tuple(parts))
    raise NotATreeError(f"a {type(value).__qualname__} is no tensor, no constant and no structure of them")


def _rebuild(value: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, _CONSTANTS):
        return value
    if type(value) in (tuple, list):
        return type(value)([_rebuild(part, tensors) for part in value])
    if type(value) is dict:
        return {key: _rebuild(part, tensors) for key, part in value.items()}
    parts = {one.name: _rebuild(getattr(value, one.name), tensors) for one in dataclasses.fields(value)}
    return dataclasses.replace(value, **parts)
