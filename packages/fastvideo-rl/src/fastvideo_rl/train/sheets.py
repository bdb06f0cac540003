"""Sheets of samples to look at: a strip of frames for each.

Shape letters: F, Y, X pixel frames, rows, columns; 3 RGB.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastvideo_core.request.artifacts import ImageArtifact

__all__ = ["make_sheet", "write_sheet"]

NUM_FRAMES = 5
_GAP = 2


def make_sheet(clips_FYX3: Sequence[npt.NDArray[np.uint8]], *, num_columns: int = 2) -> npt.NDArray[np.uint8]:
    """Return clips of one size as one picture, (rows, columns, 3): strips of five frames, black between them.

    Args:
        clips_FYX3: At least one.
        num_columns: Strips side by side.
    """
    strips = [_strip(clip) for clip in clips_FYX3]
    strips += [np.zeros_like(strips[0])] * (-len(strips) % num_columns)
    rows = [np.concatenate(strips[i : i + num_columns], axis=1) for i in range(0, len(strips), num_columns)]
    return np.concatenate(rows)


def _strip(clip: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    places = np.unique(np.linspace(0, len(clip) - 1, NUM_FRAMES).round().astype(int))
    strip = np.concatenate([clip[place] for place in places], axis=1)
    return np.pad(strip, [(0, _GAP), (0, 3 * _GAP), (0, 0)])


def write_sheet(path: Path, picture_YX3: npt.NDArray[np.uint8], captions: Sequence[str]) -> None:
    """Write a sheet as a PNG, with what its strips show, row by row, in a text file beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ImageArtifact(np.ascontiguousarray(picture_YX3)).save(path, sidecar=False)
    path.with_suffix(".txt").write_text("".join(f"{caption}\n" for caption in captions), encoding="utf-8")
