"""The codec of loop states: safetensors for tensors, JSON for all else, never pickle.

A state is a slotted dataclass whose fields are, by annotation: bool, int, float, str, None, bytes, tensors, tuples,
lists and dicts of these, literals, and other slotted dataclasses (also in unions, and subclasses of what the annotation
names). Classes come from the schema, never from the stored form, which only repeats their names and the schema's
version: a foreign or changed state is refused by name.

A `torch.Generator` is stored as its state. Tensors come back with the same bits, dtype and shape, on the CPU.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import types
import typing
from collections.abc import Hashable
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fastvideo_core.errors import StateError

__all__ = ["LoopState", "decode_state", "encode_state", "state_schema"]

_StateT = TypeVar("_StateT")
_FORMAT = "fastvideo-state/1"


class LoopState:
    """Base of all loop states.

    Attributes:
        schema_version: Raised when fields change meaning; a stored state of another version is refused.
    """

    __slots__ = ()
    schema_version: ClassVar[int] = 1


def state_schema(cls: type) -> str:
    """Return the name under which states of a class are stored, version included."""
    return f"{cls.__module__}:{cls.__qualname__}/{getattr(cls, 'schema_version', 1)}"


def encode_state(state: Any) -> bytes:
    """Turn a state into bytes.

    Raises:
        StateError: A field holds something that its annotation, or the codec, does not allow.
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = _encode(state, type(state), "state", tensors)
    document = {"format": _FORMAT, "schema": state_schema(type(state)), "tree": tree}
    return save(tensors, metadata={"fastvideo": json.dumps(document, allow_nan=False)})


def decode_state(data: bytes, cls: type[_StateT]) -> _StateT:
    """Turn bytes back into a state.

    Args:
        data: What `encode_state` gave.
        cls: The expected class.

    Raises:
        StateError: The bytes are corrupt, or hold another schema or version.
    """
    document, tensors = _open(data)
    expected = state_schema(cls)
    if document.get("schema") != expected:
        raise StateError(f"the saved state is of schema {document.get('schema')!r}; this loop reads {expected!r}")
    try:
        return typing.cast("_StateT", _decode(document["tree"], cls, "state", tensors))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"the saved state does not fit {expected!r}: {error!r}") from error


def _open(data: bytes) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    try:
        header_size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + header_size])
        document = json.loads(header["__metadata__"]["fastvideo"])
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise StateError(f"the saved state is corrupt or no state at all ({len(data)} bytes): {error!r}") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise StateError(f"the saved state is not of format {_FORMAT!r}")
    return document, tensors


@cache
def _field_types(cls: Hashable) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(typing.cast("type[Any]", cls))}


def _encode(value: Any, annotation: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, torch.Tensor):
        # A view would share storage with another entry, which safetensors refuses, or drag its base along.
        tensors[path] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": path}
    if isinstance(value, torch.Generator):
        tensors[path] = value.get_state()
        return {"generator": path}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode_dataclass(value, path, tensors)
    if isinstance(value, (list, tuple)):
        items = [_encode(item, None, f"{path}.{i}", tensors) for i, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if isinstance(value, dict):
        return {"dict": [[_encode_key(k, path), _encode(v, None, f"{path}.{k}", tensors)] for k, v in value.items()]}
    raise StateError(f"{path} holds a {type(value).__name__}, which a state cannot hold (annotation: {annotation})")


def _encode_key(key: Any, path: str) -> Any:
    if isinstance(key, (str, int)):
        return key
    raise StateError(f"{path} has a key of type {type(key).__name__}; allowed: str, int")


def _encode_dataclass(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    types_ = _field_types(type(value))
    fields = {
        name: _encode(getattr(value, name), annotation, f"{path}.{name}", tensors)
        for name, annotation in types_.items()
    }
    return {"object": _class_name(type(value)), "fields": fields}


def _decode(node: Any, annotation: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(node, dict):
        return node
    if "float" in node:
        return float(node["float"])
    if "tensor" in node:
        return tensors[node["tensor"]]
    if "generator" in node:
        generator = torch.Generator("cpu")
        generator.set_state(tensors[node["generator"]])
        return generator
    if "bytes" in node:
        return base64.b64decode(node["bytes"])
    if "object" in node:
        return _decode_dataclass(node, annotation, path, tensors)
    if "dict" in node:
        inner = _argument(annotation, dict, 1)
        return {key: _decode(item, inner, f"{path}.{key}", tensors) for key, item in node["dict"]}
    is_tuple = "tuple" in node
    items = node["tuple" if is_tuple else "list"]
    kind = tuple if is_tuple else list
    decoded = [_decode(item, _item_type(annotation, kind, i), f"{path}.{i}", tensors) for i, item in enumerate(items)]
    return tuple(decoded) if is_tuple else decoded


def _decode_dataclass(node: dict[str, Any], annotation: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    candidates = {_class_name(c): c for member in _members(annotation) for c in _with_subclasses(member)}
    cls = candidates.get(node["object"])
    if cls is None:
        raise StateError(f"{path} holds a {node['object']!r}; the schema allows {sorted(candidates)}")
    types_ = _field_types(cls)
    if unknown := set(node["fields"]) ^ set(types_):
        raise StateError(f"{path} ({cls.__qualname__}) has other fields than the schema: {sorted(unknown)}")
    values = {name: _decode(node["fields"][name], types_[name], f"{path}.{name}", tensors) for name in types_}
    return cls(**values)


def _class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _with_subclasses(cls: Any) -> list[type]:
    """Return the dataclasses that a field annotated with `cls` may hold: itself and all that derive from it."""
    if not isinstance(cls, type):
        return []
    below: list[type] = [sub for direct in type.__subclasses__(cls) for sub in _with_subclasses(direct)]
    return [cls, *below] if dataclasses.is_dataclass(cls) else below


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, or the annotation itself, without type arguments of classes."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for part in get_args(annotation) for member in _members(part))
    if get_origin(annotation) is Literal:
        return ()
    origin = get_origin(annotation)
    return (origin,) if dataclasses.is_dataclass(origin) else (annotation,)


def _argument(annotation: Any, kind: type, index: int) -> Any:
    for part in get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,):
        if get_origin(part) is kind:
            return get_args(part)[index]
    return None


def _item_type(annotation: Any, kind: type, index: int) -> Any:
    for part in get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,):
        if get_origin(part) is kind:
            arguments = get_args(part)
            if kind is list or (len(arguments) == 2 and arguments[1] is Ellipsis):
                return arguments[0]
            return arguments[index] if index < len(arguments) else None
    return None
