"""Digests of what results depend on, and sizes of what is held; imports no torch before a tensor comes."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from fastvideo_core.errors import ParameterError

__all__ = ["content_hash", "held_bytes", "input_hashes", "tensors_in"]


class _Digest(Protocol):
    def update(self, data: Any, /) -> None: ...


def content_hash(value: Any) -> str:
    """Return the SHA-256 of a value: equal values give equal digests, on any device and in any memory layout.

    Tensors count by number format, shape and bits; texts by their UTF-8; sequences, mappings (in any order) and
    dataclasses by their parts. A list and a tuple of the same parts are the same; 1, 1.0 and True are not.

    Raises:
        ParameterError: It is, or holds, something else.
    """
    digest = hashlib.sha256()
    _feed(digest, value, "value")
    return digest.hexdigest()


def input_hashes(**values: Any) -> tuple[tuple[str, str], ...]:
    """Return the digests of named inputs, sorted by name, as `CacheKey.input_hashes` has them."""
    return tuple(sorted((name, content_hash(value)) for name, value in values.items()))


def held_bytes(value: Any) -> int:
    """Return the bytes of memory that the tensors in a value keep alive; memory that two share counts once.

    Looks into sequences, mappings and dataclasses. A view counts as all of the memory that it is a view of.
    """
    storages: dict[tuple[str, int], int] = {}
    for tensor in tensors_in(value):
        storage = tensor.untyped_storage()
        storages[str(tensor.device), storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _feed(digest: _Digest, value: Any, path: str) -> None:
    if (scalar := _scalar_bytes(value)) is not None:
        _tagged(digest, *scalar)
    elif _is_tensor(value):
        _feed_tensor(digest, value, path)
    elif isinstance(value, (list, tuple)):
        digest.update(b"l" + struct.pack("<Q", len(value)))
        for index, part in enumerate(value):
            _feed(digest, part, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        _feed_mapping(digest, value, path)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _tagged(digest, b"o", f"{type(value).__module__}:{type(value).__qualname__}".encode())
        names = [field.name for field in dataclasses.fields(value)]
        _feed_mapping(digest, {name: getattr(value, name) for name in names}, path)
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        _tagged(digest, b"n", repr((str(value.dtype), tuple(value.shape))).encode())
        _tagged(digest, b"n", value.tobytes())
    else:
        raise ParameterError(
            "has no content that could be hashed",
            field=path,
            value=type(value).__qualname__,
            allowed="numbers, texts, bytes, tensors, arrays, sequences, mappings and dataclasses of these",
        )


def _scalar_bytes(value: Any) -> tuple[bytes, bytes] | None:
    if value is None:
        return b"0", b""
    kind = type(value)
    if kind is bool:
        return b"b", bytes([value])
    if kind is int:
        return b"i", str(value).encode()
    if kind is float:
        return b"f", struct.pack("<d", value)
    if isinstance(value, str):
        return b"s", value.encode("utf-8", "surrogatepass")
    if kind in (bytes, bytearray, memoryview):
        return b"y", bytes(value)
    return None


def _tagged(digest: _Digest, tag: bytes, data: Any) -> None:
    # The length keeps ("ab", "c") and ("a", "bc") apart.
    digest.update(tag + struct.pack("<Q", len(data)))
    digest.update(data)


def _feed_mapping(digest: _Digest, value: Mapping[Any, Any], path: str) -> None:
    digest.update(b"d" + struct.pack("<Q", len(value)))
    parts = {content_hash(key): (key, part) for key, part in value.items()}
    for name in sorted(parts):
        key, part = parts[name]
        digest.update(bytes.fromhex(name))
        _feed(digest, part, f"{path}[{key!r}]")


def _feed_tensor(digest: _Digest, tensor: Any, path: str) -> None:
    import torch

    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        raise ParameterError("a tensor without plain values", field=path, value=f"{tensor.dtype}, {tensor.layout}")
    _tagged(digest, b"t", repr((str(tensor.dtype), tuple(tensor.shape))).encode())
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    _tagged(digest, b"t", plain.reshape(-1).view(torch.uint8).numpy().data)


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield the tensors in a value, in order: in sequences, mappings and dataclasses of any depth."""
    if _is_tensor(value):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def _is_tensor(value: Any) -> bool:
    # Whoever has a tensor has torch; without it there is nothing to ask.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
