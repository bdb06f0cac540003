"""The codec of loop states: safetensors for tensors, JSON for all else, never pickle.

A state is a dataclass whose fields are, by annotation: bool, int, float, str, None, bytes, tensors, CPU generators,
tuples, lists and dicts of these, literals, and other dataclasses (also in unions, and subclasses of what the annotation
names). `Any` takes all of these but dataclasses. What does not fit its annotation is refused when it is written, and
again when it is read. Classes come from the schema, never from the stored form, which only repeats their names and
versions: a foreign or changed state is refused by name. Reading runs no code of theirs.

Tensors come back with the same bits, dtype, shape and order in memory, each with memory of its own; on the CPU, unless
the reader names a device for those that were on one. A digest over everything finds a file that is not what was
written.

`encode_state` and `decode_state` keep all in one piece. `encode_tree` and `decode_tree` leave the tensors to the
caller, who may store each of them once however often the state is stored.
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

__all__ = [
    "IS_ON_DEVICE",
    "GetTensor",
    "LoopState",
    "PluginState",
    "PutTensor",
    "decode_state",
    "decode_tree",
    "encode_state",
    "encode_tree",
    "host_tensor",
    "place_tensor",
    "state_schema",
    "tensor_layout",
]

_StateT = TypeVar("_StateT")

PutTensor = Callable[[torch.Tensor], dict[str, Any]]
"""Takes a tensor of a state, and gives the node that stands for it: its name as `tensor`, and what else there is."""

GetTensor = Callable[[Mapping[str, Any]], torch.Tensor]
"""Gives the tensor that a node stands for, where it belongs."""

IS_ON_DEVICE = "is_on_device"
"""In the node of a tensor that was not on the CPU."""

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


class PluginState:
    """Base of what an interceptor remembers of a request between steps: a dataclass of its own, with slots.

    A loop's state holds it as `plugin_state: dict[str, dict[str, PluginState]]`, by interceptor, then by component and
    branch. The codec knows the classes that are imported, as those of enabled interceptors are.

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

    def put(tensor: torch.Tensor) -> dict[str, Any]:
        # A copy shares nothing with another entry, which safetensors does not take.
        copy = host_tensor(tensor, copy=True)
        node = {"tensor": str(len(tensors)), **tensor_layout(tensor)}
        tensors[node["tensor"]] = copy.contiguous()
        return node

    document = {"format": _FORMAT, "schema": state_schema(type(state)), "tree": encode_tree(state, put)}
    text = json.dumps(document, allow_nan=False)
    try:
        return save(tensors, metadata={_METADATA_KEY: _digest(text, tensors) + text})
    except _BROKEN as error:
        raise StateError(f"the state holds a tensor that safetensors does not: {describe_failure(error)}") from error


def encode_tree(state: Any, put: PutTensor) -> Any:
    """Turn a state into a tree that JSON can hold, which refers to its tensors by name.

    Nothing in the tree changes with the state later on. Of the tensors, only references are given to `put`.

    Raises:
        StateError: A field holds something that its annotation, or the codec, does not allow.
    """
    return _encode(state, type(state), "state", put)


def decode_state(data: bytes, cls: type[_StateT], *, device: torch.device | None = None) -> _StateT:
    """Turn bytes back into a state.

    Args:
        data: What `encode_state` gave.
        cls: The expected class.
        device: Where tensors go that were not on the CPU; None leaves them on it.

    Raises:
        StateError: The bytes are corrupt, or hold another schema or version.
    """
    document, tensors = _open(data)
    expected = state_schema(cls)
    if document.get("schema") != expected:
        raise StateError(f"the saved state is of schema {document.get('schema')!r}; this loop reads {expected!r}")

    def get(node: Mapping[str, Any]) -> torch.Tensor:
        return place_tensor(tensors[node["tensor"]], node, device)

    return decode_tree(document.get("tree"), cls, get)


def decode_tree(tree: Any, cls: type[_StateT], get: GetTensor) -> _StateT:
    """Turn a tree back into a state.

    Args:
        tree: What `encode_tree` gave.
        cls: The expected class.
        get: Gives the tensors that the tree refers to.

    Raises:
        StateError: The tree does not fit the class.
    """
    try:
        return typing.cast("_StateT", _decode(tree, cls, "state", get))
    except _BROKEN as error:
        raise StateError(f"the saved state does not fit {state_schema(cls)!r}: {describe_failure(error)}") from error


def host_tensor(tensor: torch.Tensor, *, copy: bool = False) -> torch.Tensor:
    """Return a tensor's values on the CPU, with nothing between them, in the same order; a copy only if need be.

    Args:
        tensor: On any device.
        copy: Whether it has to be a copy.
    """
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.to("cpu", copy=copy or plain.stride() != _dense_stride(plain))


def tensor_layout(tensor: torch.Tensor) -> dict[str, Any]:
    """Return what is to be known of a tensor besides its values, as a part of its node: see `place_tensor`."""
    layout: dict[str, Any] = {}
    stride = _dense_stride(tensor)
    if tensor.numel() and stride != torch.empty(tensor.shape, device="meta").stride():
        layout["stride"] = list(stride)
    if _is_on_device(tensor):
        layout[IS_ON_DEVICE] = True
    return layout


def place_tensor(stored: torch.Tensor, node: Mapping[str, Any], device: torch.device | None) -> torch.Tensor:
    """Copy a tensor into memory of its own, aligned as torch aligns it: kernels may go by the alignment.

    Args:
        stored: Its values on the CPU, contiguous.
        node: Its node; what `tensor_layout` gave is in it.
        device: Where it goes if it was not on the CPU; None leaves it on it.

    Raises:
        StateError: The node's stride cannot be that of such a tensor.
    """
    stride = node.get("stride")
    tensor = stored.clone() if stride is None else _restride(stored, stride)
    return tensor.to(device) if device is not None and node.get(IS_ON_DEVICE) else tensor


def _restride(stored: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    span = 1 + sum((size - 1) * step for size, step in zip(stored.shape, stride, strict=True))
    if span != stored.numel():
        raise StateError(f"a tensor of shape {tuple(stored.shape)} with stride {tuple(stride)} has holes or overlaps")
    return torch.empty_strided(stored.shape, stride, dtype=stored.dtype).copy_(stored)


def _dense_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the stride of a tensor's copy: the same order of dimensions in memory, nothing between the values."""
    return torch.empty_like(tensor, device="meta").stride()


def _is_on_device(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "cpu"


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


def _encode(value: Any, annotation: Any, path: str, put: PutTensor) -> Any:
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
        return _encode_tensor(value, path, put)
    if kind is torch.Generator:
        return _encode_generator(value, path, put)
    if kind is list or kind is tuple:
        items = [_encode(item, part_of(members, i), f"{path}.{i}", put) for i, item in enumerate(value)]
        return {kind.__name__: items}
    if kind is dict:
        return {"dict": [_encode_item(key, item, members, path, put) for key, item in value.items()]}
    if dataclasses.is_dataclass(kind):
        return _encode_dataclass(value, path, put)
    raise StateError(f"{path} holds a {kind.__qualname__}, which a state cannot hold")


def _encode_item(key: Any, value: Any, members: Sequence[Any], path: str, put: PutTensor) -> tuple[Any, Any]:
    if type(key) not in (str, int):
        raise StateError(f"{path} has a key of type {type(key).__qualname__}; allowed: str, int")
    key_node = _encode(key, part_of(members, 0), f"{path}.{key} (key)", put)
    return key_node, _encode(value, part_of(members, 1), f"{path}.{key}", put)


def _encode_dataclass(value: Any, path: str, put: PutTensor) -> dict[str, Any]:
    fields = field_types(type(value))
    if hidden := set(getattr(value, "__dict__", ())) - set(fields):
        raise StateError(f"{path} holds {sorted(hidden)} besides the fields of {type(value).__qualname__}")
    nodes = {name: _encode(getattr(value, name), kind, f"{path}.{name}", put) for name, kind in fields.items()}
    return {"object": state_schema(type(value)), "fields": nodes}


def _encode_tensor(value: torch.Tensor, path: str, put: PutTensor) -> dict[str, Any]:
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise StateError(f"{path} holds a tensor of a kind that is not stored: {value.dtype}, {value.layout}")
    return put(value)


def _encode_generator(value: torch.Generator, path: str, put: PutTensor) -> dict[str, Any]:
    if value.device.type != "cpu":
        raise StateError(f"{path} holds a generator of {value.device}; noise is drawn on the CPU")
    return {"generator": put(value.get_state())["tensor"]}


def _decode(node: Any, annotation: Any, path: str, get: GetTensor) -> Any:
    if not isinstance(node, dict):
        check_literal(node, taking_members(annotation, type(node), path), path)
        if isinstance(node, list):
            raise StateError(f"{path} holds a list without a tag")
        return node
    if "object" in node:
        return _decode_dataclass(node, annotation, path, get)
    tag = next((tag for tag in _KINDS if tag in node), None)
    if tag is None:
        raise StateError(f"{path} holds a node without a known tag: {sorted(node)}")
    content = node[tag]
    members = taking_members(annotation, _KINDS[tag], path, length=len(content) if tag == "tuple" else None)
    if tag in _LEAVES:
        return _LEAVES[tag](content, get)
    if tag == "tensor":
        return get(node)
    if tag == "dict":
        return dict(_decode_item(item, members, path, get) for item in content)
    return _KINDS[tag](_decode(item, part_of(members, i), f"{path}.{i}", get) for i, item in enumerate(content))


def _decode_item(item: Sequence[Any], members: Sequence[Any], path: str, get: GetTensor) -> tuple[Any, Any]:
    key = _decode(item[0], part_of(members, 0), f"{path} (key)", get)
    return key, _decode(item[1], part_of(members, 1), f"{path}.{key}", get)


def _decode_generator(name: str, get: GetTensor) -> torch.Generator:
    generator = torch.Generator("cpu")
    generator.set_state(get({"tensor": name}))
    return generator


_LEAVES: dict[str, Callable[[str, GetTensor], Any]] = {
    "float": lambda content, _: struct.unpack(">d", bytes.fromhex(content))[0],
    "bytes": lambda content, _: base64.b64decode(content, validate=True),
    "generator": _decode_generator,
}


def _decode_dataclass(node: dict[str, Any], annotation: Any, path: str, get: GetTensor) -> Any:
    # A dataclass with slots is made twice; the first of the two may still be there, and has none.
    allowed = sorted(allowed_classes(annotation), key=lambda one: "__slots__" in vars(one))
    candidates = {state_schema(one): one for one in allowed}
    cls = candidates.get(node["object"])
    if cls is None:
        raise StateError(f"{path} holds a {node['object']!r}; the schema allows {sorted(candidates)}")
    fields = field_types(cls)
    if unknown := set(node["fields"]) ^ set(fields):
        raise StateError(f"{path} ({cls.__qualname__}) has other fields than the schema: {sorted(unknown)}")
    instance: Any = object.__new__(cls)
    for name, kind in fields.items():
        object.__setattr__(instance, name, _decode(node["fields"][name], kind, f"{path}.{name}", get))
    for one in dataclasses.fields(cls):
        if one.name not in fields:
            object.__setattr__(instance, one.name, one.default)
    return instance


def _kind_of(value: Any) -> type[Any]:
    """Return the class under which the codec knows a value; other subclasses of tensors are more than their bits."""
    return torch.Tensor if type(value) is torch.nn.Parameter else type(value)
