"""Files of tensors: plain safetensors, written tensor by tensor without a second copy of them all in memory.

Source: the safetensors format, https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from fastvideo_core.errors import StateError, describe_failure
from fastvideo_core.loop.state import host_tensor
from fastvideo_core.runtime.durable.disk import Buffer, Disk
from fastvideo_core.runtime.weights.dtypes import DTYPES, torch_dtype_name

__all__ = ["TensorReader", "write_tensors"]

_ALIGNMENT = 8
_NAMES = {dtype.torch_name: name for name, dtype in DTYPES.items() if dtype.torch_name is not None}


def write_tensors(disk: Disk, path: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Write a file of tensors, from whatever devices they are on.

    Args:
        disk: Where.
        path: A file that is not there.
        tensors: Tensors by name.

    Returns:
        The SHA-256 of each.

    Raises:
        StateError: A number format that safetensors does not have.
        OSError: It cannot be written.
    """
    digests: dict[str, str] = {}
    # The largest formats first, so that every tensor lies at a multiple of its own size.
    order = sorted(tensors, key=lambda name: -tensors[name].element_size())
    ordered = {name: tensors[name] for name in order}
    disk.write(path, _parts(_header(ordered), ordered, digests))
    return digests


class TensorReader:
    """Reads tensors out of files in one folder, each checked against its digest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, file_name: str, name: str, sha256: str) -> torch.Tensor:
        """Return a tensor on the CPU, which may be a view of the file.

        Raises:
            StateError: The file is missing, corrupt or cut short, or holds another tensor.
        """
        if Path(file_name).name != file_name:
            raise StateError(f"{file_name!r} is no name of a file in {self._folder}")
        path = self._folder / file_name
        try:
            with safe_open(path, "pt") as file:
                tensor: torch.Tensor = file.get_tensor(name)
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise StateError(f"{path} is missing, corrupt or cut short: {describe_failure(error)}") from error
        if hashlib.sha256(_bytes_of(tensor)).hexdigest() != sha256:
            raise StateError(f"{path} is corrupt: the digest of tensor {name} differs")
        return tensor


def _parts(header: bytes, tensors: Mapping[str, torch.Tensor], digests: dict[str, str]) -> Iterator[Buffer]:
    yield header
    for name, tensor in tensors.items():
        data = _bytes_of(host_tensor(tensor).contiguous())
        digests[name] = hashlib.sha256(data).hexdigest()
        yield data


def _header(tensors: Mapping[str, torch.Tensor]) -> bytes:
    entries = {}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _dtype_name(tensor), "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _dtype_name(tensor: torch.Tensor) -> str:
    name = _NAMES.get(torch_dtype_name(tensor.dtype))
    if name is None:
        raise StateError(f"a tensor of {tensor.dtype} cannot be stored; safetensors has no such format")
    return name


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, without a copy."""
    data: memoryview = tensor.reshape(-1).view(torch.uint8).numpy().data
    return data
