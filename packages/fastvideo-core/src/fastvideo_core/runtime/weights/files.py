"""Which files of a component hold its weights.

A component's folder has one `<stem>.safetensors`, or shards that `<stem>.safetensors.index.json` names, where the
stem is `diffusion_pytorch_model` (diffusers) or `model` (transformers). A variant, such as fp16, stands between stem
and ending, and is taken only when it is asked for. A single file goes before an index.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fastvideo_core.errors import CheckpointError, UnsafeFormatError
from fastvideo_core.runtime.weights.header import FileHeader, TensorEntry, read_header
from fastvideo_core.runtime.weights.text import nearest_name, sample_names

STEMS = ("diffusion_pytorch_model", "model")
_PICKLE_ENDINGS = (".bin", ".ckpt", ".joblib", ".pickle", ".pkl", ".pt", ".pth", ".pth.tar")
_FOREIGN_ENDINGS = (".gguf", ".h5", ".msgpack", ".onnx", ".pb", ".tflite")


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The checked files of one component.

    Attributes:
        label: The component, for messages.
        headers: The files' headers, in the order in which they are read.
        index: The index file that names them, if they are shards.
    """

    label: str
    headers: tuple[FileHeader, ...]
    index: Path | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files."""
        return tuple(header.path for header in self.headers)

    @property
    def num_bytes(self) -> int:
        """Bytes on disk, headers included."""
        return sum(header.size_bytes for header in self.headers)

    @property
    def tensors(self) -> dict[str, TensorEntry]:
        """All tensors by their names in the files."""
        return {name: entry for header in self.headers for name, entry in header.tensors.items()}


def list_weight_files(
    folder: Path, component: str = "", *, variant: str | None = None, stems: Sequence[str] = STEMS
) -> WeightFiles:
    """Find and check a component's weight files; reads their headers only.

    Args:
        folder: The checkpoint's folder.
        component: The component's folder in it, `/`-separated; empty for the folder itself.
        variant: Take this variant, for instance `fp16`.
        stems: File names without ending, the first that is there wins.

    Raises:
        CheckpointError: If folder, files or shards are missing, damaged, or disagree with their index.
        UnsafeFormatError: If there are only files in formats that can run code when read.
    """
    try:
        return _find_weight_files(folder, component, variant, stems)
    except OSError as error:
        raise CheckpointError(f"cannot read {error.filename or folder}: {error.strerror or error}") from error


def _find_weight_files(folder: Path, component: str, variant: str | None, stems: Sequence[str]) -> WeightFiles:
    place = _component_folder(folder, component)
    label = component or folder.name
    looked_for: list[str] = []
    for stem in stems:
        single, index = weight_file_names(stem, variant)
        looked_for += [single, index]
        if _is_present(place / single):
            return read_weight_files(label, [place / single])
        if _is_present(place / index):
            return _read_shards(label, place / index)
    raise _nothing_found(place, label, looked_for, stems)


def read_weight_files(label: str, paths: Iterable[Path], *, index: Path | None = None) -> WeightFiles:
    """Check the headers of files that are known by path, such as a single-file checkpoint.

    Raises:
        CheckpointError: If a file is damaged or two of them hold the same name.
        UnsafeFormatError: If a file is in a format that can run code when read.
    """
    headers = []
    owners: dict[str, Path] = {}
    for path in paths:
        if path.name.lower().endswith(_PICKLE_ENDINGS):
            raise unsafe_format_error(path.parent, [path.name])
        header = read_header(path)
        for name in header.tensors:
            if name in owners:
                raise CheckpointError(f"{label}: {name!r} is in both {owners[name].name} and {path.name}")
            owners[name] = path
        headers.append(header)
    return WeightFiles(label, tuple(headers), index)


def weight_file_names(stem: str, variant: str | None = None) -> tuple[str, str]:
    """Return the names of a single weight file and of a shard index."""
    if variant is None:
        return f"{stem}.safetensors", f"{stem}.safetensors.index.json"
    return f"{stem}.{variant}.safetensors", f"{stem}.safetensors.index.{variant}.json"


def is_pickle_name(name: str) -> bool:
    """Return whether a file of this name is in a format that can run code when it is read."""
    return name.lower().endswith(_PICKLE_ENDINGS)


def unsafe_format_error(where: object, names: Sequence[str]) -> UnsafeFormatError:
    """Return the error for weights that exist only as pickle files."""
    return UnsafeFormatError(
        f"{where}: {sample_names(names)}: pickle formats can run code when they are read and are never loaded; use a "
        "repository or folder with .safetensors files, or convert them once with a tool that you trust"
    )


def _component_folder(folder: Path, component: str) -> Path:
    parts = PurePosixPath(component)
    if parts.is_absolute() or ".." in parts.parts:
        raise CheckpointError(f"component folder {component!r} leaves {folder}; it must lie inside")
    place = folder / parts
    if place.is_dir():
        return place
    if not folder.is_dir():
        raise CheckpointError(f"no folder {folder}")
    there = sorted(child.name for child in folder.iterdir() if child.is_dir())
    near = nearest_name(component, there)
    raise CheckpointError(
        f"{folder} has no folder {component!r}; it has {sample_names(there, max_names=8) or 'no folders'}"
        + (f"; nearest: {near}" if near is not None else "")
    )


def _is_present(path: Path) -> bool:
    """Return whether there is such a file; a link whose target is gone is an error, not an absence."""
    if path.is_symlink() and not path.exists():
        raise CheckpointError(
            f"{path} is a link to {path.readlink()}, which is not there; download the checkpoint again or restore it"
        )
    return path.is_file()


def _read_shards(label: str, index: Path) -> WeightFiles:
    weight_map = _read_weight_map(index)
    names = sorted(set(weight_map.values()))
    for name in names:
        if PurePosixPath(name).name != name or "\\" in name:
            raise CheckpointError(f"{index} names the shard {name!r}; shards must lie beside their index")
    absent = [name for name in names if not _is_present(index.parent / name)]
    if absent:
        raise CheckpointError(
            f"{label}: {len(absent)} of {len(names)} shards in {index.name} are missing from {index.parent}: "
            f"{sample_names(absent)}; download the checkpoint again"
        )
    files = read_weight_files(label, [index.parent / name for name in names], index=index)
    _check_index(files, index, weight_map)
    return files


def _read_weight_map(index: Path) -> Mapping[str, str]:
    try:
        content: Any = json.loads(index.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {index}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{index} is not valid JSON ({error})") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map from tensor names to file names")
    return weight_map


def _check_index(files: WeightFiles, index: Path, weight_map: Mapping[str, str]) -> None:
    """Check that every name is in the shard that the index says, and that no shard holds other names."""
    held = {name: header.path.name for header in files.headers for name in header.tensors}
    missing = tuple(sorted(name for name, shard in weight_map.items() if held.get(name) != shard))
    unexpected = tuple(sorted(held.keys() - weight_map.keys()))
    if missing:
        first = missing[0]
        raise CheckpointError(
            f"{files.label}: {index.name} and its shards disagree on {len(missing)} names: {first!r} should be in "
            f"{weight_map[first]}, it is in {held.get(first, 'none')}",
            missing=missing,
            unexpected=unexpected,
        )
    if unexpected:
        raise CheckpointError(
            f"{files.label}: the shards hold {len(unexpected)} names that {index.name} does not have: "
            f"{sample_names(unexpected)}",
            unexpected=unexpected,
        )


def _nothing_found(place: Path, label: str, looked_for: Sequence[str], stems: Sequence[str]) -> CheckpointError:
    names = sorted(child.name for child in place.iterdir() if not child.is_dir())
    safetensors = [name for name in names if name.endswith(".safetensors")]
    if (pickles := [name for name in names if is_pickle_name(name)]) and not safetensors:
        return unsafe_format_error(place, pickles)
    message = f"{label}: no weights in {place}: looked for {', '.join(looked_for)}"
    if variants := _variants(names, stems):
        return CheckpointError(f"{message}; the variants {', '.join(variants)} are there: ask for one of them")
    if safetensors:
        return CheckpointError(f"{message}; there is {sample_names(safetensors)}, and no index that names it")
    if foreign := [name for name in names if name.lower().endswith(_FOREIGN_ENDINGS)]:
        return CheckpointError(f"{message}; there is {sample_names(foreign)}, a format that is not read")
    there = sample_names([child.name for child in sorted(place.iterdir())], max_names=5)
    return CheckpointError(f"{message}; there is {there or 'nothing at all'}")


def _variants(names: Sequence[str], stems: Sequence[str]) -> list[str]:
    """Return the variants whose single file or index is among the names."""
    found = set()
    for stem in stems:
        for name in names:
            single = name.removeprefix(f"{stem}.").removesuffix(".safetensors")
            index = name.removeprefix(f"{stem}.safetensors.index.").removesuffix(".json")
            found |= {variant for variant in (single, index) if name in weight_file_names(stem, variant)}
    return sorted(found)
