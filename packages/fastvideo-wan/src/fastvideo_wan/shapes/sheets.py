"""Sheets: pictures that show many clips at once, to look at.

Shape letters: N clips, C colour channels, T frames, H rows, W columns.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

NUM_SHEET_FRAMES = 5


def sheet_image(clips_NCTHW: Tensor, *, num_columns: int = 3) -> Tensor:
    """Return clips with values -1 to 1 as one picture of bytes, shape (C, H, W): strips of five frames, three a row."""
    num_frames = clips_NCTHW.shape[2]
    frames = sorted({round(t) for t in torch.linspace(0, num_frames - 1, NUM_SHEET_FRAMES).tolist()})
    strips = [torch.cat([clip[:, t] for t in frames], dim=2) for clip in clips_NCTHW.cpu()]
    strips = [torch.nn.functional.pad(strip, (0, 6, 0, 2), value=-1) for strip in strips]
    strips += [torch.full_like(strips[0], -1)] * (-len(strips) % num_columns)
    rows = [torch.cat(strips[i : i + num_columns], dim=2) for i in range(0, len(strips), num_columns)]
    return ((torch.cat(rows, dim=1) / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)


def write_sheet(path: Path, clips_NCTHW: Tensor) -> None:
    """Write clips with values -1 to 1 as a PNG; see `sheet_image`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_png(sheet_image(clips_NCTHW)))


def from_frames(frames_THWC: npt.NDArray[np.uint8]) -> Tensor:
    """Return a clip's bytes as values -1 to 1, shape (C, T, H, W), as sheets take them."""
    return torch.from_numpy(frames_THWC.copy()).permute(3, 0, 1, 2).float() / 127.5 - 1


def encode_png(image_CHW: Tensor) -> bytes:
    """Return an RGB picture of bytes as a PNG file.

    Source: PNG specification, third edition, sections 5 and 11.
    """
    _, height, width = image_CHW.shape
    rows_HX = image_CHW.permute(1, 2, 0).reshape(height, -1)
    filtered = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), rows_HX], dim=1)  # filter type 0 before each row
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(filtered.numpy().tobytes(), 6)), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(data)) + n + data + struct.pack(">I", zlib.crc32(n + data)) for n, data in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
