"""Where a checkpoint's files are: a folder, data in an installed package, or a hub repository."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fastvideo_core.errors import CheckpointError
from fastvideo_core.runtime.weights.hub import HubAccess, fetch_snapshot
from fastvideo_core.runtime.weights.text import nearest_name

if TYPE_CHECKING:
    from fastvideo_core.card import CheckpointManifest
    from fastvideo_core.runtime.weights.module import Progress

SourceKind = Literal["folder", "package", "hub"]

_PACKAGE = re.compile(r"[A-Za-z_]\w+(\.[A-Za-z_]\w*)*:")
_HUB_CACHE_FOLDER = re.compile(r"models--.+--.+")


@dataclass(frozen=True, slots=True)
class Location:
    """Where a checkpoint is.

    Attributes:
        kind: What it was found as.
        folder: The folder with its files.
        commit: The commit, of a hub repository.
    """

    kind: SourceKind
    folder: Path
    commit: str | None = None


def locate(
    kind: SourceKind,
    location: str,
    *,
    revision: str | None = None,
    components: Sequence[str] = (),
    optional: Sequence[str] = (),
    variant: str | None = None,
    access: HubAccess | None = None,
    on_progress: Progress | None = None,
) -> Location:
    """Return where a checkpoint's files are; downloads them if they are on the Hub and not in the cache.

    Args:
        kind: What `location` is.
        location: A path, `package:path/in/package`, or `org/name`.
        revision: Commit, tag or branch of a hub repository.
        components: Folders of a hub repository that are needed; "" is the root.
        optional: Folders of a hub repository that are taken if they are there.
        variant: Variant of the weights, on the Hub.
        access: How the Hub is reached.
        on_progress: Told the bytes of a download.

    Raises:
        CheckpointError: If there is no such folder or package.
        DownloadError: If the Hub does not give the files.
        ResourceError: If the disk has not enough room for them.
    """
    if kind == "folder":
        return Location(kind, _existing_folder(Path(location).expanduser()))
    if kind == "package":
        return Location(kind, _package_folder(location))
    folder, commit = fetch_snapshot(
        location, revision, components, optional=optional, variant=variant, access=access, on_progress=on_progress
    )
    return Location(kind, folder, commit)


def locate_components(
    manifest: CheckpointManifest,
    load_ids: Collection[str] | None = None,
    *,
    access: HubAccess | None = None,
    on_progress: Progress | None = None,
) -> dict[str, Path]:
    """Return the checkpoint's folder for each component of a card, by load id; downloads what is not here yet.

    Args:
        manifest: Where the card's files are.
        load_ids: Components that are needed; None means all.
        access: How the Hub is reached.
        on_progress: Told the bytes of each download.

    Raises:
        CheckpointError, DownloadError, ResourceError: As `locate` says.
    """
    folders: dict[str, Path] = {}
    for source, held in manifest.sources.items():
        wanted = [load_id for load_id in held if load_ids is None or load_id in load_ids]
        if not wanted:
            continue
        location = locate(
            source.kind,
            source.location,
            revision=source.revision,
            components=tuple(manifest.components[load_id].folder for load_id in wanted),
            access=access,
            on_progress=on_progress,
        )
        folders.update(dict.fromkeys(wanted, location.folder))
    return folders


def guess_kind(location: str) -> SourceKind:
    """Return what a location is that a user has typed without saying.

    A folder that exists goes before a hub repository of the same spelling; write `./org/name` or a full path to mean
    a folder in any case.
    """
    if Path(location).expanduser().is_dir():
        return "folder"
    if _PACKAGE.match(location) and not Path(location).exists():
        return "package"
    is_path = location.startswith((".", "/", "~", "\\")) or location.count("/") != 1 or "\\" in location
    return "folder" if is_path else "hub"


def _existing_folder(folder: Path) -> Path:
    if folder.is_file():
        raise CheckpointError(f"{folder} is a file; give the checkpoint's folder, for instance {folder.parent}")
    if not folder.is_dir():
        raise CheckpointError(f"no folder {folder}{_nearest_sibling(folder)}")
    if _HUB_CACHE_FOLDER.fullmatch(folder.name) and (folder / "snapshots").is_dir():
        snapshots = sorted(str(child) for child in (folder / "snapshots").iterdir())
        there = ", ".join(snapshots) or "no snapshot of it"
        raise CheckpointError(f"{folder} is a folder of the hub's cache; the checkpoint is in {there}")
    return folder


def _nearest_sibling(folder: Path) -> str:
    parent = folder.absolute().parent
    if not parent.is_dir():
        return ""
    near = nearest_name(folder.name, (child.name for child in parent.iterdir() if child.is_dir()))
    return f"; nearest: {folder.parent / near}" if near is not None else ""


def _package_folder(location: str) -> Path:
    package, _, path = location.partition(":")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError) as error:
        raise CheckpointError(f"no package {package!r} is installed, for the weights {location!r}") from error
    if spec is None or not spec.submodule_search_locations:
        raise CheckpointError(f"no package {package!r} is installed, for the weights {location!r}")
    for root in spec.submodule_search_locations:
        if (folder := Path(root) / path).is_dir():
            return folder
    raise CheckpointError(f"package {package!r} has no folder {path!r} with its weights; install it again")
