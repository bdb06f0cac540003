"""What the judge says about a model's clips: held-out prompts, which attributes are right, counts and intervals.

Shape letters: N clips, C colour channels, T frames, H rows, W columns.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastvideo_wan.shapes.captions import draw_caption, names_background
from fastvideo_wan.shapes.judge import Verdict, judge_clip, judge_objects
from fastvideo_wan.shapes.render import to_uint8_frames
from fastvideo_wan.shapes.scenes import PLAIN, Scene, SceneRanges, World, draw_scene

ATTRIBUTES = ("colour", "shape", "direction", "all", "background", "whole", "size", "clean")
WILSON_Z = 1.959964  # 95 %, two-sided


@dataclass(frozen=True, slots=True)
class Case:
    """One held-out prompt, what it asks for, and the seed of the noise."""

    prompt: str
    scene: Scene
    seed: int


def held_out_cases(num_cases: int, seed: int, world: World = PLAIN) -> list[Case]:
    """Return prompts whose wording was never trained on, with scenes that say what they ask for."""
    rng = random.Random(f"evaluation/{seed}")
    scenes = [draw_scene(rng, SceneRanges(), world) for _ in range(num_cases)]
    return [Case(draw_caption(s, rng, is_held_out_wanted=True), s, rng.getrandbits(31)) for s in scenes]


def case_noise(cases: Sequence[Case], shape: tuple[int, ...]) -> Tensor:
    """Return each case's noise, as `torch.Generator("cpu").manual_seed(seed)` draws it, stacked."""
    return torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(case.seed)) for case in cases])


def score(verdicts: Sequence[Verdict], case: Case, *, num_frames: int) -> dict[str, bool]:
    """Say which of `ATTRIBUTES` are right: of all objects, which may come in any order.

    A background that the prompt does not name is always right, and one frame cannot show a direction: there an object
    is enough.
    """
    wanted = case.scene.objects
    orders = [
        [_score_object(one, verdict, num_frames) for one, verdict in zip(wanted, order, strict=True)]
        for order in itertools.permutations(verdicts)
    ]
    best = max(orders, key=lambda scores: sum(sum(one.values()) for one in scores))
    right = {name: all(one[name] for one in best) for name in best[0]}
    is_right = all(verdict.background == case.scene.background for verdict in verdicts)
    right["background"] = is_right or not names_background(case.prompt)
    right["all"] = right["colour"] and right["shape"] and right["direction"]
    return right


def _score_object(wanted: Scene, verdict: Verdict, num_frames: int) -> dict[str, bool]:
    return {
        "colour": verdict.colour == wanted.colour,
        "shape": verdict.shape == wanted.shape,
        "direction": verdict.direction == (wanted.motion if num_frames > 1 else "still"),
        "whole": verdict.is_whole,
        "size": verdict.is_size_constant,
        "clean": verdict.is_clean,
    }


def score_frames(frames_THWC: npt.NDArray[np.uint8] | Tensor, case: Case) -> dict[str, bool]:
    """Judge a clip's frames, bytes, against the case that it was made for."""
    is_pair = case.scene.second is not None
    verdicts = judge_objects(frames_THWC) if is_pair else [judge_clip(frames_THWC)]
    return score(verdicts, case, num_frames=len(frames_THWC))


def judge_clips(clips_NCTHW: Tensor, cases: Sequence[Case]) -> list[dict[str, bool]]:
    """Judge clips with values -1 to 1 against the cases that they were made for."""
    return [score_frames(to_uint8_frames(clip / 2 + 0.5), case) for clip, case in zip(clips_NCTHW, cases, strict=True)]


class Row(TypedDict):
    """How often an attribute was right: `right` of `n`, which is `part`, with its 95 % interval."""

    right: int
    n: int
    part: float
    interval_95: list[float]


def wilson_interval(num_right: int, num_cases: int) -> tuple[float, float]:
    """Return the 95 % interval of a proportion.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    part, z2 = num_right / num_cases, WILSON_Z**2
    middle = (part + z2 / (2 * num_cases)) / (1 + z2 / num_cases)
    half = WILSON_Z / (1 + z2 / num_cases) * math.sqrt(part * (1 - part) / num_cases + z2 / (4 * num_cases**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def summarise(scores: Sequence[dict[str, bool]]) -> dict[str, Row]:
    """Return count, part and interval of each attribute."""
    table: dict[str, Row] = {}
    for name in ATTRIBUTES:
        num_right = sum(score[name] for score in scores)
        interval = [round(bound, 4) for bound in wilson_interval(num_right, len(scores))]
        part = num_right / len(scores)
        table[name] = {"right": num_right, "n": len(scores), "part": part, "interval_95": interval}
    return table
