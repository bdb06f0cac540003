"""The flow shift: which one applies, and its application, exactly once.

A flow model is sampled on noise levels sigma in [0, 1], moved towards 1 by `s sigma / (1 + (s - 1) sigma)`. Shifting
twice is a mistake that gives plausible but wrong videos, so levels before and after the shift are two types:
`shift_sigmas` takes the one and gives the other, and schedules are made of the other alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastvideo_core.errors import ParameterError

__all__ = ["AreaShift", "FlowShiftPolicy", "FlowSigmas", "ShiftedSigmas", "check_shift", "shift_sigmas"]

_Levels = NDArray[np.floating[Any]]


def _read_only(values: _Levels | Sequence[float]) -> _Levels:
    levels: _Levels = np.array(values, dtype=None if isinstance(values, np.ndarray) else np.float64)
    if levels.ndim != 1 or levels.size == 0:
        raise ParameterError("not a list of noise levels", field="sigmas", value=levels.shape, allowed="at least one")
    if not np.all(np.isfinite(levels)):
        raise ParameterError("a noise level is not finite", field="sigmas", value=levels.tolist(), allowed="0 to 1")
    levels.setflags(write=False)
    return levels


@dataclass(frozen=True, slots=True, eq=False)
class FlowSigmas:
    """Noise levels before the flow shift, high to low.

    Attributes:
        values: One level a step, in [0, 1], or all levels with the last one; float64, or float32 where the
            reference rounds before it shifts.
    """

    values: _Levels

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _read_only(self.values))


@dataclass(frozen=True, slots=True, eq=False)
class ShiftedSigmas:
    """Noise levels after the flow shift, or levels that are final for another reason.

    Attributes:
        values: As in `FlowSigmas`.
        shift: The shift that was applied; 1 changes nothing.
    """

    values: _Levels
    shift: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _read_only(self.values))


def check_shift(shift: float, field: str = "flow_shift") -> float:
    """Return a valid shift as a float.

    Raises:
        ParameterError: The shift is not finite or not above zero.
    """
    if not math.isfinite(shift) or shift <= 0:
        raise ParameterError(
            "not a flow shift", field=field, value=shift, allowed="a finite number above 0", nearest=1.0
        )
    return float(shift)


def shift_sigmas(sigmas: FlowSigmas, shift: float) -> ShiftedSigmas:
    """Move noise levels towards 1, in the number format that they have.

    Args:
        sigmas: Levels that have not been shifted.
        shift: Above 1 spends more steps at high noise; 1 changes nothing.

    Raises:
        ParameterError: The levels have been shifted before, or the shift is no positive number.

    Source: Esser et al. 2024, arXiv:2403.03206, eq. 23.
    """
    if not isinstance(sigmas, FlowSigmas):
        raise ParameterError(
            "these noise levels have been shifted already",
            field="flow_shift",
            value=shift,
            allowed="one shift, applied to FlowSigmas",
        )
    s = check_shift(shift)
    levels = sigmas.values
    return ShiftedSigmas(s * levels / (1 + (s - 1) * levels), shift=s)


@dataclass(frozen=True, slots=True)
class AreaShift:
    """A default shift for frames up to some size.

    Attributes:
        max_area_px: Largest height times width that it is meant for, in pixels.
        shift: The shift.
    """

    max_area_px: int
    shift: float


@dataclass(frozen=True, slots=True)
class FlowShiftPolicy:
    """Which shift a request gets.

    Attributes:
        default: For frames larger than all of `by_area`, and where that is empty.
        by_area: Defaults by frame size, smallest area first.
    """

    default: float
    by_area: tuple[AreaShift, ...] = ()

    def __post_init__(self) -> None:
        check_shift(self.default)
        areas = [entry.max_area_px for entry in self.by_area]
        if areas != sorted(set(areas)):
            raise ParameterError("areas must ascend", field="by_area", value=areas, allowed="each above the one before")
        for entry in self.by_area:
            check_shift(entry.shift)

    def resolve(self, requested: float | None, *, height: int, width: int) -> float:
        """Return the shift of one request.

        Args:
            requested: What the request or the deployment says; None leaves it to the card.
            height: Frame height in pixels.
            width: Frame width in pixels.

        Raises:
            ParameterError: The requested shift is no positive number.
        """
        if requested is not None:
            return check_shift(requested)
        fitting = (entry.shift for entry in self.by_area if height * width <= entry.max_area_px)
        return float(next(fitting, self.default))
