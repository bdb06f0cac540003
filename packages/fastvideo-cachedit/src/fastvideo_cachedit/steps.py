"""The step cache: a mask says which predictions the model makes; the library's forecasts answer for the others.

Shape letters: R branches of a request; C channels; T, H, W latent frames, rows, columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fastvideo_cachedit.forecasts import Course, calibrator_config, course_of, resume
from fastvideo_cachedit.library import Calibrator, CalibratorBase
from fastvideo_cachedit.masks import mask_from, mask_of, place_of
from fastvideo_cachedit.options import StepOptions
from fastvideo_core.loop.hooks import StepCall
from fastvideo_core.loop.state import PluginState

__all__ = ["StepCache", "StepState"]

_NAME = "prediction"


@dataclass(frozen=True, slots=True)
class StepState(PluginState):
    """What a step cache remembers of a branch of one request in one component.

    Attributes:
        begin: The first prediction that it was there for.
        last: The last one.
        prediction_1CTHW: The last one that the model made; None where `course` has it.
        course: What the forecast remembers.
    """

    schema_version: ClassVar[int] = 1

    begin: int
    last: int
    prediction_1CTHW: Tensor | None
    course: Course | None


class StepCache:
    """Answers where the mask says so.

    Args:
        options: The deploy config's options; each call brings those of its request.
    """

    def __init__(self, options: StepOptions) -> None:
        self._options = options

    def answer(self, call: StepCall, states: Mapping[str, StepState]) -> Tensor | None:
        """Return what the forecasts say, or None for the model to compute it; see `StepInterceptor`."""
        known = [states.get(branch) for branch in call.wanted.branches]
        if any(state is None or _is_computed(call, state) for state in known):
            return None
        return torch.cat([_forecast(call, state)[0] for state in known if state is not None])

    def record(
        self, call: StepCall, states: Mapping[str, StepState], prediction: Tensor, *, is_computed: bool
    ) -> Mapping[str, StepState]:
        """Keep what the model computed; see `StepInterceptor`."""
        if is_computed:
            rows = zip(call.wanted.branches, prediction.split(1), strict=True)
            return {branch: _computed(call, states.get(branch), row) for branch, row in rows}
        if any(branch not in states or _is_computed(call, states[branch]) for branch in call.wanted.branches):
            return {}  # somebody else has answered
        return {branch: _forecast(call, states[branch])[1] for branch in call.wanted.branches}


def _is_computed(call: StepCall, state: StepState) -> bool:
    """Return what the mask says of a prediction, to a branch that was there before."""
    options: StepOptions = call.options
    index, num_predictions = place_of(call.step, call.wanted)
    mask = mask_of(options.mask, num_predictions)
    assert mask is not None, "a step cache has a mask"
    return mask_from(mask, state.begin, options.warmup_steps)[index - state.begin] == 1


def _forecast(call: StepCall, state: StepState) -> tuple[Tensor, StepState]:
    """Return a branch's prediction without the model, and what is remembered after it."""
    index, _ = place_of(call.step, call.wanted)
    if state.course is None:
        assert state.prediction_1CTHW is not None, "a state without a forecast has a prediction"
        return state.prediction_1CTHW, replace(state, last=index)
    calibrator = _calibrator(call.options)
    assert calibrator is not None, "requests keep their options"
    resume(calibrator, _NAME, state.course, index - state.last - 1)
    calibrator.mark_step_begin()
    value: Tensor = calibrator.approximate(_NAME)
    return value, replace(state, last=index, course=course_of(calibrator, _NAME))


def _computed(call: StepCall, state: StepState | None, row_1CTHW: Tensor) -> StepState:
    """Return what is remembered after a prediction that the model made."""
    index, _ = place_of(call.step, call.wanted)
    begin = index if state is None else state.begin
    row_1CTHW = row_1CTHW.detach().clone()
    calibrator = _calibrator(call.options)
    if calibrator is None:
        return StepState(begin, index, row_1CTHW, None)
    if state is not None and state.course is not None:
        resume(calibrator, _NAME, state.course, index - state.last - 1)
    calibrator.mark_step_begin()
    calibrator.update(row_1CTHW, _NAME)
    return StepState(begin, index, None, course_of(calibrator, _NAME))


def _calibrator(options: StepOptions) -> CalibratorBase | None:
    config = calibrator_config(options.forecast, options.taylor_order)
    return None if config is None else Calibrator(config)
