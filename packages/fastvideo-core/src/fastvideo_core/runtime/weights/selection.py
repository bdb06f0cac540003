"""Which files of a repository a checkpoint needs: the weights in one form only, configurations, tokenizers.

Nothing else is ever downloaded: no pickle files, no other variants, no second copy of the same weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from fastvideo_core.errors import CheckpointError
from fastvideo_core.runtime.weights.files import STEMS, is_pickle_name, unsafe_format_error, weight_file_names
from fastvideo_core.runtime.weights.text import nearest_name, sample_names

_SMALL_ENDINGS = (".json", ".model", ".txt")
_ROOT_FILES = ("card.json", "model_index.json", "modular_model_index.json")
_CONFIG_FILES = ("config.json", "scheduler_config.json")


def select_files(
    paths: Iterable[str],
    components: Sequence[str],
    *,
    optional: Sequence[str] = (),
    variant: str | None = None,
    stems: Sequence[str] = STEMS,
) -> list[str]:
    """Return the paths that the components need, of all paths in a repository.

    Args:
        paths: All files, `/`-separated, relative to the repository.
        components: Folders of the components; "" is the root.
        optional: Folders that are taken if they are there.
        variant: Take this variant of the weights.
        stems: File names of weights without ending, the first that is there wins.

    Raises:
        CheckpointError: If a component's folder is not there, or has only other variants.
        UnsafeFormatError: If a component has weights as pickle files only.
    """
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        by_folder.setdefault(folder, []).append(name)
    selected = {name for name in by_folder.get("", ()) if name in _ROOT_FILES}
    absent = [component for component in components if component not in by_folder]
    if absent:
        raise _no_folder_error(absent[0], by_folder)
    for component in (*components, *(folder for folder in optional if folder in by_folder)):
        names = by_folder[component]
        prefix = f"{component}/" if component else ""
        selected |= {prefix + name for name in _select_weights(component, names, variant, stems)}
        selected |= {prefix + name for name in names if _is_small(name)}
    return sorted(selected)


def select_configs(paths: Iterable[str]) -> list[str]:
    """Return the paths that say what a repository holds: its index or card, and its components' configurations."""
    split = [(path, *path.rpartition("/")[::2]) for path in paths]
    root = [path for path, folder, name in split if not folder and name in _ROOT_FILES]
    return sorted(
        root + [path for path, folder, name in split if folder and "/" not in folder and name in _CONFIG_FILES]
    )


def _select_weights(component: str, names: Sequence[str], variant: str | None, stems: Sequence[str]) -> list[str]:
    for stem in stems:
        single, index = weight_file_names(stem, variant)
        if single in names:
            return [single]
        if index in names:
            return [index, *(name for name in names if _is_shard(name, stem, variant))]
    weights = [name for name in names if name.endswith(".safetensors")]
    if weights:
        wanted = f"variant {variant!r}" if variant is not None else "plain"
        raise CheckpointError(f"{component or 'root'}: no {wanted} weights among {sample_names(weights)}")
    if pickles := [name for name in names if is_pickle_name(name)]:
        raise unsafe_format_error(component or "root", pickles)
    return []


def _is_shard(name: str, stem: str, variant: str | None) -> bool:
    number = "-[0-9]*-of-[0-9]*"
    if variant is None:
        return fnmatchcase(name, f"{stem}{number}.safetensors") and "." not in name.removesuffix(".safetensors")
    # Both orders are in use: diffusers has changed it once.
    middles = (f"{number}.{variant}", f".{variant}{number}")
    return any(fnmatchcase(name, f"{stem}{middle}.safetensors") for middle in middles)


def _is_small(name: str) -> bool:
    return name.endswith(_SMALL_ENDINGS) and ".index." not in name


def _no_folder_error(component: str, by_folder: Iterable[str]) -> CheckpointError:
    there = sorted(folder for folder in by_folder if folder)
    near = nearest_name(component, there)
    return CheckpointError(
        f"the repository has no folder {component!r}; it has {sample_names(there, max_names=8) or 'no folders'}"
        + (f"; nearest: {near}" if near is not None else "")
    )
