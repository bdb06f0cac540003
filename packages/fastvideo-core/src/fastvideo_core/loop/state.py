"""The codec of loop states: safetensors for tensors, JSON for all else, never pickle.

A state is a dataclass whose fields are, by annotation: bool, int, float, str, None, bytes, tensors, CPU generators,
tuples, lists and dicts of these, literals, and other dataclasses (also in unions, and subclasses of what the annotation
names). `Any` takes all of these but dataclasses. What does not fit its annotation is refused when it is written, and
again when it is read. Classes come from the schema, never from the stored form, which only repeats their names and
versions: a foreign or changed state is refused by name. Reading runs no code of theirs.

Tensors come back with the same bits, dtype, shape and order in memory, on the CPU, each with memory of its own. A
digest over everything finds a file that is not what was written.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import struct
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fastvideo_core.errors import StateError, describe_failure
from fastvideo_core.loop.annotations import allowed_classes, check_literal, field_types, part_of, taking_members

__all__ = ["LoopState", "decode_state", "encode_state", "state_schema"]

_StateT = TypeVar("_StateT")
_FORMAT = "fastvideo-state/1"
_METADATA_KEY = "fastvideo"
_DIGEST_LENGTH = 64
_KINDS: dict[str, type] = {
    "float": float,
    "bytes": bytes,
    "tensor": torch.Tensor,
    "generator": torch.Generator,
    "list": list,
    "tuple": tuple,
    "dict": dict,
}
"""What a tagged node of the tree stands for; `object`, a dataclass, is looked up in the schema."""

_BROKEN = (
    SafetensorError, ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
    struct.error,
)  # fmt: skip
"""What the libraries raise at a file that somebody has damaged or made up."""


class LoopState:
    """Base of all loop states.

    Attributes:
        schema_version: Raised when fields change meaning; a stored state of another version is refused.
    """

    __slots__ = ()
    schema_version: ClassVar[int] = 1


def state_schema(cls: type) -> str:
    """Return the name under which objects of a class are stored, version included."""
    return f"{cls.__module__}:{cls.__qualname__}/{getattr(cls, 'schema_version', 1)}"


def encode_state(state: Any) -> bytes:
    """Turn a state into bytes; equal states give equal bytes.

    Raises:
        StateError: A field holds something that its annotation, or the codec, does not allow.
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = _encode(state, type(state), "state", tensors)
    text = json.dumps({"format": _FORMAT, "schema": state_schema(type(state)), "tree": tree}, allow_nan=False)
    try:
        return save(tensors, metadata={_METADATA_KEY: _digest(text, tensors) + text})
    except _BROKEN as error:
        raise StateError(f"the state holds a tensor that safetensors does not: {describe_failure(error)}") from error


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
    except _BROKEN as error:
        raise StateError(f"the saved state does not fit {expected!r}: {describe_failure(error)}") from error


def _open(data: bytes) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    try:
        header_size = int.from_bytes(data[:8], "little")
        stored = json.loads(data[8 : 8 + header_size])["__metadata__"][_METADATA_KEY]
        digest, text = stored[:_DIGEST_LENGTH], stored[_DIGEST_LENGTH:]
        document = json.loads(text)
        tensors = load(data)
        is_whole = digest == _digest(text, tensors)
    except _BROKEN as error:
        why = describe_failure(error)
        raise StateError(f"the saved state is corrupt or no state at all ({len(data)} bytes): {why}") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise StateError(f"the saved state is not of format {_FORMAT!r}")
    if not is_whole:
        raise StateError(f"the saved state is corrupt ({len(data)} bytes): its digest differs")
    return document, tensors


def _digest(text: str, tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _encode(value: Any, annotation: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    kind = _kind_of(value)
    members = taking_members(annotation, kind, path, length=len(value) if kind is tuple else None)
    if value is None or kind in (bool, int, str):
        check_literal(value, members, path)
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if kind is torch.Tensor:
        return _encode_tensor(value, path, tensors)
    if kind is torch.Generator:
        return _encode_generator(value, path, tensors)
    if kind is list or kind is tuple:
        items = [_encode(item, part_of(members, i), f"{path}.{i}", tensors) for i, item in enumerate(value)]
        return {kind.__name__: items}
    if kind is dict:
        return {"dict": [_encode_item(key, item, members, path, tensors) for key, item in value.items()]}
    if dataclasses.is_dataclass(kind):
        return _encode_dataclass(value, path, tensors)
    raise StateError(f"{path} holds a {kind.__qualname__}, which a state cannot hold")


def _encode_item(
    key: Any, value: Any, members: Sequence[Any], path: str, tensors: dict[str, torch.Tensor]
) -> tuple[Any, Any]:
    if type(key) not in (str, int):
        raise StateError(f"{path} has a key of type {type(key).__qualname__}; allowed: str, int")
    key_node = _encode(key, part_of(members, 0), f"{path}.{key} (key)", tensors)
    return key_node, _encode(value, part_of(members, 1), f"{path}.{key}", tensors)


def _encode_dataclass(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    fields = field_types(type(value))
    if hidden := set(getattr(value, "__dict__", ())) - set(fields):
        raise StateError(f"{path} holds {sorted(hidden)} besides the fields of {type(value).__qualname__}")
    nodes = {name: _encode(getattr(value, name), kind, f"{path}.{name}", tensors) for name, kind in fields.items()}
    return {"object": state_schema(type(value)), "fields": nodes}


def _encode_tensor(value: torch.Tensor, path: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise StateError(f"{path} holds a tensor of a kind that is not stored: {value.dtype}, {value.layout}")
    # A copy is dense, keeps the order of the dimensions in memory, and shares nothing with another entry.
    copy = value.detach().resolve_conj().resolve_neg().to("cpu", copy=True)
    node: dict[str, Any] = {"tensor": str(len(tensors))}
    if copy.stride() != _plain_stride(copy):
        node["stride"] = list(copy.stride())
    tensors[node["tensor"]] = copy.contiguous()
    return node


def _encode_generator(value: torch.Generator, path: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    if value.device.type != "cpu":
        raise StateError(f"{path} holds a generator of {value.device}; noise is drawn on the CPU")
    name = str(len(tensors))
    tensors[name] = value.get_state()
    return {"generator": name}


def _decode(node: Any, annotation: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(node, dict):
        check_literal(node, taking_members(annotation, type(node), path), path)
        if isinstance(node, list):
            raise StateError(f"{path} holds a list without a tag")
        return node
    if "object" in node:
        return _decode_dataclass(node, annotation, path, tensors)
    tag = next((tag for tag in _KINDS if tag in node), None)
    if tag is None:
        raise StateError(f"{path} holds a node without a known tag: {sorted(node)}")
    content = node[tag]
    members = taking_members(annotation, _KINDS[tag], path, length=len(content) if tag == "tuple" else None)
    if tag == "tensor":
        return _decode_tensor(tensors[content], node.get("stride"), path)
    if tag in _LEAVES:
        return _LEAVES[tag](content, tensors)
    if tag == "dict":
        return dict(_decode_item(item, members, path, tensors) for item in content)
    return _KINDS[tag](_decode(item, part_of(members, i), f"{path}.{i}", tensors) for i, item in enumerate(content))


def _decode_item(
    item: Sequence[Any], members: Sequence[Any], path: str, tensors: dict[str, torch.Tensor]
) -> tuple[Any, Any]:
    key = _decode(item[0], part_of(members, 0), f"{path} (key)", tensors)
    return key, _decode(item[1], part_of(members, 1), f"{path}.{key}", tensors)


def _decode_generator(name: str, tensors: dict[str, torch.Tensor]) -> torch.Generator:
    generator = torch.Generator("cpu")
    generator.set_state(tensors[name])
    return generator


_LEAVES: dict[str, Callable[[str, dict[str, torch.Tensor]], Any]] = {
    "float": lambda content, _: struct.unpack(">d", bytes.fromhex(content))[0],
    "bytes": lambda content, _: base64.b64decode(content, validate=True),
    "generator": _decode_generator,
}


def _decode_dataclass(node: dict[str, Any], annotation: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    candidates = {state_schema(c): c for c in allowed_classes(annotation)}
    cls = candidates.get(node["object"])
    if cls is None:
        raise StateError(f"{path} holds a {node['object']!r}; the schema allows {sorted(candidates)}")
    fields = field_types(cls)
    if unknown := set(node["fields"]) ^ set(fields):
        raise StateError(f"{path} ({cls.__qualname__}) has other fields than the schema: {sorted(unknown)}")
    instance: Any = object.__new__(cls)
    for name, kind in fields.items():
        object.__setattr__(instance, name, _decode(node["fields"][name], kind, f"{path}.{name}", tensors))
    return instance


def _decode_tensor(stored: torch.Tensor, stride: Sequence[int] | None, path: str) -> torch.Tensor:
    """Copy a tensor into memory of its own, aligned as torch aligns it: kernels may go by the alignment."""
    if stride is None:
        return stored.clone()
    span = 1 + sum((size - 1) * step for size, step in zip(stored.shape, stride, strict=True))
    if span != stored.numel():
        raise StateError(f"{path} holds a tensor of shape {tuple(stored.shape)} with stride {tuple(stride)}")
    return torch.empty_strided(stored.shape, stride, dtype=stored.dtype).copy_(stored)


def _plain_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the stride of a tensor whose last dimension is the innermost; that of an empty one does not matter."""
    return tensor.stride() if tensor.numel() == 0 else torch.empty(tensor.shape, device="meta").stride()


def _kind_of(value: Any) -> type[Any]:
    """Return the class under which the codec knows a value; other subclasses of tensors are more than their bits."""
    return torch.Tensor if type(value) is torch.nn.Parameter else type(value)
