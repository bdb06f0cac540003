"""What a card's weights need on this machine: which files are here, whether they are whole, how much memory they take.

Nothing is downloaded, and of the files only the headers are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastvideo_core.card import ComponentSpec, ModelCard, resolve_ref
from fastvideo_core.errors import CheckpointError, DownloadError
from fastvideo_core.runtime.weights.files import WeightFiles, list_weight_files
from fastvideo_core.runtime.weights.hub import HubAccess
from fastvideo_core.runtime.weights.keys import keep_name
from fastvideo_core.runtime.weights.locate import locate
from fastvideo_core.runtime.weights.memory import estimate_bytes

__all__ = ["HOST_KINDS", "FoundWeights", "find_weights"]

HOST_KINDS = ("tokenizer", "image_processor")
"""Kinds of components that have no weights."""


@dataclass(frozen=True, slots=True)
class FoundWeights:
    """The weights of a card that are on this machine.

    Attributes:
        folder: Where they are.
        files: Checked files by component.
        problems: What is missing or broken, one line each.
    """

    folder: Path
    files: dict[str, WeightFiles]
    problems: tuple[str, ...]

    @property
    def disk_bytes(self) -> int:
        """Bytes of the weight files; a file that two components share counts once."""
        return sum({path: path.stat().st_size for found in self.files.values() for path in found.paths}.values())

    def memory_bytes(self, card: ModelCard, precision: str) -> int:
        """Return the bytes that the weights take once loaded in a number format."""
        return sum(
            _component_bytes(card, card.components[name], found, precision) for name, found in self.files.items()
        )


def find_weights(card: ModelCard, specs: Sequence[ComponentSpec] | None = None) -> FoundWeights | None:
    """Return the weights of a card that are on this machine; None if they still have to be downloaded.

    Args:
        card: The card.
        specs: Components to look for; None means all.
    """
    wanted = [spec for spec in specs or card.components.values() if spec.kind not in HOST_KINDS]
    manifest = card.checkpoint
    try:
        location = locate(
            manifest.source.kind,
            manifest.source.location,
            revision=manifest.source.revision,
            components=tuple(manifest.components[spec.load_id].folder for spec in wanted),
            access=HubAccess(is_offline=True),
        )
    except DownloadError:
        return None
    except CheckpointError as error:
        return FoundWeights(Path(manifest.source.location), {}, (str(error),))
    files: dict[str, WeightFiles] = {}
    problems = []
    for spec in wanted:
        try:
            files[spec.component_id] = list_weight_files(location.folder, manifest.components[spec.load_id].folder)
        except CheckpointError as error:
            problems.append(str(error))
    return FoundWeights(location.folder, files, tuple(dict.fromkeys(problems)))


def _component_bytes(card: ModelCard, spec: ComponentSpec, files: WeightFiles, precision: str) -> int:
    key_map = card.checkpoint.components[spec.load_id].key_map
    patterns = spec.precision_policy.keep_float32
    return estimate_bytes(
        files,
        spec.precision_policy.compute or precision,
        keep_float32=lambda name: any(pattern in name for pattern in patterns),
        key_map=keep_name if key_map is None else resolve_ref(key_map),
    )
