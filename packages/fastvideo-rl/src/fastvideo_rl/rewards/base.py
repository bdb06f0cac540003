"""What a reward is.

Shape letters: F, Y, X pixel frames, rows, columns; 3 RGB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Reward", "Sample"]


@dataclass(frozen=True, slots=True)
class Sample:
    """What a reward looks at.

    Attributes:
        prompt: What was asked for.
        frames_FYX3: What was made, bytes.
        fps: Frames a second.
    """

    prompt: str
    frames_FYX3: npt.NDArray[np.uint8]
    fps: float


class Reward(Protocol):
    """A reward; made once a run, called with its options, and keeps nothing of a sample."""

    def score(self, samples: Sequence[Sample]) -> Sequence[float]:
        """Return one number for each sample, in order; NaN says that a sample has none, which ends its group.

        Whatever it raises ends the groups of those samples for which it raises when it is given them alone.
        """
        ...
