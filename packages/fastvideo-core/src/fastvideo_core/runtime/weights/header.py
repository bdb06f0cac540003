"""The header of a safetensors file, checked against the file before any tensor is read.

A file is: eight bytes, the header's length N, little-endian; N bytes of JSON, padded with spaces; the tensors' bytes,
without holes, in the order of their offsets, up to the end of the file. A file that was cut short, or is something
else under this name, is found here, by sizes alone.

Source: the safetensors format, https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from fastvideo_core.errors import CheckpointError, UnsafeFormatError
from fastvideo_core.runtime.weights.dtypes import DTYPES

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own bound
_SAFE_REMEDY = "use the model's .safetensors files, or convert it once with a tool that you trust"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies in a file.

    Attributes:
        name: Its name in the file.
        dtype: Its number format, a key of `DTYPES`.
        shape: Its shape.
        start: Offset of its first byte from the file's first byte.
        end: Offset after its last byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class FileHeader:
    """A checked header.

    Attributes:
        path: The file.
        size_bytes: Its size, header included.
        tensors: Its tensors by name, in the order of their offsets.
        metadata: The strings that its writer put beside them.
    """

    path: Path
    size_bytes: int
    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]


def read_header(path: Path) -> FileHeader:
    """Read and check a file's header; reads no tensor.

    Raises:
        CheckpointError: If the file cannot be read, was cut short, or is no safetensors file.
        UnsafeFormatError: If it is a pickle file under this name.
    """
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            text = _read_header_text(file, path, size_bytes)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    data_start = _LENGTH_BYTES + len(text)
    values = _parse_json(text, path)
    metadata = values.pop("__metadata__", {})
    if not _is_string_map(metadata):
        raise CheckpointError(f"{path}: the header's __metadata__ must map strings to strings, got {metadata!r:.80}")
    entries = [_parse_entry(name, value, data_start, path) for name, value in values.items()]
    entries.sort(key=lambda entry: (entry.start, entry.end))
    _check_layout(entries, data_start, size_bytes, path)
    return FileHeader(path, size_bytes, {entry.name: entry for entry in entries}, metadata)


def _read_header_text(file: BinaryIO, path: Path, size_bytes: int) -> bytes:
    start = file.read(64)
    if size_bytes < _LENGTH_BYTES + 2:
        raise CheckpointError(f"{path} is cut short: {size_bytes} bytes, fewer than any safetensors file has")
    num_header_bytes = int.from_bytes(start[:_LENGTH_BYTES], "little")
    if not 2 <= num_header_bytes <= _MAX_HEADER_BYTES or start[_LENGTH_BYTES : _LENGTH_BYTES + 1] != b"{":
        raise _foreign_file_error(path, start)
    expected = _LENGTH_BYTES + num_header_bytes
    if expected > size_bytes:
        raise CheckpointError(
            f"{path} is cut short: its header alone ends at byte {expected}, the file has {size_bytes}; "
            "copy or download it again"
        )
    file.seek(_LENGTH_BYTES)
    return file.read(num_header_bytes)


def _foreign_file_error(path: Path, start: bytes) -> CheckpointError:
    """Say what a file is that is not safetensors, by its first bytes."""
    if start.startswith(b"PK\x03\x04") or (start[:1] == b"\x80" and 2 <= start[1] <= 5):
        return UnsafeFormatError(f"{path} is a pickle file, which can run code when it is read; {_SAFE_REMEDY}")
    if start.startswith(b"version https://git-lfs"):
        return CheckpointError(f"{path} is a git-lfs pointer, not the file itself; run `git lfs pull` in its folder")
    if start.lstrip()[:5].lower() in (b"<!doc", b"<html"):
        return CheckpointError(f"{path} is a web page, not a weight file; download the file itself")
    if not any(start):
        return CheckpointError(f"{path} starts with zeros: an unfinished copy or download; fetch it again")
    return CheckpointError(f"{path} is not a safetensors file (it starts with {start[:12]!r})")


def _parse_json(text: bytes, path: Path) -> dict[str, Any]:
    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(f"{path}: the header names {twice!r} twice")
        return values

    try:
        values = json.loads(text.decode("utf-8"), object_pairs_hook=refuse_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header is not valid JSON ({error}); the file is damaged") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: the header must be a JSON object, got {type(values).__name__}")
    return values


def _parse_entry(name: str, value: Any, data_start: int, path: Path) -> TensorEntry:
    fields = value if isinstance(value, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or not _is_size_list(shape) or not _is_size_list(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{path}: the header's entry for {name!r} is damaged: {value!r:.120}")
    if dtype not in DTYPES:
        raise CheckpointError(f"{path}: {name!r} has the unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    entry = TensorEntry(name, dtype, tuple(shape), data_start + offsets[0], data_start + offsets[1])
    num_bits = entry.num_elements * DTYPES[dtype].bits
    if num_bits != 8 * entry.num_bytes:
        raise CheckpointError(
            f"{path}: {name!r} of shape {entry.shape} and dtype {dtype} needs {num_bits / 8:g} bytes, "
            f"its entry has {entry.num_bytes}"
        )
    return entry


def _check_layout(entries: list[TensorEntry], data_start: int, size_bytes: int, path: Path) -> None:
    """Check that the tensors follow each other without holes and end where the file ends."""
    end = data_start
    for entry in entries:
        if entry.start != end:
            raise CheckpointError(
                f"{path}: {entry.name!r} starts at byte {entry.start}, where the one before it ends at {end}; "
                "the header is damaged"
            )
        end = entry.end
    if size_bytes < end:
        raise CheckpointError(
            f"{path} is cut short: {size_bytes} bytes of {end}, {end - size_bytes} are missing; copy or download it "
            "again"
        )
    if size_bytes > end:
        raise CheckpointError(f"{path} has {size_bytes - end} bytes too many: {size_bytes}, its header says {end}")


def _is_size_list(value: Any) -> TypeGuard[list[int]]:
    # `type` and not `isinstance`: True is an int.
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _is_string_map(value: Any) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
