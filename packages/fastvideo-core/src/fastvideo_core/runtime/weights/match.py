"""Every name of a module against every name of its files, before a tensor is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from fastvideo_core.errors import CheckpointError
from fastvideo_core.runtime.weights.dtypes import DTYPES
from fastvideo_core.runtime.weights.files import WeightFiles
from fastvideo_core.runtime.weights.header import TensorEntry
from fastvideo_core.runtime.weights.keys import NamePredicate, Rename, rename_all
from fastvideo_core.runtime.weights.text import nearest_name, sample_names


@dataclass(frozen=True, slots=True)
class Match:
    """What to read into what.

    Attributes:
        targets: For each name in the files that is read: the module's names that it fills, several where they are tied.
        repeats: Names in the files that hold a tied tensor once more, and the name that is read for it.
        constants: Names in the files of buffers that the module computes itself, and their names in the module.
        ignored: Names in the files that were left out on purpose.
    """

    targets: dict[str, tuple[str, ...]]
    repeats: dict[str, str]
    constants: dict[str, str]
    ignored: tuple[str, ...]


def match_names(module: torch.nn.Module, files: WeightFiles, key_map: Rename, ignored: NamePredicate) -> Match:
    """Pair a module's parameters and buffers with the tensors of its files.

    Args:
        module: The module; its parameters may be on the meta device.
        files: Checked files.
        key_map: From a name in the files to a name in the module.
        ignored: Names in the files to leave out.

    Raises:
        CheckpointError: If a name is missing, left over, or of another shape or kind of number; says all at once.
    """
    entries = files.tensors
    left_out = {name for name in entries if ignored(name)}
    originals = rename_all((name for name in entries if name not in left_out), key_map)
    groups = _tied_groups(module)
    constants = _computed_buffers(module)
    match = Match({}, {}, {}, tuple(sorted(left_out)))
    missing: list[str] = []
    mismatched: list[str] = []
    for names, tensor in groups:
        present = [originals.pop(name) for name in names if name in originals]
        if not present:
            missing.append(names[0])
            continue
        match.targets[present[0]] = names
        match.repeats.update(dict.fromkeys(present[1:], present[0]))
        mismatched += [problem for name in present if (problem := _mismatch(entries[name], tensor)) is not None]
    for name in [name for name in originals if name in constants]:
        match.constants[originals.pop(name)] = name
    if missing or originals or mismatched:
        raise _unmatched_error(files.label, missing, originals, mismatched)
    return match


def _tied_groups(module: torch.nn.Module) -> list[tuple[tuple[str, ...], torch.Tensor]]:
    """Return the names that share a tensor, and the tensor, for everything that the module would save."""
    groups: dict[int, tuple[tuple[str, ...], torch.Tensor]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):
            names, _ = groups.get(id(tensor), ((), tensor))
            groups[id(tensor)] = ((*names, name), tensor)
    return list(groups.values())


def _computed_buffers(module: torch.nn.Module) -> set[str]:
    """Return the names of buffers that the module would not save."""
    saved = module.state_dict(keep_vars=True)
    return {name for name, _ in module.named_buffers(remove_duplicate=False) if name not in saved}


def _mismatch(entry: TensorEntry, tensor: torch.Tensor) -> str | None:
    if entry.shape != tuple(tensor.shape):
        return f"{entry.name}: shape {list(entry.shape)} in the file, {list(tensor.shape)} in the model"
    kind = DTYPES[entry.dtype].kind
    # A quantised checkpoint holds integers under the names of floats: taken for plain numbers, it loads and is noise.
    if kind != _kind(tensor.dtype):
        return f"{entry.name}: {entry.dtype} numbers in the file, {_kind(tensor.dtype)} in the model"
    return None


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return "float"
    if dtype.is_complex:
        return "complex"
    return "bool" if dtype == torch.bool else "integer"


def _unmatched_error(
    label: str, missing: Sequence[str], originals: Mapping[str, str], mismatched: Sequence[str]
) -> CheckpointError:
    unexpected = [_show_rename(original, name) for name, original in originals.items()]
    parts = []
    if missing:
        near = nearest_name(missing[0], originals)
        hint = f" (nearest left over: {_show_rename(originals[near], near)})" if near is not None else ""
        parts.append(f"{len(missing)} missing from the files: {sample_names(missing)}{hint}")
    if unexpected:
        parts.append(f"{len(unexpected)} in the files that the model does not have: {sample_names(unexpected)}")
    if mismatched:
        parts.append(f"{len(mismatched)} that do not fit: {sample_names(mismatched)}")
    return CheckpointError(
        f"{label}: the weights are not this model's: {'; '.join(parts)}",
        missing=tuple(missing),
        unexpected=tuple(originals.values()),
        mismatched=tuple(problem.partition(":")[0] for problem in mismatched),
    )


def _show_rename(original: str, name: str) -> str:
    return original if original == name else f"{original} (as {name})"
