"""From staged files to final names, with the sidecar beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastvideo_core.request.media.faults import writing
from fastvideo_core.request.media.output import OutputTarget, frame_path, sidecar_path
from fastvideo_core.request.media.staging import Staging
from fastvideo_core.request.provenance import Provenance

__all__ = ["SavedFiles", "publish", "save_bytes"]


@dataclass(frozen=True, slots=True)
class SavedFiles:
    """What was written.

    Attributes:
        paths: The media files; more than one only for numbered frames.
        sidecar: The JSON file beside them, if there is one.
    """

    paths: tuple[Path, ...]
    sidecar: Path | None = None

    @property
    def path(self) -> Path:
        """The file, or the first of the numbered frames."""
        return self.paths[0]


def publish(
    staging: Staging,
    target: OutputTarget,
    media: Sequence[Path],
    *,
    provenance: Provenance | None,
    facts: Mapping[str, Any],
) -> SavedFiles:
    """Give staged files their final names and write the sidecar.

    Args:
        staging: Holds the files.
        target: Where they go.
        media: Staged files in order.
        provenance: Makes the sidecar; without it there is none.
        facts: What the sidecar says about the file, besides its name.

    Raises:
        OutputError: The name is taken and the target does not allow another.
        ResourceError: The disk is full.
    """
    with writing(target.path, field=target.field):
        staging.sync(media)
        for path in target.candidates():
            finals = [path] if len(media) == 1 else [frame_path(path, index) for index in range(len(media))]
            names = dict(zip(media, finals, strict=True))
            sidecar = sidecar_path(path, allow_long=target.on_conflict == "error") if provenance is not None else None
            if provenance is not None and sidecar is not None:
                text = _sidecar_text(provenance, {"name": finals[0].name, **facts})
                names[_stage_text(staging, text)] = sidecar
            try:
                staging.publish(names)
            except FileExistsError:
                continue
            return SavedFiles(tuple(finals), sidecar)
    raise target.taken()


def save_bytes(
    target: OutputTarget, data: bytes, *, provenance: Provenance | None, facts: Mapping[str, Any]
) -> SavedFiles:
    """Write one file from memory, whole or not at all; see `publish` for the arguments and errors."""
    with writing(target.path, field=target.field), Staging(target.path.parent) as staging:
        staged = staging.path / f"media{target.suffix}"
        staged.write_bytes(data)
        return publish(staging, target, [staged], provenance=provenance, facts={**facts, "bytes": len(data)})


def _sidecar_text(provenance: Provenance, facts: Mapping[str, Any]) -> str:
    content = {**provenance.model_dump(mode="json"), "file": dict(facts)}
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def _stage_text(staging: Staging, text: str) -> Path:
    staged = staging.path / "sidecar.json"
    # A file's name may be any bytes; what is no Unicode in it becomes a JSON escape, which reads as the same name.
    staged.write_text(text, encoding="utf-8", errors="backslashreplace")
    staging.sync([staged])
    return staged
