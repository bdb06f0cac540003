"""Make the clips of an evaluation on the engine, as anybody's requests are made, and judge them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastvideo_wan.shapes.evaluation import Case, score_frames

if TYPE_CHECKING:
    from fastvideo_core.runtime.engine import Engine

__all__ = ["Judged", "make_and_judge"]

MAX_WAITING = 16
"""Requests that the engine has at a time, so that it can batch them."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A clip and what the judge says about it.

    Attributes:
        case: What it was made for.
        frames: uint8 (T, H, W, 3).
        scores: Which attributes are right.
    """

    case: Case
    frames: npt.NDArray[np.uint8]
    scores: dict[str, bool]


def make_and_judge(
    engine: Engine,
    cases: Sequence[Case],
    parameters: Mapping[str, Any],
    *,
    on_event: Callable[[Any], None] | None = None,
) -> Iterator[Judged]:
    """Yield each case's clip with its scores, in order.

    Args:
        engine: With a card that makes videos from prompts.
        cases: Prompts, what they ask for, and seeds.
        parameters: Parameters of all requests, but for the seed; those left out are the card's.
        on_event: Called with every event of every request; see `Engine.submit`.

    Raises:
        InputError: A parameter is not allowed.
        ExecutionError: A step failed.
    """
    requests = (engine.make_request(case.prompt, parameters={**parameters, "seed": case.seed}) for case in cases)
    waiting = [engine.submit(request, on_event=on_event) for request in itertools.islice(requests, MAX_WAITING)]
    try:
        for case in cases:
            frames = waiting.pop(0).result().video.frames
            waiting += [engine.submit(request, on_event=on_event) for request in itertools.islice(requests, 1)]
            yield Judged(case, frames, score_frames(frames, case))
    finally:
        for handle in waiting:
            handle.cancel("the evaluation has ended")
