"""What the library's calibrators remember of a tensor's course, as plain data that a request's state can hold."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fastvideo_cachedit.library import (
    CalibratorBase,
    FoCaCalibrator,
    FoCaCalibratorConfig,
    FoCaState,
    TaylorSeerCalibrator,
    TaylorSeerCalibratorConfig,
    TaylorSeerState,
)
from fastvideo_cachedit.options import Forecast

__all__ = ["Course", "FoCaCourse", "TaylorCourse", "calibrator_config", "course_of", "resume"]


@dataclass(frozen=True, slots=True)
class TaylorCourse:
    """What TaylorSeer remembers.

    Attributes:
        step: Steps seen, the library's count.
        computed_step: The last of them that was computed.
        derivatives: The tensor and its derivatives at that step, as far as there are any.
    """

    step: int
    computed_step: int
    derivatives: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class FoCaCourse:
    """What FoCa remembers.

    Attributes:
        step: Steps seen, the library's count.
        computed_step: The last of them that was computed.
        earlier_step: The one before that.
        values: The last two tensors, computed or forecast, and the last two that were computed, newest first.
    """

    step: int
    computed_step: int
    earlier_step: int
    values: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


Course = TaylorCourse | FoCaCourse


def calibrator_config(
    forecast: Forecast, taylor_order: int
) -> TaylorSeerCalibratorConfig | FoCaCalibratorConfig | None:
    """Return the library's settings of a forecast; None for none."""
    if forecast == "taylor":
        return TaylorSeerCalibratorConfig(taylorseer_order=taylor_order, enable_encoder_calibrator=False)
    return FoCaCalibratorConfig(enable_encoder_calibrator=False) if forecast == "foca" else None


def course_of(calibrator: CalibratorBase | None, name: str) -> Course | None:
    """Return what a calibrator remembers of a tensor; None if nothing.

    Args:
        calibrator: The calibrator; it is not used after this.
        name: The tensor's name with it.
    """
    state = None if calibrator is None else calibrator.states.get(name)
    if isinstance(state, TaylorSeerState):
        known = tuple(one for one in state.state["dY_current"] if one is not None)
        return TaylorCourse(state.current_step, state.last_non_approximated_step, known)
    if isinstance(state, FoCaState):
        values = (state.F_k, state.F_km1, state.F_full, state.F_full_prev)
        return FoCaCourse(state.current_step, state.last_full_step, state.prev_full_step, values)
    return None


def resume(calibrator: CalibratorBase, name: str, course: Course, num_missed: int) -> None:
    """Let a new calibrator go on with what another one remembered.

    Args:
        calibrator: The new one, of the same kind and settings.
        name: The tensor's name with it.
        course: What `course_of` gave. Its tensors are only read.
        num_missed: Steps in between that it did not see.
    """
    calibrator.maybe_init_state(name)
    state = calibrator.states[name]
    state.current_step = course.step + num_missed
    if isinstance(course, TaylorCourse):
        assert isinstance(calibrator, TaylorSeerCalibrator), "requests keep their options"
        # The derivatives before the last ones are written over before they are read.
        missing = state.order - len(course.derivatives)
        state.state["dY_current"] = [*course.derivatives, *[None] * missing]
        state.last_non_approximated_step = course.computed_step
        return
    assert isinstance(calibrator, FoCaCalibrator), "requests keep their options"
    state.last_full_step, state.prev_full_step = course.computed_step, course.earlier_step
    state.F_k, state.F_km1, state.F_full, state.F_full_prev = course.values
