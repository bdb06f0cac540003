"""Animated GIF, written frame by frame.

Each frame stores only the rectangle that changed, with a palette of its own: at most 256 colours for that rectangle,
exact where it has no more. What does not change on screen keeps its bytes, so that still backgrounds do not flicker.
"""

from __future__ import annotations

import io
import struct
from fractions import Fraction
from typing import BinaryIO

import numpy as np
from PIL import Image

from fastvideo_core.request.media.pixels import Frames

__all__ = ["MAX_GIF_FPS", "MAX_GIF_SIDE", "GifEncoder", "gif_delay"]

MAX_GIF_FPS = 50
"""Players show frames with a delay under 2/100 s at 10 frames a second; this is the fastest rate that they keep."""

MAX_GIF_SIDE = 65535
_MAX_DELAY = 65535
_TICKS_PER_S = 100
_LOOP_FOREVER = b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"
_TRAILER = b"\x3b"
_KEEP_ON_SCREEN = 0x04
_FIRST_COLOUR_IS_TRANSPARENT = 0x01
_HEADER_BYTES = 13
_DESCRIPTOR_BYTES = 10


def gif_delay(index: int, fps: Fraction) -> int:
    """Return how long frame `index` is shown, in 1/100 s.

    A GIF counts time in 1/100 s. The ends of the frames are rounded, not their lengths, so that the errors do not add
    up: 16 frames a second gives 6, 7, 6, 6, …, and 16 frames last 100.
    """
    return min(_end_tick(index + 1, fps) - _end_tick(index, fps), _MAX_DELAY)


class GifEncoder:
    """Writes a looping GIF to a binary file.

    Args:
        file: Opened for writing; the caller closes it.
        height: Pixels.
        width: Pixels.
        fps: Frames a second, at most `MAX_GIF_FPS`.
        comment: ASCII text for the file's comment; empty for none.
    """

    def __init__(self, file: BinaryIO, *, height: int, width: int, fps: Fraction, comment: str = "") -> None:
        self._file = file
        self._fps = fps
        self._num_frames = 0
        self._last_HWC: Frames | None = None
        # 0x70: eight bits a colour in the source, no global palette.
        file.write(b"GIF89a" + struct.pack("<HHBBB", width, height, 0x70, 0, 0) + _LOOP_FOREVER)
        if comment:
            file.write(b"\x21\xfe" + _sub_blocks(comment.encode("ascii")))

    def write(self, frame_HWC: Frames) -> None:
        """Append one uint8 frame (H, W, 3)."""
        box = _changed_box(self._last_HWC, frame_HWC)
        # A frame needs a picture: where nothing changed, it is one transparent pixel.
        top, left, bottom, right = box or (0, 0, 1, 1)
        flags = _KEEP_ON_SCREEN if box else _KEEP_ON_SCREEN | _FIRST_COLOUR_IS_TRANSPARENT
        delay = gif_delay(self._num_frames, self._fps)
        self._file.write(b"\x21\xf9\x04" + struct.pack("<BHBB", flags, delay, 0, 0))
        self._file.write(_image_block(frame_HWC[top:bottom, left:right], left=left, top=top))
        self._last_HWC = frame_HWC.copy()
        self._num_frames += 1

    def finish(self) -> None:
        """Write the trailer."""
        self._file.write(_TRAILER)


def _end_tick(index: int, fps: Fraction) -> int:
    # Round half up, in whole numbers.
    return int(index * _TICKS_PER_S / fps + Fraction(1, 2))


def _changed_box(before_HWC: Frames | None, after_HWC: Frames) -> tuple[int, int, int, int] | None:
    height, width = after_HWC.shape[:2]
    if before_HWC is None:
        return 0, 0, height, width
    is_changed_HW = (before_HWC != after_HWC).any(axis=2)
    if not is_changed_HW.any():
        return None
    rows = np.flatnonzero(is_changed_HW.any(axis=1))
    columns = np.flatnonzero(is_changed_HW.any(axis=0))
    return int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1


def _image_block(patch_HWC: Frames, *, left: int, top: int) -> bytes:
    """Return descriptor, local palette and compressed pixels, taken from a one-frame GIF that Pillow writes."""
    indexed = Image.fromarray(patch_HWC).quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    indexed.save(buffer, format="GIF", interlace=0)
    data = buffer.getvalue()
    table_bits = data[10] & 0x07
    table_end = _HEADER_BYTES + 3 * 2 ** (table_bits + 1)
    start = _skip_extensions(data, table_end)
    height, width = patch_HWC.shape[:2]
    descriptor = b"\x2c" + struct.pack("<HHHHB", left, top, width, height, 0x80 | table_bits)
    # All but the trailer, which is the last byte.
    return descriptor + data[_HEADER_BYTES:table_end] + data[start + _DESCRIPTOR_BYTES : -1]


def _skip_extensions(data: bytes, position: int) -> int:
    while data[position] == 0x21:
        position += 2
        while data[position]:
            position += data[position] + 1
        position += 1
    assert data[position] == 0x2C, "an image descriptor follows"
    return position


def _sub_blocks(data: bytes) -> bytes:
    pieces = (data[start : start + 255] for start in range(0, len(data), 255))
    return b"".join(bytes([len(piece)]) + piece for piece in pieces) + b"\x00"
