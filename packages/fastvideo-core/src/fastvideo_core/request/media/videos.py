"""Input videos: frames and their rate, read with limits.

Shapes: T frames, H height, W width. Frames are uint8 (T, H, W, 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from fastvideo_core.errors import MediaError
from fastvideo_core.request.media.files import open_input
from fastvideo_core.request.media.pixels import Frames

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

__all__ = ["MAX_VIDEO_BYTES", "MAX_VIDEO_FRAMES", "VIDEO_INPUTS", "VideoClip", "load_video"]

VIDEO_INPUTS = ("mov", "matroska", "webm", "gif", "avi", "mpeg", "mpegts", "ogg", "apng", "webp_pipe")
"""FFmpeg's demuxers that are tried. Playlists are not among them: they name other files and hosts."""

MAX_VIDEO_BYTES = 2 << 30
MAX_VIDEO_FRAMES = 4096
MAX_DECODED_BYTES = 4 << 30
_KNOWN_COLOURS = {1: "ITU709", 4: "FCC", 5: "ITU601", 6: "ITU601", 7: "SMPTE240M"}
_FULL_RANGE = 2


@dataclass(frozen=True, slots=True, eq=False)
class VideoClip:
    """A decoded input video.

    Attributes:
        frames: uint8 (T, H, W, 3).
        fps: Mean frames a second; videos of changing rate are not resampled.
    """

    frames: Frames
    fps: Fraction


def load_video(
    source: str | Path | bytes,
    *,
    field: str = "video",
    max_frames: int = MAX_VIDEO_FRAMES,
    max_bytes: int = MAX_VIDEO_BYTES,
    max_decoded_bytes: int = MAX_DECODED_BYTES,
) -> VideoClip:
    """Read all frames of a file's first video stream, upright as its rotation says.

    Args:
        source: A path, or the bytes of a file.
        field: Name of the parameter, for messages.
        max_frames: Limit of frames; more is an error, not a cut.
        max_bytes: Limit of the file's size.
        max_decoded_bytes: Limit of the frames' size in memory.

    Raises:
        MediaError: Missing, no video, no frames, broken, cut off, or beyond a limit. A Matroska or WebM file that ends
            early cannot be told from one that was recorded live; it is read as far as it goes.
    """
    import av

    name = "bytes" if isinstance(source, bytes) else str(source)
    with open_input(source, what="a video", field=field, max_bytes=max_bytes) as file:
        try:
            with _open(file) as container:
                stream = _first_video(container)
                max_fitting = max_decoded_bytes // max(stream.width * stream.height * 3, 1)
                frames = _collect(_decode(container, stream), min(max_frames, max_fitting))
                return VideoClip(np.stack(frames), _rate(container, stream, len(frames)))
        except _BadVideoError as error:
            raise MediaError(str(error), field=field, value=name) from None
        except (av.FFmpegError, OSError, ValueError) as error:
            reason = "broken or cut off" if file.tell() else "not a video that can be read"
            raise MediaError(reason, field=field, value=name, allowed="files such as .mp4, .webm, .gif") from error


class _BadVideoError(Exception):
    """A reason to refuse a video, before the file's name is added."""


def _first_video(container: InputContainer) -> VideoStream:
    if not container.streams.video:
        raise _BadVideoError("has no video in it")
    stream = container.streams.video[0]
    if getattr(stream, "codec_context", None) is None:
        raise _BadVideoError("its codec is not known")
    return stream


def _collect(frames: Iterator[Frames], max_now: int) -> list[Frames]:
    found: list[Frames] = []
    for frame in frames:
        if len(found) == max_now:
            raise _BadVideoError(f"too long: more than {max_now} frames of this size")
        if found and frame.shape != found[0].shape:
            raise _BadVideoError(f"its frames change their size after {len(found)} frames")
        found.append(frame)
    if not found:
        raise _BadVideoError("has no frames")
    return found


def _rate(container: InputContainer, stream: VideoStream, num_frames: int) -> Fraction:
    fps = stream.average_rate or stream.guessed_rate
    if container.format.name == "gif" and stream.duration and stream.time_base:
        # FFmpeg takes a GIF's first delays for all; the mean of all is nearer to what was meant.
        fps = num_frames / (stream.duration * stream.time_base)
    if not fps:
        raise _BadVideoError("has no frame rate")
    return Fraction(fps)


def _open(file: BinaryIO) -> InputContainer:
    import av

    # Only this file is read, whatever it names.
    return av.open(file, "r", options={"format_whitelist": ",".join(VIDEO_INPUTS), "protocol_whitelist": "none"})


def _decode(container: InputContainer, stream: VideoStream) -> Iterator[Frames]:
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise _BadVideoError("broken or cut off")
        for frame in packet.decode():
            yield _to_rgb(frame)


def _to_rgb(frame: VideoFrame) -> Frames:
    # Without its own matrix named, old versions of PyAV take every video for BT.601.
    rgb = frame.reformat(
        format="rgb24",
        src_colorspace=_KNOWN_COLOURS.get(frame.colorspace),
        dst_color_range="JPEG",
        src_color_range="JPEG" if frame.color_range == _FULL_RANGE else "MPEG",
    ).to_ndarray()
    quarter_turns = round(frame.rotation / 90) % 4
    return np.rot90(rgb, quarter_turns).astype(np.uint8, copy=False)
