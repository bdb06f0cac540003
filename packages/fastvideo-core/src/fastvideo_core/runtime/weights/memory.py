"""How much memory weights need and how much there is, before anything is allocated.

Container limits count: a process in a 16 GB container on a 256 GB machine has 16 GB.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

from fastvideo_core.errors import ResourceError
from fastvideo_core.runtime.weights.dtypes import DTYPES, DTypeLike, dtype_bits
from fastvideo_core.runtime.weights.files import WeightFiles
from fastvideo_core.runtime.weights.keys import NamePredicate, Rename, keep_name, no_name
from fastvideo_core.runtime.weights.text import format_bytes

_REMEDY = "choose a smaller card or a 16-bit precision, or free memory"
# (limit, usage, counter of file pages that can be dropped at once) in a memory control group.
_CGROUP_FILES = {
    "cgroup2": ("memory.max", "memory.current", "inactive_file"),
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def estimate_bytes(
    files: WeightFiles,
    dtype: DTypeLike | None = None,
    *,
    keep_float32: NamePredicate = no_name,
    key_map: Rename = keep_name,
    ignored: NamePredicate = no_name,
) -> int:
    """Return the bytes that a component's weights take once loaded, from the headers alone.

    Args:
        files: The component's files.
        dtype: What floats are loaded as, a torch dtype or its name; None leaves them as they are on disk.
        keep_float32: Names of the module whose floats are held in float32 whatever `dtype` is.
        key_map: As for `load_module`.
        ignored: As for `load_module`.
    """
    num_bytes = 0
    for name, entry in files.tensors.items():
        if ignored(name):
            continue
        bits = DTYPES[entry.dtype].bits
        if DTYPES[entry.dtype].kind == "float" and dtype is not None:
            bits = 32 if keep_float32(key_map(name)) else dtype_bits(dtype)
        num_bytes += entry.num_elements * bits // 8
    return num_bytes


def available_memory(device: str = "cpu") -> int:
    """Return the bytes that can still be allocated on a device without swapping.

    On the CPU: the least of what the system and the process's control groups leave. On CUDA: what the driver has
    free, plus what torch holds without using it.

    Raises:
        ResourceError: If there is no such device here.
    """
    if device.partition(":")[0] == "cpu":
        headrooms = [psutil.virtual_memory().available, *cgroup_headrooms()]
        return max(0, min(headrooms))
    return _available_device_memory(device)


def measured_limit(device: str) -> int:
    """Return the bytes that requests may take on a device besides what is there already: nine tenths of what is left.

    Raises:
        ResourceError: If there is no such device here.
    """
    return available_memory(device) * 9 // 10


def check_memory(
    need_bytes: int,
    *,
    device: str = "cpu",
    purpose: str = "the weights",
    available_bytes: int | None = None,
    remedy: str = _REMEDY,
) -> None:
    """Refuse what does not fit.

    Args:
        need_bytes: What is going to be allocated.
        device: Where, as torch names it.
        purpose: What it is for, for the message.
        available_bytes: What there is; None asks the machine.
        remedy: What the user can do.

    Raises:
        ResourceError: If more is needed than there is; says both figures.
    """
    available = available_memory(device) if available_bytes is None else available_bytes
    if need_bytes > available:
        raise ResourceError(
            f"not enough memory for {purpose}: {format_bytes(need_bytes)} needed on {device}, "
            f"{format_bytes(available)} available; {remedy}"
        )


def cgroup_headrooms(root: Path = Path("/")) -> list[int]:
    """Return what each memory control group of this process leaves, in bytes; empty where nothing limits it.

    Both versions of the interface are read. File pages that the kernel drops when memory is short do not count as used.

    Args:
        root: Where `proc` and `sys` lie.
    """
    headrooms = []
    for kind, folder in _cgroup_folders(root):
        limit_name, usage_name, droppable_name = _CGROUP_FILES[kind]
        limit, usage = _read_number(folder / limit_name), _read_number(folder / usage_name)
        # An unlimited group says `max` in version 2 and a number near 2**63 in version 1.
        if limit is not None and usage is not None and limit < 2**60:
            droppable = _read_counters(folder / "memory.stat").get(droppable_name, 0)
            headrooms.append(limit - usage + droppable)
    return headrooms


def _cgroup_folders(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield kind and folder of this process's memory groups and of every group above them."""
    groups = _process_groups(root)
    for line in _read_lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, mount = before.split(), after.split()
        if len(fields) < 5 or len(mount) < 3 or mount[0] not in groups:
            continue
        if mount[0] == "cgroup" and "memory" not in mount[2].split(","):
            continue
        mounted, place = PurePosixPath(fields[3]), root / fields[4].lstrip("/")
        group = PurePosixPath(groups[mount[0]])
        # In a container the group is often named from the host's root, and only its own part is mounted.
        inside = group.relative_to(mounted) if group.is_relative_to(mounted) else PurePosixPath()
        for level in (inside, *inside.parents):
            yield mount[0], place / level


def _process_groups(root: Path) -> dict[str, str]:
    """Return the path of this process's memory group for each version of the interface."""
    groups = {}
    for line in _read_lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            groups["cgroup2"] = path
        elif "memory" in controllers.split(","):
            groups["cgroup"] = path
    return groups


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        # Not Linux, or hidden from this process: then nothing is known to limit it.
        return []


def _read_number(path: Path) -> int | None:
    lines = _read_lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _read_counters(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in _read_lines(path))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _available_device_memory(device: str) -> int:
    import torch

    if not device.startswith("cuda") or not torch.cuda.is_available():
        present = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        raise ResourceError(f"no device {device!r} here; there is {', '.join(['cpu', *present])}")
    free_bytes, _ = torch.cuda.mem_get_info(device)
    unused_bytes = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free_bytes + unused_bytes
