"""A module with its weights: built without memory, then filled, with every name accounted for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from fastvideo_core.errors import CheckpointError
from fastvideo_core.runtime.weights.dtypes import DTYPES, torch_dtype_name
from fastvideo_core.runtime.weights.files import WeightFiles
from fastvideo_core.runtime.weights.keys import NamePredicate, Rename, keep_name, no_name
from fastvideo_core.runtime.weights.match import Match, match_names
from fastvideo_core.runtime.weights.reader import read_tensors
from fastvideo_core.runtime.weights.scaled import read_scales, rescaled
from fastvideo_core.runtime.weights.skeleton import ModuleT, build_skeleton
from fastvideo_core.runtime.weights.text import format_bytes

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was read for one component.

    Attributes:
        label: The component.
        files: The files.
        num_tensors: Tensors read.
        disk_bytes: Their bytes on disk.
        memory_bytes: Their bytes in memory.
        conversions: Number of tensors by (format on disk, format in memory).
        ignored: Names in the files that were left out on purpose.
        device: Where the weights are.
        duration_s: Seconds it took.
    """

    label: str
    files: tuple[Path, ...]
    num_tensors: int
    disk_bytes: int
    memory_bytes: int
    conversions: dict[tuple[str, str], int]
    ignored: tuple[str, ...]
    device: str
    duration_s: float

    def short(self) -> str:
        """Return the report in a few words: `vae: 96 tensors, 1.5 MB of float16 as float32`."""
        formats = ", ".join(_conversion(*pair) for pair in self.conversions) or "nothing"
        return f"{self.label}: {self.num_tensors} tensors, {format_bytes(self.disk_bytes)} of {formats}"

    def __str__(self) -> str:
        formats = ", ".join(f"{count} {_conversion(*pair)}" for pair, count in self.conversions.items())
        return (
            f"{self.label}: {self.num_tensors} tensors ({formats}) from {len(self.files)} files, "
            f"{format_bytes(self.disk_bytes)} on disk, {format_bytes(self.memory_bytes)} on {self.device}, "
            f"{self.duration_s:.2f} s"
        )


def _conversion(source: str, target: str) -> str:
    return source if source == target else f"{source} as {target}"


def load_module(
    build: Callable[[], ModuleT],
    files: WeightFiles,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    key_map: Rename = keep_name,
    keep_float32: NamePredicate = no_name,
    ignored: NamePredicate = no_name,
    on_progress: Progress | None = None,
) -> tuple[ModuleT, LoadReport]:
    """Build a module and fill it from files; nothing is missing, left over or guessed.

    Args:
        build: Makes the module, on the CPU, with any values; nothing that it makes for parameters is kept.
        files: Checked files.
        dtype: What floats become; None leaves them as they are on disk, those with a scale beside them as float32.
            Buffers that are not in the files keep theirs.
        device: Where the module is put.
        key_map: From a name in the files to a name in the module.
        keep_float32: Names in the module whose floats are held in float32 whatever `dtype` is.
        ignored: Names in the files to leave out, those that the card says another component has.
        on_progress: Told the bytes after each tensor.

    Returns:
        The module, in evaluation mode, parameters asking for gradients as `build` left them; and what was read.

    Raises:
        CheckpointError: If a name is missing, left over, of another shape or kind, or tied names disagree.
        ResourceError: If memory runs out.
    """
    started = time.perf_counter()
    module = build_skeleton(build)
    match = match_names(module, files, key_map, ignored)

    def is_float32(name: str) -> bool:
        return any(keep_float32(target) for target in match.targets[name])

    placed = _read_all(files, match, dtype, device, is_float32, on_progress)
    _check_repeats(files, match, placed)
    _check_constants(module, files, match)
    _assign(module, match, placed)
    report = _report(files, match, placed, device, time.perf_counter() - started)
    return module.to(device).eval(), report


def check_module(
    build: Callable[[], ModuleT], files: WeightFiles, *, key_map: Rename = keep_name, ignored: NamePredicate = no_name
) -> tuple[ModuleT, LoadReport]:
    """Build a module without memory and compare its names and shapes with those of its files, by their headers alone.

    Args:
        build: Makes the module, on the CPU.
        files: Checked files.
        key_map: From a name in the files to a name in the module.
        ignored: Names in the files to leave out.

    Returns:
        The module, its parameters on the meta device; and a report of nothing read.

    Raises:
        CheckpointError: If a name is missing, left over, of another shape or kind.
    """
    started = time.perf_counter()
    module = build_skeleton(build)
    match = match_names(module, files, key_map, ignored)
    return module, _report(files, match, {}, "meta", time.perf_counter() - started)


def _read_all(
    files: WeightFiles,
    match: Match,
    dtype: torch.dtype | None,
    device: torch.device | str,
    is_float32: NamePredicate,
    on_progress: Progress | None,
) -> dict[str, torch.Tensor]:
    entries = files.tensors
    total_bytes = sum(entries[name].num_bytes for name in match.targets)
    placed: dict[str, torch.Tensor] = {}
    done_bytes = 0
    scales = read_scales(files, match.targets.keys())
    for name, tensor in read_tensors(
        files,
        dtype=dtype,
        device=device,
        keep_float32=lambda name: is_float32(name) or name in scales,
        names=match.targets.keys(),
    ):
        held = torch.float32 if dtype is None or is_float32(name) else dtype
        placed[name] = rescaled(tensor.float(), scales[name], held) if name in scales else tensor
        done_bytes += entries[name].num_bytes
        if on_progress is not None:
            on_progress(done_bytes, total_bytes)
    return placed


def _check_repeats(files: WeightFiles, match: Match, placed: dict[str, torch.Tensor]) -> None:
    """Check that a tied tensor which the files hold twice is the same both times."""
    for name, again in read_tensors(files, names=match.repeats.keys()):
        first = placed[match.repeats[name]]
        if not torch.equal(again.to(first.device, first.dtype), first):
            raise CheckpointError(
                f"{files.label}: {name!r} and {match.repeats[name]!r} are one tensor in this model and differ in the "
                "files",
                mismatched=(name,),
            )


def _check_constants(module: torch.nn.Module, files: WeightFiles, match: Match) -> None:
    """Check that a buffer which the module computes is what the files say it is."""
    buffers = dict(module.named_buffers(remove_duplicate=False))
    for name, saved in read_tensors(files, names=match.constants.keys()):
        computed = buffers[match.constants[name]]
        if saved.shape != computed.shape or not torch.equal(saved, computed.to(saved.dtype)):
            raise CheckpointError(
                f"{files.label}: {name!r} is computed by this model, and the files hold other values for it; they are "
                "another model's",
                mismatched=(name,),
            )


def _assign(module: torch.nn.Module, match: Match, placed: dict[str, torch.Tensor]) -> None:
    """Give the module its tensors; names that are tied get one and the same parameter."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    state: dict[str, torch.Tensor] = {}
    for name, targets in match.targets.items():
        tensor = placed[name]
        if (parameter := parameters.get(targets[0])) is not None:
            tensor = torch.nn.Parameter(tensor, requires_grad=parameter.requires_grad)
            tensor.__dict__.update(parameter.__dict__)
        state.update(dict.fromkeys(targets, tensor))
    module.load_state_dict(state, strict=True, assign=True)
    empty = [name for name, buffer in module.named_buffers(remove_duplicate=False) if buffer.is_meta]
    if empty:
        raise CheckpointError(
            f"buffer {empty[0]!r} has no values: `build` made it on the meta device and it is in no file"
        )


def _report(
    files: WeightFiles, match: Match, placed: dict[str, torch.Tensor], device: torch.device | str, duration_s: float
) -> LoadReport:
    entries = files.tensors
    conversions = Counter(
        (DTYPES[entries[name].dtype].torch_name or entries[name].dtype, torch_dtype_name(tensor.dtype))
        for name, tensor in placed.items()
    )
    return LoadReport(
        label=files.label,
        files=files.paths,
        num_tensors=len(placed),
        disk_bytes=sum(entries[name].num_bytes for name in placed),
        memory_bytes=sum(tensor.nbytes for tensor in placed.values()),
        conversions=dict(conversions),
        ignored=match.ignored,
        device=str(device),
        duration_s=duration_s,
    )
