"""A card's checkpoint as one folder, for what reads whole checkpoints: reference pipelines, and copies."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastvideo_core.card import CheckpointManifest
from fastvideo_core.runtime.weights.locate import locate, locate_components

__all__ = ["whole_checkpoint"]


@contextmanager
def whole_checkpoint(manifest: CheckpointManifest) -> Iterator[Path]:
    """Give a folder in which all components of a card are; of hub repositories, what is not here yet is downloaded.

    Where some components come from other checkpoints, it is a folder of links, which is there within the context alone.

    Args:
        manifest: Where the card's files are.

    Raises:
        CheckpointError, DownloadError, ResourceError: As `locate` says.
    """
    own = manifest.source
    held = [manifest.components[load_id].folder for load_id in manifest.sources[own]]
    root = locate(own.kind, own.location, revision=own.revision, components=held).folder
    if len(manifest.sources) == 1:
        yield root
        return
    places = locate_components(manifest)
    with tempfile.TemporaryDirectory(prefix="fastvideo-checkpoint-") as name:
        joined = Path(name)
        for entry in root.iterdir():
            (joined / entry.name).symlink_to(entry)
        for load_id, place in places.items():
            folder = manifest.components[load_id].folder
            if manifest.source_of(load_id) == own:
                continue
            (joined / folder).unlink(missing_ok=True)
            (joined / folder).parent.mkdir(parents=True, exist_ok=True)
            (joined / folder).symlink_to(place / folder, target_is_directory=True)
        yield joined
