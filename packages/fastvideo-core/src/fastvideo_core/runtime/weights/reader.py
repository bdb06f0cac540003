"""Tensors from safetensors files, one at a time, each put once into its final place.

The file is mapped into memory. A tensor that needs no conversion and stays on the CPU is used where it lies in the
map: nothing is copied, the kernel can drop its pages, and it has the very address within its page that the reference
libraries' loaders give it (what a kernel computes can depend on that, to the last bit, unless `MKL_CBWR` names a strict
mode). All others are copied out once, converting on the way. Putting another file in the place of one that is in use
does no harm; writing into it does, as it does to every program that maps files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from safetensors import SafetensorError, safe_open

from fastvideo_core.errors import CheckpointError, ResourceError
from fastvideo_core.runtime.weights.dtypes import DTYPES, torch_dtype_name
from fastvideo_core.runtime.weights.files import WeightFiles
from fastvideo_core.runtime.weights.header import FileHeader, TensorEntry, read_header
from fastvideo_core.runtime.weights.keys import NamePredicate, no_name
from fastvideo_core.runtime.weights.text import format_bytes


def read_tensors(
    files: WeightFiles,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    keep_float32: NamePredicate = no_name,
    names: Collection[str] | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and tensors in the order of the files.

    Args:
        files: Checked files.
        dtype: What floats become; None leaves them as they are on disk. Integers and the like stay.
        device: Where the tensors are put.
        keep_float32: Names in the file whose floats become float32 whatever `dtype` is.
        names: Only these; None means all.

    Raises:
        CheckpointError: If a file changed after its header was checked, or a value does not fit into `dtype`.
        ResourceError: If memory runs out.
    """
    for header in files.headers:
        wanted = [entry for entry in header.tensors.values() if names is None or entry.name in names]
        if not wanted:
            continue
        _check_unchanged(header)
        try:
            with safe_open(header.path, framework="pt", device="cpu") as file:
                for entry in wanted:
                    target = memory_dtype(entry, dtype, is_float32=keep_float32(entry.name))
                    yield entry.name, _place(file.get_tensor(entry.name), entry, target, device, header)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"cannot read {header.path}: {error}") from error


def memory_dtype(entry: TensorEntry, dtype: torch.dtype | None, *, is_float32: bool = False) -> torch.dtype:
    """Return the dtype that a tensor gets in memory.

    Raises:
        CheckpointError: If torch has no such number format.
    """
    on_disk = DTYPES[entry.dtype]
    if on_disk.torch_name is None or not hasattr(torch, on_disk.torch_name):
        raise CheckpointError(f"{entry.name!r} is stored as {entry.dtype}, which torch cannot read as plain numbers")
    if on_disk.kind == "float" and dtype is not None:
        return torch.float32 if is_float32 else dtype
    found: torch.dtype = getattr(torch, on_disk.torch_name)
    return found


def _check_unchanged(header: FileHeader) -> None:
    """Check the header again: the file may have been replaced since, and a map of a shorter file would crash."""
    if read_header(header.path).tensors != header.tensors:
        raise CheckpointError(f"{header.path} changed while it was being loaded; load again")


def _place(
    mapped: torch.Tensor, entry: TensorEntry, dtype: torch.dtype, device: torch.device | str, header: FileHeader
) -> torch.Tensor:
    if mapped.dtype == dtype and torch.device(device).type == "cpu" and entry.start % dtype.itemsize == 0:
        return mapped
    try:
        placed = torch.empty(entry.shape, dtype=dtype, device=device)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        need = entry.num_elements * dtype.itemsize
        raise ResourceError(
            f"no memory on {device} for {entry.name!r} of {header.path.name}: {format_bytes(need)} more needed"
        ) from error
    if _exceeds(mapped, dtype):
        raise CheckpointError(
            f"{header.path}: {entry.name!r} holds values that {torch_dtype_name(dtype)} cannot; load it as bfloat16 "
            "or float32"
        )
    return placed.copy_(mapped)


def _is_out_of_memory(error: Exception) -> bool:
    # torch has a type of its own for devices, and a bare RuntimeError for the CPU.
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)


def _exceeds(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether values lie outside what a dtype can hold; a conversion would make them infinite, or cut them."""
    if not tensor.is_floating_point() or not dtype.is_floating_point or tensor.numel() == 0:
        return False
    largest = torch.finfo(dtype).max
    # The factor leaves bfloat16 and float32 alone, whose ranges differ by rounding only.
    if 2 * largest >= torch.finfo(tensor.dtype).max:
        return False
    lowest, highest = torch.aminmax(tensor)
    return bool(torch.maximum(-lowest, highest) > largest)
