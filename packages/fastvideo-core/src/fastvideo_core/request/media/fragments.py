"""Fragmented MP4: an init segment, then a fragment for each chunk of a stream, complete as soon as the chunk is there.

Each fragment begins with a key frame and is encoded for itself, so that a player can join at any of them, and nothing
of one waits in the encoder for the next. Players, pipes and browsers (Media Source Extensions) take the init segment
and then the fragments in order.

Source: ISO/IEC 14496-12, ISO base media file format.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from fastvideo_core.errors import ExecutionError, InputError
from fastvideo_core.request.media.encoder import CONTAINERS, ContainerEncoder, ContainerSpec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["CODEC", "FragmentEncoder"]

CODEC = "mp4/h264"
"""What the segments are: MP4 fragments of H.264."""

_SPEC = ContainerSpec(
    container="mp4",
    video_codec="libx264",
    # No frame looks ahead, and none but the first is a key frame: one fragment.
    video_options={
        "crf": "17",
        "preset": "veryfast",
        "tune": "zerolatency",
        "bf": "0",
        "g": "100000",
        "sc_threshold": "0",
    },
    audio_codec=CONTAINERS[".mp4"].audio_codec,
    options={"movflags": "+empty_moov+default_base_moof+frag_keyframe"},
)
_CONTAINERS = frozenset({b"moov", b"trak", b"mdia", b"moof", b"traf"})


class FragmentEncoder:
    """Makes the segments of one stream.

    Args:
        height: Pixels, even.
        width: Pixels, even.
        fps: Frames a second.

    Attributes:
        num_frames: Frames of all fragments so far.

    Raises:
        InputError: A size is odd: H.264 as players take it halves the colours.
    """

    def __init__(self, *, height: int, width: int, fps: Fraction | float) -> None:
        for name, size in (("height", height), ("width", width)):
            if size < 2 or size % 2:
                raise InputError("not a size that H.264 takes", field=name, value=size, allowed="even, 2 or more")
        self._size = (height, width)
        self._fps = Fraction(fps).limit_denominator(1001)
        self._init: bytes | None = None
        self._num_fragments = 0
        self._ticks = 0
        self.num_frames = 0

    @property
    def init(self) -> bytes:
        """The init segment; it is there after the first fragment.

        Raises:
            ExecutionError: There is no fragment yet.
        """
        if self._init is None:
            raise ExecutionError("the init segment is made with the first fragment")
        return self._init

    def encode(self, frames_THWC: npt.NDArray[np.uint8]) -> bytes:
        """Return the next fragment, of one frame or more, uint8.

        Raises:
            ExecutionError: The frames have another size than the stream, or the codec failed.
        """
        if frames_THWC.ndim != 4 or frames_THWC.shape[1:] != (*self._size, 3) or not len(frames_THWC):
            raise ExecutionError(f"a stream of {self._size} does not take frames of shape {frames_THWC.shape}")
        data = self._encoded(frames_THWC)
        top = list(_boxes(data, 0, len(data)))
        if self._init is None:
            self._init = b"".join(bytes(data[start:end]) for kind, start, _, end in top if kind in (b"ftyp", b"moov"))
            self._ticks = int(_timescale(data) / self._fps)
        assert sum(kind == b"moof" for kind, *_ in top) == 1, "there is one key frame, and so one fragment"
        self._place(data)
        self.num_frames += len(frames_THWC)
        self._num_fragments += 1
        return b"".join(bytes(data[start:end]) for kind, start, _, end in top if kind in (b"moof", b"mdat"))

    def _encoded(self, frames_THWC: npt.NDArray[np.uint8]) -> bytearray:
        sink = io.BytesIO()
        height, width = self._size
        encoder = ContainerEncoder(sink, _SPEC, height=height, width=width, fps=self._fps)
        try:
            for frame_HWC in frames_THWC:
                encoder.write(frame_HWC)
            encoder.finish()
        except BaseException:
            encoder.abort()
            raise
        return bytearray(sink.getvalue())

    def _place(self, data: bytearray) -> None:
        """Say in a fragment which one it is, and when it begins."""
        for kind, _, body, _ in _walk(data, 0, len(data)):
            if kind == b"mfhd":
                data[body + 4 : body + 8] = (self._num_fragments + 1).to_bytes(4, "big")
            elif kind == b"tfdt":
                size = 8 if data[body] else 4
                data[body + 4 : body + 4 + size] = (self.num_frames * self._ticks).to_bytes(8, "big")[-size:]


def _timescale(data: bytearray) -> int:
    """Return the ticks of a second in the track's times."""
    for kind, _, body, _ in _walk(data, 0, len(data)):
        if kind == b"mdhd":
            at = body + 4 + (16 if data[body] else 8)
            return int.from_bytes(data[at : at + 4], "big")
    raise ExecutionError("the encoder has written no media header")


def _walk(data: bytearray, start: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield all boxes, those inside others too: kind, where it starts, where its body does, where it ends."""
    for kind, at, body, stop in _boxes(data, start, end):
        yield kind, at, body, stop
        if kind in _CONTAINERS:
            yield from _walk(data, body, stop)


def _boxes(data: bytearray, start: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
    while start < end:
        size = int.from_bytes(data[start : start + 4], "big")
        assert 8 <= size <= end - start, "what the muxer writes in memory has plain boxes"
        yield bytes(data[start + 4 : start + 8]), start, start + 8, start + size
        start += size
