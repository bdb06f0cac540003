"""Where something is kept that should be in a request's state: on components, on loop objects, in their modules."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["find_changes", "look_at"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)


def look_at(instance: ModelInstance) -> dict[str, Any]:
    """Return by place what hangs on a model's components and loops, and in the modules of its loops and step bodies."""
    found: dict[str, Any] = {}
    for name, component in _components(instance):
        modules = component.named_modules() if isinstance(component, torch.nn.Module) else [("", component)]
        for path, part in modules:
            where = f"component {name}" + (f".{path}" if path else "")
            found.update({f"{where}: {key}": _mark(value) for key, value in _attributes(part)})
    for loop_id, loop in instance.loops.items():
        found.update({f"loop object of {loop_id}: {key}": _mark(value) for key, value in vars(loop).items()})
        found.update(
            {f"class {type(loop).__qualname__}: {key}": _mark(value) for key, value in _data(vars(type(loop)))}
        )
    for module in _modules(instance):
        found.update({f"module {module.__name__}: {key}": _mark(value) for key, value in _data(vars(module))})
    return found


def find_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the places where something was added, taken away or changed."""
    return sorted(place for place in before.keys() | after.keys() if not _is_same(before.get(place), after.get(place)))


def _components(instance: ModelInstance) -> Iterator[tuple[str, Any]]:
    for name in instance.card.components:
        if instance.has_component(name):
            yield name, instance.component(name)


def _attributes(part: Any) -> Iterator[tuple[str, Any]]:
    for key, value in getattr(part, "__dict__", {}).items():
        if key in ("_parameters", "_buffers"):
            yield from value.items()
        elif key != "_modules":
            yield key, value


def _data(names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what is data among the names of a module or class."""
    for key, value in names.items():
        if not key.startswith("__") and not isinstance(value, _CODE):
            yield key, value


def _modules(instance: ModelInstance) -> list[types.ModuleType]:
    names = {type(loop).__module__ for loop in instance.loops.values()}
    names |= {getattr(step, "__module__", "") for step in instance.steps.values()}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]


def _mark(value: Any) -> tuple[Any, Any]:
    """Return a value with what tells whether it was changed in place."""
    if isinstance(value, torch.Tensor):
        return value, _version(value)
    if isinstance(value, dict):
        return value, tuple((str(key), _short(item)) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return value, tuple(_short(item) for item in value)
    return value, getattr(value, "__dict__", None) and {key: _short(item) for key, item in vars(value).items()}


def _short(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    return (id(value), _version(value)) if isinstance(value, torch.Tensor) else id(value)


def _version(tensor: torch.Tensor) -> int:
    return int(tensor._version)  # noqa: SLF001 - torch's own count of changes in place


def _is_same(one: tuple[Any, Any] | None, other: tuple[Any, Any] | None) -> bool:
    if one is None or other is None:
        return False
    is_same = one[0] is other[0] or (isinstance(one[0], _PLAIN) and one[0] == other[0])
    return is_same and one[1] == other[1]
