"""Rewards of pictures applied to videos: which frames are looked at.

Shape letters: F, Y, X pixel frames, rows, columns; 3 RGB.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fastvideo_rl.rewards.base import Sample

__all__ = ["chosen_frames", "mean_by_sample"]


def chosen_frames(sample: Sample, num_frames: int) -> list[npt.NDArray[np.uint8]]:
    """Return frames of a sample, evenly from the first to the last, each (Y, X, 3); all of a shorter one."""
    total = len(sample.frames_FYX3)
    places = np.linspace(0, total - 1, min(num_frames, total)).round().astype(int)
    return [sample.frames_FYX3[place] for place in places]


def mean_by_sample(scores: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Return the mean score of each sample's frames, which follow each other."""
    bounds = np.cumsum([0, *counts])
    return [float(np.mean(scores[a:b])) for a, b in pairwise(bounds.tolist())]
