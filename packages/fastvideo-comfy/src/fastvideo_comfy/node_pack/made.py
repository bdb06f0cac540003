"""What the nodes have made: frames, and a way to keep them with everything that they were made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from fastvideo_core.request.artifacts import VideoArtifact
from fastvideo_core.request.media.output import OutputTarget
from fastvideo_core.request.media.publish import save_bytes
from fastvideo_core.request.media.staging import replace_file

__all__ = ["Made"]


@dataclass(frozen=True, slots=True)
class Made:
    """A video.

    Attributes:
        video: Its frames, and where they come from if that is known here.
        file: The mp4 file that a server has made of it; None if there is none.
        facts: What a server says of it.
    """

    video: VideoArtifact
    file: bytes | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fps(self) -> Fraction:
        """Frames a second."""
        return self.video.fps

    def save(self, path: Path) -> Path:
        """Write it under the next free name, its parameters beside it; a server's own file as it is.

        Raises:
            OutputError: It cannot be written.
        """
        target = OutputTarget(path, on_conflict="next")
        if self.file is not None and target.suffix == ".mp4":
            path.parent.mkdir(parents=True, exist_ok=True)
            saved = save_bytes(target, self.file, provenance=None, facts={}).path
        else:
            saved = self.video.save(target).path
        if self.facts:
            replace_file(saved.with_suffix(".json"), json.dumps(dict(self.facts), indent=2).encode())
        return saved
