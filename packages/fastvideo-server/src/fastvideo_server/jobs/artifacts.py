"""What jobs made: one folder a job, whole or not there, and nothing outside of it.

JOB/
    video.mp4           the video
    video.json          every parameter and where it came from
    thumbnail.webp      its first frame
    spritesheet.jpg     frames of all of it, in rows
    manifest.json       what the job was; a folder without it is a thing half done
"""

from __future__ import annotations

import json
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from PIL import Image

from fastvideo_core.errors import StateError
from fastvideo_core.request.artifacts import VideoArtifact
from fastvideo_core.request.media.faults import writing
from fastvideo_core.request.media.pixels import Frames
from fastvideo_core.request.media.staging import replace_file
from fastvideo_core.runtime.durable.disk import Disk

__all__ = ["MANIFEST", "VARIANTS", "ArtifactFolder", "ArtifactStore", "StoredFile", "check_job_id", "sprite_sheet",
           "write_files"]  # fmt: skip

VARIANTS = {
    "video": ("video.mp4", "video/mp4"),
    "thumbnail": ("thumbnail.webp", "image/webp"),
    "spritesheet": ("spritesheet.jpg", "image/jpeg"),
}
"""What a job's content can be asked for as: file and media type."""

MANIFEST = "manifest.json"
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_SHEET_FRAMES = 16
_SHEET_COLUMNS = 4


class Opener(Protocol):
    """Opens a file."""

    def __call__(self) -> BinaryIO:
        """Return it, to be read from its beginning."""
        ...


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that never changes.

    Attributes:
        name: Its name.
        num_bytes: Its size.
        tag: What tells it from any other of its name.
        open: Opens it.
    """

    name: str
    num_bytes: int
    tag: str
    open: Opener


class ArtifactStore(ABC):
    """Keeps what jobs made. All methods may be called from any thread.

    All of them raise `ResourceError` where it cannot be used.
    """

    @abstractmethod
    def save(self, job_id: str, video: VideoArtifact, manifest: Mapping[str, Any]) -> None:
        """Write all that there is of a video; it is there for good when this returns, or nothing of it is."""

    @abstractmethod
    def manifest(self, job_id: str) -> dict[str, Any] | None:
        """Return what was written down with a result; None if there is none."""

    @abstractmethod
    def file(self, job_id: str, variant: str) -> StoredFile | None:
        """Return a file of a job, or None if there is none."""

    @abstractmethod
    def remove(self, job_id: str) -> None:
        """Remove all that a job made."""

    @abstractmethod
    def problem(self) -> str | None:
        """Return why nothing can be kept, or None."""


def write_files(folder: Path, video: VideoArtifact) -> None:
    """Write the files of a video, without its manifest, into a folder that is there."""
    video.save(folder / VARIANTS["video"][0])
    video.frame(0).save(folder / VARIANTS["thumbnail"][0], sidecar=False)
    Image.fromarray(sprite_sheet(video.frames)).save(folder / VARIANTS["spritesheet"][0], quality=85)


def check_job_id(job_id: str) -> str:
    """Return an id that may be the name of a folder.

    Raises:
        StateError: It may not.
    """
    if not _JOB_ID.fullmatch(job_id):
        raise StateError(f"{job_id!r} is no id of a job")
    return job_id


class ArtifactFolder(ArtifactStore):
    """Keeps what jobs made in a folder of this machine.

    Args:
        folder: The folder; made with its parents if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob(".*"):  # half done by a process that was killed
            shutil.rmtree(path, ignore_errors=True)

    def save(self, job_id: str, video: VideoArtifact, manifest: Mapping[str, Any]) -> None:
        """Write all that there is of a video; it is there for good when this returns, or nothing of it is.

        Raises:
            ResourceError: The disk is full.
            OutputError: The folder cannot be written, or the format cannot hold the video.
        """
        final, staged = self._place(job_id), self._place(job_id, prefix=".")
        shutil.rmtree(staged, ignore_errors=True)
        try:
            with writing(staged, field="folder"):
                staged.mkdir()
                write_files(staged, video)
                replace_file(staged / MANIFEST, json.dumps(manifest).encode())
                Disk().rename(staged, final)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise

    def manifest(self, job_id: str) -> dict[str, Any] | None:
        """Return what was written down with a result; None if there is none.

        Raises:
            StateError: It cannot be read.
        """
        try:
            content: dict[str, Any] = json.loads((self._place(job_id) / MANIFEST).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StateError(f"the result of job {job_id} cannot be read: {error}") from error
        return content

    def file(self, job_id: str, variant: str) -> StoredFile | None:
        """Return a file of a job, or None if there is none."""
        path = self._place(job_id) / VARIANTS[variant][0]
        try:
            info = path.stat()
        except OSError:
            return None
        return StoredFile(path.name, info.st_size, f"{info.st_size:x}-{info.st_mtime_ns:x}", lambda: path.open("rb"))

    def remove(self, job_id: str) -> None:
        """Remove all that a job made."""
        gone = self._place(job_id, prefix=".gone-")
        try:
            self._place(job_id).rename(gone)
        except FileNotFoundError:
            return
        shutil.rmtree(gone, ignore_errors=True)

    def problem(self) -> str | None:
        """Return why nothing can be kept, or None."""
        return None if self.folder.is_dir() else f"the artifact folder {self.folder} is gone"

    def _place(self, job_id: str, *, prefix: str = "") -> Path:
        return self.folder / f"{prefix}{check_job_id(job_id)}"


def sprite_sheet(frames_THWC: Frames) -> Frames:
    """Return up to sixteen frames in rows of four, evenly taken from a video; unused places are black.

    Args:
        frames_THWC: uint8 (T, H, W, 3).
    """
    count = min(_SHEET_FRAMES, len(frames_THWC))
    picked = frames_THWC[np.linspace(0, len(frames_THWC) - 1, count).round().astype(int)]
    columns = min(_SHEET_COLUMNS, count)
    rows = -(-count // columns)
    _, height, width, _ = frames_THWC.shape
    sheet = np.zeros((rows * height, columns * width, 3), np.uint8)
    for index, frame in enumerate(picked):
        top, left = index // columns * height, index % columns * width
        sheet[top : top + height, left : left + width] = frame
    return sheet
