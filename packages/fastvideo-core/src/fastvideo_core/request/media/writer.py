"""Writes a video as its frames come, and gives it its final name only when it is whole."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from fastvideo_core.errors import OutputError, ParameterError
from fastvideo_core.request.media.encoder import CONTAINERS, ContainerEncoder, check_sample_rate
from fastvideo_core.request.media.faults import writing
from fastvideo_core.request.media.gif import GifEncoder
from fastvideo_core.request.media.output import (
    VIDEO_FORMATS,
    OutputTarget,
    check_format,
    check_output,
    check_video_fits,
)
from fastvideo_core.request.media.pixels import Frames, as_frames
from fastvideo_core.request.media.publish import SavedFiles, publish
from fastvideo_core.request.media.rates import as_fps, format_fps
from fastvideo_core.request.media.sound import AudioTrack
from fastvideo_core.request.media.staging import Staging
from fastvideo_core.request.media.stills import encode_still
from fastvideo_core.request.provenance import Provenance

__all__ = ["VideoWriter"]


class VideoWriter:
    """A context manager that writes one video.

    The file appears when the block ends without an error, and not before; an error, an interrupt or a full disk leave
    nothing. `.mp4` and `.webm` play as video, `.gif` loops for ever, `.png` gives `name-0001.png`, `name-0002.png`, …
    beside each other, or `name.png` if there is one frame only.

    Args:
        output: A path with one of `VIDEO_FORMATS`, checked here, or a target that was checked before the work.
        fps: Frames a second; see `as_fps`.
        provenance: Goes into the file's metadata and into `<name>.json` (`<name>.mp4.json` if that one is taken).
        audio: Sound for `.mp4` and `.webm`; padded to the video's length.
        sidecar: Whether the JSON file is written.

    Raises:
        OutputError: The path cannot be written, or the format cannot hold this video.
        ParameterError: An impossible frame rate.
        ResourceError: The disk is full, or an encoder is missing.
    """

    def __init__(
        self,
        output: str | Path | OutputTarget,
        *,
        fps: float | str | Fraction,
        provenance: Provenance | None = None,
        audio: AudioTrack | None = None,
        sidecar: bool = True,
    ) -> None:
        self._target = output if isinstance(output, OutputTarget) else check_output(output, allowed=VIDEO_FORMATS)
        self._fps = as_fps(fps)
        self._provenance = provenance
        self._audio = audio
        self._sidecar = sidecar
        self._staging: Staging | None = None
        self._encoder: _Encoder | None = None
        self._size: tuple[int, int] | None = None
        self._num_frames = 0
        self._saved: SavedFiles | None = None
        check_format(self._target.suffix, allowed=VIDEO_FORMATS, has_audio=audio is not None, field=self._target.field)
        if audio is not None:
            check_sample_rate(CONTAINERS[self._target.suffix], audio.sample_rate)

    @property
    def saved(self) -> SavedFiles:
        """What was written; only after the block."""
        assert self._saved is not None, "the video is not finished"
        return self._saved

    def __enter__(self) -> VideoWriter:
        with writing(self._target.path, field=self._target.field):
            self._staging = Staging(self._target.path.parent)
        return self

    def write(self, frames: Any) -> None:
        """Append frames.

        Args:
            frames: uint8 array or tensor (T, H, W, 3), all calls with the same height and width.

        Raises:
            ParameterError: Another type or shape than that.
            OutputError: The format cannot hold this size or rate.
            ResourceError: The disk is full.
        """
        frames_THWC = as_frames(frames)
        size = (frames_THWC.shape[1], frames_THWC.shape[2])
        if self._size is not None and size != self._size:
            raise ParameterError("the frames change their size", field="frames", value=size, allowed=str(self._size))
        self._size = size
        with writing(self._target.path, field=self._target.field):
            if self._encoder is None:
                self._encoder = self._open(*size)
            for frame_HWC in frames_THWC:
                self._encoder.write(frame_HWC)
                self._num_frames += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._staging is not None
        with closing(self._staging), ExitStack() as on_failure:
            if self._encoder is not None:
                on_failure.callback(self._encoder.abort)
            if error is None:
                self._saved = self._finish(self._staging)
                on_failure.pop_all()

    def _open(self, height: int, width: int) -> _Encoder:
        assert self._staging is not None, "used outside its block"
        suffix = self._target.suffix
        check_video_fits(suffix, height=height, width=width, fps=self._fps, field=self._target.field)
        staged = self._staging.path / f"media{suffix}"
        if suffix == ".png":
            return _PngFrames(self._staging.path, self._provenance)
        if suffix == ".gif":
            return _GifFile(staged, height=height, width=width, fps=self._fps, provenance=self._provenance)
        return _ContainerFile(
            staged, height=height, width=width, fps=self._fps, audio=self._audio, provenance=self._provenance
        )

    def _finish(self, staging: Staging) -> SavedFiles:
        if self._encoder is None or self._size is None or self._num_frames == 0:
            raise OutputError("no frames to write", field=self._target.field, value=str(self._target.path))
        with writing(self._target.path, field=self._target.field):
            media = self._encoder.finish()
        facts = {
            "num_frames": self._num_frames,
            "height": self._size[0],
            "width": self._size[1],
            "fps": format_fps(self._fps),
            "duration_s": float(self._num_frames / self._fps),
            "sample_rate": self._audio.sample_rate if self._audio is not None else None,
            "bytes": sum(path.stat().st_size for path in media),
        }
        provenance = self._provenance if self._sidecar else None
        return publish(staging, self._target, media, provenance=provenance, facts=facts)


class _Encoder(Protocol):
    def write(self, frame_HWC: Frames) -> None: ...

    def finish(self) -> Sequence[Path]: ...

    def abort(self) -> None: ...


class _ContainerFile:
    def __init__(
        self,
        path: Path,
        *,
        height: int,
        width: int,
        fps: Fraction,
        audio: AudioTrack | None,
        provenance: Provenance | None,
    ) -> None:
        metadata = {}
        if provenance is not None:
            metadata["comment"] = provenance.to_json()
            if provenance.title:
                # A C string ends at a zero character.
                metadata["title"] = provenance.title.replace("\0", " ")
        self._path = path
        self._encoder = ContainerEncoder(
            str(path), CONTAINERS[path.suffix], height=height, width=width, fps=fps, audio=audio, metadata=metadata
        )

    def write(self, frame_HWC: Frames) -> None:
        self._encoder.write(frame_HWC)

    def finish(self) -> Sequence[Path]:
        self._encoder.finish()
        return [self._path]

    def abort(self) -> None:
        self._encoder.abort()


class _GifFile:
    def __init__(self, path: Path, *, height: int, width: int, fps: Fraction, provenance: Provenance | None) -> None:
        self._path = path
        self._file = path.open("wb")
        comment = provenance.to_json() if provenance is not None else ""
        self._encoder = GifEncoder(self._file, height=height, width=width, fps=fps, comment=comment)

    def write(self, frame_HWC: Frames) -> None:
        self._encoder.write(frame_HWC)

    def finish(self) -> Sequence[Path]:
        self._encoder.finish()
        self._file.close()
        return [self._path]

    def abort(self) -> None:
        # Closing flushes, which fails again on a full disk.
        with suppress(OSError):
            self._file.close()


class _PngFrames:
    def __init__(self, folder: Path, provenance: Provenance | None) -> None:
        self._folder = folder
        self._provenance = provenance
        self._paths: list[Path] = []

    def write(self, frame_HWC: Frames) -> None:
        path = self._folder / f"{len(self._paths):08d}.png"
        path.write_bytes(encode_still(frame_HWC, ".png", self._provenance))
        self._paths.append(path)

    def finish(self) -> Sequence[Path]:
        return self._paths

    def abort(self) -> None:
        """Nothing is open between two frames."""
