"""What a card's weights need on this machine: which files are here, whether they are whole, how much memory they take.

Nothing is downloaded, and of the files only the headers are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastvideo_core.card import ComponentFiles, ComponentSpec, ModelCard, resolve_ref
from fastvideo_core.errors import CheckpointError, DownloadError
from fastvideo_core.runtime.weights.files import WeightFiles, list_weight_files
from fastvideo_core.runtime.weights.hub import HubAccess
from fastvideo_core.runtime.weights.keys import NamePredicate, Rename, keep_name, no_name
from fastvideo_core.runtime.weights.locate import locate_components
from fastvideo_core.runtime.weights.memory import estimate_bytes

__all__ = ["HOST_KINDS", "FoundWeights", "component_bytes", "find_weights", "ignored_of", "key_map_of"]

HOST_KINDS = ("tokenizer", "image_processor")
"""Kinds of components that have no weights."""


@dataclass(frozen=True, slots=True)
class FoundWeights:
    """The weights of a card that are on this machine.

    Attributes:
        folders: The checkpoint that holds each component.
        files: Checked files by component.
        problems: What is missing or broken, one line each.
    """

    folders: dict[str, Path]
    files: dict[str, WeightFiles]
    problems: tuple[str, ...]

    @property
    def disk_bytes(self) -> int:
        """Bytes of the weight files; a file that two components share counts once."""
        return sum({path: path.stat().st_size for found in self.files.values() for path in found.paths}.values())

    def memory_bytes(self, card: ModelCard, precision: str) -> int:
        """Return the bytes that the weights take once loaded in a number format."""
        specs = {name: card.components[name] for name in self.files}
        described = card.checkpoint.components
        return sum(
            component_bytes(spec, described[spec.load_id], self.files[name], precision) for name, spec in specs.items()
        )


def find_weights(card: ModelCard, specs: Sequence[ComponentSpec] | None = None) -> FoundWeights | None:
    """Return the weights of a card that are on this machine; None if they still have to be downloaded.

    Args:
        card: The card.
        specs: Components to look for; None means all.
    """
    asked = card.components.values() if specs is None else specs
    wanted = [spec for spec in asked if spec.kind not in HOST_KINDS]
    manifest = card.checkpoint
    try:
        places = locate_components(manifest, {spec.load_id for spec in wanted}, access=HubAccess(is_offline=True))
    except DownloadError:
        return None
    except CheckpointError as error:
        return FoundWeights({}, {}, (str(error),))
    folders = {spec.component_id: places[spec.load_id] for spec in wanted}
    files: dict[str, WeightFiles] = {}
    problems = []
    for spec in wanted:
        try:
            place = folders[spec.component_id]
            files[spec.component_id] = list_weight_files(place, manifest.components[spec.load_id].folder)
        except CheckpointError as error:
            problems.append(str(error))
    return FoundWeights(folders, files, tuple(dict.fromkeys(problems)))


def component_bytes(spec: ComponentSpec, described: ComponentFiles, files: WeightFiles, precision: str) -> int:
    """Return the bytes that a component's weights take once loaded.

    Args:
        spec: The component.
        described: Its files in the manifest.
        files: Its files on this machine.
        precision: Number format of the engine; a component that has one of its own goes by that.
    """
    policy = spec.precision_policy
    return estimate_bytes(
        files,
        policy.compute or precision,
        keep_float32=policy.keeps_float32,
        key_map=key_map_of(described),
        ignored=ignored_of(described),
    )


def ignored_of(described: ComponentFiles) -> NamePredicate:
    """Return which names in a component's files are another component's."""
    if described.only is None:
        return no_name
    is_own: NamePredicate = resolve_ref(described.only)
    return lambda name: not is_own(name)


def key_map_of(described: ComponentFiles) -> Rename:
    """Return how the names in a component's files become the module's."""
    return keep_name if described.key_map is None else resolve_ref(described.key_map)
