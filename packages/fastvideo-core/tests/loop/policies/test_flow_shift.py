"""The flow shift: applied once, and chosen by the request, the frame size, or the card."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.policies.flow_shift import (
    AreaShift,
    FlowShiftPolicy,
    FlowSigmas,
    ShiftedSigmas,
    check_shift,
    shift_sigmas,
)
from fastvideo_core.loop.samplers import SAMPLERS, ScheduleSpec

WAN = FlowShiftPolicy(default=5.0, by_area=(AreaShift(max_area_px=480 * 832, shift=3.0),))
levels = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20)


def test_one_level_by_hand():
    shifted = shift_sigmas(FlowSigmas([1.0, 0.5, 0.0]), 3.0)
    assert shifted.values.tolist() == [1.0, 0.75, 0.0]
    assert shifted.shift == 3.0


@given(values=levels, shift=st.floats(0.1, 20.0))
def test_the_inverse_shift_undoes_it(values, shift):
    there = shift_sigmas(FlowSigmas(values), shift)
    back = shift_sigmas(FlowSigmas(there.values), 1 / shift)
    assert np.allclose(back.values, values, rtol=1e-9, atol=1e-12)


@given(values=levels)
def test_a_shift_of_one_changes_nothing(values):
    assert np.array_equal(shift_sigmas(FlowSigmas(values), 1.0).values, values)


def test_two_shifts_are_refused():
    once = shift_sigmas(FlowSigmas([0.9, 0.5]), 3.0)
    with pytest.raises(ParameterError, match="shifted already"):
        shift_sigmas(once, 3.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_every_sampler_shifts_once(name):
    """Levels that a caller has shifted, with the request's shift set as well, stay as they are."""
    own = ScheduleSpec(2, shift=7.0, sigmas=ShiftedSigmas([0.75, 0.25]))
    assert SAMPLERS[name].make_schedule(own).sigma_values == (0.75, 0.25, 0.0)
    plain = ScheduleSpec(2, shift=3.0, sigmas=FlowSigmas([0.5, 0.25]))
    assert SAMPLERS[name].make_schedule(plain).sigma_values == pytest.approx((0.75, 0.5, 0.0))


def test_the_number_format_is_kept():
    assert shift_sigmas(FlowSigmas(np.array([0.3, 0.1], dtype=np.float32)), 3.0).values.dtype == np.float32
    assert shift_sigmas(FlowSigmas([0.3, 0.1]), 3.0).values.dtype == np.float64


def test_levels_cannot_be_changed_in_place():
    source = np.array([0.9, 0.5])
    sigmas = FlowSigmas(source)
    source[0] = 0.1
    assert sigmas.values[0] == 0.9
    with pytest.raises(ValueError, match="read-only"):
        sigmas.values[0] = 0.2


@pytest.mark.parametrize(
    ("requested", "height", "width", "expected"),
    [
        (None, 480, 832, 3.0),
        (None, 832, 480, 3.0),
        (None, 256, 256, 3.0),
        (None, 720, 1280, 5.0),
        (None, 496, 832, 5.0),
        (8.0, 480, 832, 8.0),
        (1.0, 720, 1280, 1.0),
    ],
)
def test_defaults_by_frame_size(requested, height, width, expected):
    assert WAN.resolve(requested, height=height, width=width) == expected


@pytest.mark.parametrize("shift", [0.0, -3.0, float("inf"), float("nan")])
def test_no_positive_number_is_refused(shift):
    with pytest.raises(ParameterError, match=r"flow_shift=.*allowed: a finite number above 0"):
        WAN.resolve(shift, height=480, width=832)
    with pytest.raises(ParameterError):
        FlowShiftPolicy(default=shift)
    with pytest.raises(ParameterError):
        check_shift(shift)


def test_areas_must_ascend():
    with pytest.raises(ParameterError, match="areas must ascend"):
        FlowShiftPolicy(default=5.0, by_area=(AreaShift(100, 3.0), AreaShift(100, 4.0)))
