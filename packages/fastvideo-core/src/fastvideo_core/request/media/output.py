"""Where a result goes: everything that can be known about an output path before any work is done."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Literal

from fastvideo_core.errors import OutputError, ResourceError
from fastvideo_core.request.media.faults import writing
from fastvideo_core.request.media.gif import MAX_GIF_FPS, MAX_GIF_SIDE
from fastvideo_core.request.media.naming import default_stem, numbered

__all__ = [
    "AUDIO_FORMATS",
    "GENERATE_FORMATS",
    "IMAGE_FORMATS",
    "SOUND_FORMATS",
    "TENSOR_FORMATS",
    "TEXT_FORMATS",
    "VIDEO_FORMATS",
    "OutputTarget",
    "check_format",
    "check_output",
    "check_video_fits",
    "default_output",
    "estimate_bytes",
    "frame_path",
    "sidecar_path",
]

VIDEO_FORMATS = (".mp4", ".webm", ".gif", ".png")
SOUND_FORMATS = (".mp4", ".webm")
TENSOR_FORMATS = (".safetensors",)
GENERATE_FORMATS = VIDEO_FORMATS + TENSOR_FORMATS
IMAGE_FORMATS = (".png", ".jpg", ".jpeg", ".webp")
AUDIO_FORMATS = (".wav",)
TEXT_FORMATS = (".txt",)

# Videos' formats that are not written here; by their letters some are nearest to a sound's.
_OTHER_VIDEO_FORMATS = (".avi", ".m4v", ".mkv", ".mov", ".mpg", ".wmv")

_ENCODERS = {".mp4": "libx264", ".webm": "libvpx-vp9"}
_MAX_SIDE = {".mp4": 16384, ".webm": 16384, ".gif": MAX_GIF_SIDE, ".png": 2**31 - 1}
_MIN_FREE_BYTES = 1 << 20
_MAX_NAME_BYTES = 235
# Bytes for each pixel of a frame, on the generous side: noise at the quality that the encoders here are set to.
_BYTES_PER_PIXEL = {".mp4": 0.6, ".webm": 0.6, ".gif": 1.5, ".png": 3.1}


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """A checked output path. It reserves nothing: another process may still take the name.

    Attributes:
        path: The file; several frames as `.png` go beside it, see `frame_path`.
        on_conflict: What to do if the name is taken at the end: fail, or take the next free number.
        field: Name of the parameter that held the path, for messages.
        free_bytes: Free space on that disk when it was checked.
    """

    path: Path
    on_conflict: Literal["error", "next"] = "error"
    field: str = "output"
    free_bytes: int = 0

    @property
    def suffix(self) -> str:
        """Extension in lower case, for instance `.mp4`."""
        return self.path.suffix.lower()

    def candidates(self) -> Iterator[Path]:
        """Yield the names to try, in order."""
        names = numbered(self.path)
        yield next(names)
        if self.on_conflict == "next":
            yield from names

    def taken(self, existing: Path | None = None) -> OutputError:
        """Return the error for a name that exists (the file's own, or the sidecar's), with the nearest free name."""
        what = "exists" if existing is None else f"its sidecar {existing} exists"
        return OutputError(
            f"{what}, and nothing is written over",
            field=self.field,
            value=str(self.path),
            nearest=str(_next_free(self.path)),
        )


def check_output(
    path: str | Path,
    *,
    allowed: tuple[str, ...] = GENERATE_FORMATS,
    root: Path | None = None,
    needed_bytes: int = _MIN_FREE_BYTES,
    field: str = "output",
) -> OutputTarget:
    """Find out before any work whether a file can be written.

    Missing folders are fine, they are made when the file is written. The folder is tried with an empty file, which is
    removed at once, because permission bits alone do not tell (read-only mounts, quotas, access lists).

    Args:
        path: The file, with an extension.
        allowed: Extensions that the caller can write.
        root: If given, the file must be inside this folder, links followed.
        needed_bytes: Space that the file will take, from `estimate_bytes`.
        field: Name of the parameter, for messages.

    Raises:
        OutputError: Unknown extension, unusable name, taken name, a folder, outside `root`, no permission.
        ResourceError: The disk is full.
    """
    with writing(Path(path), field=field):
        checked = _check_name(path, allowed, field)
        _check_length(checked, field)
        if root is not None:
            _check_inside(checked, root, field)
        if checked.is_dir():
            raise OutputError(
                "is a folder, not a file", field=field, value=str(checked), nearest=str(_next_free(checked))
            )
        if _is_taken(checked, _names_in(checked.parent)):
            raise OutputTarget(checked, field=field).taken()
        if _exists(sidecar_path(checked)):
            raise OutputTarget(checked, field=field).taken(sidecar_path(checked))
        free_bytes = _probe(checked.parent)
    if free_bytes < max(needed_bytes, _MIN_FREE_BYTES):
        raise ResourceError(
            f"{field}={str(checked)!r}: {_mib(free_bytes)} free on that disk, about {_mib(needed_bytes)} needed: "
            "free some, or choose another disk"
        )
    return OutputTarget(checked, field=field, free_bytes=free_bytes)


def default_output(
    prompt: str,
    seed: int,
    *,
    folder: str | Path = "outputs",
    suffix: str = ".mp4",
    needed_bytes: int = _MIN_FREE_BYTES,
) -> OutputTarget:
    """Return `outputs/<prompt>-<seed>.mp4`, or the next free `…-2.mp4`; checked as by `check_output`.

    If another process takes the name in the meantime, the writer takes the next one.

    Raises:
        OutputError: The folder cannot be written.
        ResourceError: The disk is full.
    """
    folder = Path(folder)
    name = _next_free(folder / f"{default_stem(prompt, seed)}{suffix}", include_self=True)
    checked = check_output(name, allowed=(suffix,), needed_bytes=needed_bytes)
    path = folder / f"{default_stem(prompt, seed)}{suffix}"
    return OutputTarget(path, on_conflict="next", free_bytes=checked.free_bytes)


def check_format(suffix: str, *, allowed: tuple[str, ...], has_audio: bool = False, field: str = "output") -> None:
    """Check that a format is one of those that a writer has, and holds sound if there is any.

    Raises:
        OutputError: It is not, or does not.
    """
    if suffix not in allowed:
        raise OutputError("not a format for this", field=field, value=suffix, allowed=", ".join(allowed))
    if has_audio and suffix not in _ENCODERS:
        raise OutputError(
            "this format holds no sound", field=field, value=suffix, allowed=", ".join(_ENCODERS), nearest=".mp4"
        )


def check_video_fits(suffix: str, *, height: int, width: int, fps: Fraction, field: str = "output") -> None:
    """Check that a format can hold such a video as it is.

    H.264 as players decode it halves the colour planes, so `.mp4` takes even sizes only; the size is not changed
    behind anybody's back. A GIF cannot be faster than 50 frames a second.

    Raises:
        OutputError: It cannot; the message names formats that can.
        ResourceError: The installed PyAV lacks the encoder.
    """
    size = f"{width}x{height}"
    if suffix == ".mp4" and (height % 2 or width % 2):
        nearest = f"{width + width % 2}x{height + height % 2}"
        raise OutputError(
            f"H.264 cannot hold a video of {size}",
            field=field,
            value=suffix,
            allowed="even width and height; .webm, .gif and .png take odd ones",
            nearest=nearest,
        )
    limit = _MAX_SIDE[suffix]
    if max(height, width) > limit:
        raise OutputError(
            f"{size} is too large", field=field, value=suffix, allowed=f"sides up to {limit}", nearest=".png"
        )
    if suffix == ".gif" and fps > MAX_GIF_FPS:
        raise OutputError(
            f"players slow a GIF of {float(fps):g} frames a second down to 10",
            field=field,
            value=suffix,
            allowed=f"up to {MAX_GIF_FPS} frames a second, or .mp4, .webm, .png",
            nearest=f"fps={MAX_GIF_FPS}",
        )
    _check_encoder(suffix)


def frame_path(path: Path, index: int) -> Path:
    """Return the name of one frame: `name.png` and index 0 give `name-0001.png`."""
    return path.with_name(f"{path.stem}-{index + 1:04d}{path.suffix}")


def sidecar_path(path: Path, *, allow_long: bool = True) -> Path:
    """Return where the JSON beside a file goes: `name.json`, or `name.mp4.json` if that one exists and `allow_long`."""
    short = path.with_suffix(".json")
    if allow_long and _exists(short):
        return path.with_name(f"{path.name}.json")
    return short


def estimate_bytes(suffix: str, *, num_frames: int, height: int, width: int) -> int:
    """Return a generous guess of a video file's size, in bytes."""
    return round(_BYTES_PER_PIXEL[suffix] * num_frames * height * width) + _MIN_FREE_BYTES


def _check_name(path: str | Path, allowed: tuple[str, ...], field: str) -> Path:
    text = str(path)
    if not text.strip() or "\0" in text:
        raise OutputError("not a file name", field=field, value=text, allowed="a path with an extension")
    checked = Path(path)
    suffix = checked.suffix.lower()
    names_folder = text.endswith(("/", os.sep)) or checked.name in {"", ".."}
    if suffix in allowed and not names_folder:
        return checked
    alike = allowed[0] if suffix in _OTHER_VIDEO_FORMATS else suffix or allowed[0]
    near = get_close_matches(alike, allowed, n=1, cutoff=0.6) or [allowed[0]]
    if names_folder or checked.is_dir():
        problem, named = "is a folder, not a file", checked / f"video{near[0]}"
    elif suffix:
        problem, named = f"unknown extension {suffix!r}", checked.with_suffix(near[0])
    else:
        problem, named = "has no extension", checked.with_name(checked.name + near[0])
    raise OutputError(problem, field=field, value=text, allowed=", ".join(allowed), nearest=str(named))


def _check_length(path: Path, field: str) -> None:
    excess = len(os.fsencode(path.name)) - _MAX_NAME_BYTES
    if excess > 0:
        shorter = os.fsencode(path.stem)[:-excess].decode(errors="ignore") + path.suffix
        raise OutputError(
            "the file name is too long",
            field=field,
            value=str(path),
            allowed=f"{_MAX_NAME_BYTES} bytes, which leaves room for numbers and the sidecar's extension",
            nearest=str(path.with_name(shorter)),
        )


def _check_inside(path: Path, root: Path, field: str) -> None:
    resolved = path.resolve()
    if not resolved.is_relative_to(root.resolve()):
        raise OutputError(
            "outside the output folder", field=field, value=str(path), allowed=f"paths in {root}", nearest=path.name
        )


def _exists(path: Path) -> bool:
    # A link that leads nowhere takes its name all the same.
    return path.is_symlink() or path.exists()


def _names_in(folder: Path) -> frozenset[str]:
    try:
        return frozenset(entry.name for entry in folder.iterdir())
    except FileNotFoundError:
        return frozenset()


def _is_taken(path: Path, names: frozenset[str]) -> bool:
    """Whether the file, or for `.png` one of its numbered frames, exists; links that lead nowhere count."""
    # The second look is for file systems that take upper and lower case for the same.
    if path.name in names or _exists(path):
        return True
    if path.suffix.lower() != ".png":
        return False
    frame = re.compile(rf"{re.escape(path.stem)}-\d{{4,}}{re.escape(path.suffix)}")
    return any(frame.fullmatch(name) for name in names)


def _next_free(path: Path, *, include_self: bool = False) -> Path:
    names = _names_in(path.parent) if path.parent.is_dir() else frozenset()
    candidates = numbered(path)
    if not include_self:
        next(candidates)
    return next(name for name in candidates if not _is_taken(name, names) and f"{name.stem}.json" not in names)


def _probe(folder: Path) -> int:
    # A link that leads nowhere is tried too: nothing can be made behind it, and the system says so.
    existing = next(candidate for candidate in (folder, *folder.absolute().parents) if _exists(candidate))
    with tempfile.NamedTemporaryFile(prefix=".fastvideo-", suffix=".part", dir=existing):
        return shutil.disk_usage(existing).free


def _check_encoder(suffix: str) -> None:
    name = _ENCODERS.get(suffix)
    if name is None:
        return
    import av

    if name not in av.codecs_available:
        raise ResourceError(
            f"the installed PyAV {av.__version__} has no {name} encoder for {suffix}: install the wheel from PyPI, "
            "or write .gif or .png"
        )


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"
