"""The judge as rewards: prompt following, fast motion, and exact centring, each from 0 to 1.

What a prompt asks for is read from its words, so that a prompt alone is enough.

Shape letters: F, Y, X pixel frames, rows, columns; 3 RGB.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from fastvideo_wan.shapes.captions import COLOUR_WORDS, MOTION_WORDS, SHAPE_WORDS
from fastvideo_wan.shapes.judge import Verdict, judge_clip, judge_objects

__all__ = [
    "CentreReward",
    "PromptOptions",
    "PromptReward",
    "SpeedOptions",
    "SpeedReward",
    "Wanted",
    "read_prompt",
    "read_prompts",
]

Frames = npt.NDArray[np.uint8]
MAX_OBJECTS = 2
_ASKED = {"colour": "colour", "shape": "shape", "direction": "motion"}
"""What a prompt asks for, by what a verdict says of it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a prompt asks for; None for what it does not say.

    Attributes:
        colour: Key of `captions.COLOUR_WORDS`.
        shape: Key of `captions.SHAPE_WORDS`.
        motion: Key of `captions.MOTION_WORDS`.
    """

    colour: str | None
    shape: str | None
    motion: str | None


def read_prompts(prompt: str) -> tuple[Wanted, ...]:
    """Return what a prompt asks for of each of its objects, which `and` stands between."""
    parts = [read_prompt(part) for part in re.split(r"\band\b", prompt.lower())]
    named = tuple(part for part in parts if part.shape is not None or part.colour is not None)
    return named[:MAX_OBJECTS] if len(named) > 1 else (read_prompt(prompt),)


def read_prompt(prompt: str) -> Wanted:
    """Return what a prompt asks for. Of several phrases for a motion the longest counts."""
    text = " ".join(prompt.lower().split())
    return Wanted(_found(text, COLOUR_WORDS), _found(text, SHAPE_WORDS), _found(text, MOTION_WORDS))


def _found(text: str, words: Mapping[str, Sequence[str]]) -> str | None:
    phrases = sorted(((phrase, name) for name, some in words.items() for phrase in some), key=lambda one: -len(one[0]))
    return next((name for phrase, name in phrases if re.search(rf"\b{re.escape(phrase)}\b", text)), None)


def _verdicts(frames_FYX3: Frames, num_objects: int) -> list[Verdict]:
    return [judge_clip(frames_FYX3)] if num_objects == 1 else judge_objects(frames_FYX3, num_objects=num_objects)


class PromptOptions(BaseModel):
    """Options of `PromptReward`.

    Attributes:
        attributes: What is looked at.
        is_joint: Whether a sample gets 1 if all of it is right, else 0, in place of the share that is right.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    attributes: tuple[Literal["colour", "shape", "direction"], ...] = Field(
        default=("colour", "shape", "direction"), min_length=1
    )
    is_joint: bool = False


class PromptReward:
    """The share of what a prompt says of colour, shape and direction that the sample shows."""

    def __init__(self, options: PromptOptions) -> None:
        self._options = options

    def score(self, samples: Sequence[Any]) -> list[float]:
        """Return a score for each sample; NaN for a prompt that says nothing of what is looked at."""
        return [self._score(read_prompts(one.prompt), one.frames_FYX3) for one in samples]

    def _score(self, wanted: Sequence[Wanted], frames_FYX3: Frames) -> float:
        if not sum(map(self._num_asked, wanted)):
            return float("nan")
        orders = itertools.permutations(_verdicts(frames_FYX3, len(wanted)))
        num_right = max(sum(map(self._num_right, wanted, order)) for order in orders)
        share = num_right / sum(map(self._num_asked, wanted))
        return float(share == 1.0) if self._options.is_joint else share

    def _num_asked(self, wanted: Wanted) -> int:
        return sum(getattr(wanted, _ASKED[name]) is not None for name in self._options.attributes)

    def _num_right(self, wanted: Wanted, verdict: Verdict) -> int:
        asked = [(getattr(wanted, _ASKED[name]), getattr(verdict, name)) for name in self._options.attributes]
        return sum(one is not None and one == shown for one, shown in asked)


class SpeedOptions(BaseModel):
    """Options of `SpeedReward`.

    Attributes:
        full_travel: Way over the clip, in sides of the frame, that gets the full score.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    full_travel: float = Field(default=0.5, gt=0, le=2)


class SpeedReward:
    """How far the object moves, in the way that the prompt says; for one that is to stand still, that it does."""

    def __init__(self, options: SpeedOptions) -> None:
        self._full = options.full_travel

    def score(self, samples: Sequence[Any]) -> list[float]:
        """Return a score for each sample."""
        return [self._score(read_prompt(one.prompt), judge_clip(one.frames_FYX3)) for one in samples]

    def _score(self, wanted: Wanted, verdict: Verdict) -> float:
        if wanted.motion is not None and verdict.direction != wanted.motion:
            return 0.0
        if wanted.motion == "still":
            return 1.0
        return min(1.0, verdict.travel / self._full)


class CentreReward:
    """1 where the middle of the object's way is the middle of the frame, 0 where it is half a side off or not there."""

    def __init__(self, options: None) -> None:
        del options

    def score(self, samples: Sequence[Any]) -> list[float]:
        """Return a score for each sample."""
        return [max(0.0, 1.0 - 2.0 * judge_clip(one.frames_FYX3).off_centre) for one in samples]
