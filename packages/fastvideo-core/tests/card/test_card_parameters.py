from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fastvideo_core.card import ParameterSpec
from fastvideo_core.errors import ParameterError

MAX_SEED = 2**63 - 1
SEED = ParameterSpec(type="integer", minimum=0, maximum=MAX_SEED, is_nullable=True)
FRAMES = ParameterSpec(type="integer", default=9, minimum=1, maximum=81, multiple_of=4, offset=1)


@pytest.mark.parametrize("seed", [0, 7, 2**53 + 1, 2**62 + 1, MAX_SEED - 5, MAX_SEED, None])
def test_large_integers_are_told_apart(seed):
    assert SEED.validate_value("seed", seed) == seed


@pytest.mark.parametrize(("seed", "nearest"), [(-1, 0), (2**63, MAX_SEED), (1.5, 1)])
def test_a_bad_seed_names_the_nearest(seed, nearest):
    with pytest.raises(ParameterError) as caught:
        SEED.validate_value("seed", seed)
    assert caught.value.nearest == nearest
    assert caught.value.allowed == "integer from 0 to 9223372036854775807 or null"


@given(st.integers(-200, 200))
def test_the_nearest_grid_value_is_the_nearest(value):
    grid = range(1, 82, 4)
    best = min(abs(value - valid) for valid in grid)
    if best == 0:
        assert FRAMES.validate_value("num_frames", value) == value
        return
    with pytest.raises(ParameterError) as caught:
        FRAMES.validate_value("num_frames", value)
    assert caught.value.nearest in grid
    assert abs(caught.value.nearest - value) == best


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (FRAMES, "integer of the form 4k + 1 from 1 to 81"),
        (ParameterSpec(type="number", default=1.0, minimum=0.01, maximum=50), "number from 0.01 to 50"),
        (ParameterSpec(type="number", default=1.0, minimum=0.0), "number of at least 0"),
        (ParameterSpec(type="integer", default=1, maximum=4096), "integer of at most 4096"),
        (ParameterSpec(type="string", default="a", choices=("a", "b")), "a, b"),
    ],
)
def test_allowed_values_in_words(spec, text):
    assert spec.allowed_text() == text


def test_limits_keep_their_kind_in_json():
    assert ParameterSpec.model_validate_json(SEED.model_dump_json()) == SEED


@pytest.mark.parametrize("value", ["7", True, [7], float("nan"), float("inf"), None])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ParameterError, match="num_frames="):
        FRAMES.validate_value("num_frames", value)


@st.composite
def grids(draw):
    """An integer parameter with limits, and all its values."""
    step, offset = draw(st.integers(1, 9)), draw(st.integers(-20, 20))
    low = draw(st.integers(-60, 60))
    high = low + draw(st.integers(0, 60))
    valid = [v for v in range(low, high + 1) if (v - offset) % step == 0]
    return step, offset, low, high, valid


@given(grids(), st.integers(-200, 200) | st.floats(-200, 200))
def test_on_any_grid_the_nearest_is_valid_and_none_is_nearer(grid, value):
    step, offset, low, high, valid = grid
    fields = {"type": "integer", "minimum": low, "maximum": high, "multiple_of": step, "offset": offset}
    if not valid:
        with pytest.raises(ValidationError, match="no value is integer"):
            ParameterSpec(**fields, is_nullable=True)
        return
    spec = ParameterSpec(**fields, default=valid[0])
    assert ParameterSpec.model_validate_json(spec.model_dump_json()) == spec
    if value in valid:
        got = spec.validate_value("x", value)
        assert got == value
        assert type(got) is int
        return
    with pytest.raises(ParameterError) as caught:
        spec.validate_value("x", value)
    assert caught.value.nearest in valid
    assert abs(caught.value.nearest - value) == min(abs(v - value) for v in valid)
    assert spec.validate_value("x", caught.value.nearest) == caught.value.nearest


@given(st.floats(-50, 50), st.floats(0, 50), st.floats(-200, 200) | st.integers(-(10**400), 10**400))
def test_the_nearest_number_is_the_nearer_limit(low, width, value):
    spec = ParameterSpec(type="number", default=low, minimum=low, maximum=low + width)
    if low <= value <= low + width:
        assert spec.validate_value("x", value) == value
        return
    with pytest.raises(ParameterError) as caught:
        spec.validate_value("x", value)
    assert caught.value.nearest == (low if value < low else low + width)


@pytest.mark.parametrize("kind", ["integer", "number", "integers", "numbers"])
def test_a_number_too_large_for_a_float_is_no_crash(kind):
    spec = ParameterSpec(type=kind, is_nullable=True)
    value = [10**400] if kind.endswith("s") else 10**400
    if kind.startswith("integer"):
        assert spec.validate_value("x", value) == value
    else:
        with pytest.raises(ParameterError, match="x.*nearest: 1.79"):
            spec.validate_value("x", value)


@pytest.mark.parametrize(
    ("fields", "good", "bad", "nearest"),
    [
        ({"type": "number", "default": 1, "minimum": 0}, 2, -0.5, 0.0),
        ({"type": "string", "default": "unipc", "choices": ("unipc", "euler")}, "euler", "uni_pc", "unipc"),
        ({"type": "string", "default": ""}, "anything", 3, None),
        ({"type": "string", "default": ""}, "any \U0001f600", "half \ud83d", None),
        ({"type": "boolean", "default": False}, True, 1, None),
        ({"type": "integers", "default": [1000, 757]}, [3, 2.0], [3, 2.5], 2),
        ({"type": "integers", "default": []}, (1, 2), 1, None),
        ({"type": "numbers", "default": [0.5], "minimum": 0, "maximum": 1}, [1, 0], [0.5, 1.5], 1.0),
        ({"type": "numbers", "default": [0.5]}, [], [True], None),
        ({"type": "integer", "is_nullable": True}, None, "7", None),
    ],
    ids=lambda value: value.get("type") if isinstance(value, dict) else "",
)
def test_every_kind_of_value(fields, good, bad, nearest):
    spec = ParameterSpec(**fields)
    assert ParameterSpec.model_validate_json(spec.model_dump_json()) == spec
    got = spec.validate_value("x", good)
    assert got == (list(good) if isinstance(good, tuple) else good)
    assert spec.validate_value("x", got) == got
    with pytest.raises(ParameterError) as caught:
        spec.validate_value("x", bad)
    assert caught.value.nearest == nearest
    assert caught.value.field.startswith("x")
    assert "\n" not in str(caught.value)


def test_a_list_names_the_element():
    with pytest.raises(ParameterError, match=r"steps\[1\]=2.5: not a valid value; allowed: .*; nearest: 2"):
        ParameterSpec(type="integers", default=[]).validate_value("steps", [3, 2.5])


def test_large_integers_in_a_list_keep_their_value():
    spec = ParameterSpec(type="integers", default=[2**53 + 1])
    assert ParameterSpec.model_validate_json(spec.model_dump_json()).default == [2**53 + 1]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"type": "integer"}, "a value is needed"),
        ({"type": "integer", "default": 3, "minimum": 4}, "default=3: not a valid value.*nearest: 4"),
        ({"type": "integer", "default": 2.5}, "default=2.5: not a valid value"),
        ({"type": "number", "default": 1.0, "minimum": 2, "maximum": 1}, "no value is number from 2 to 1"),
        ({"type": "number", "default": 1.0, "maximum": float("inf")}, "finite number"),
        ({"type": "number", "default": 1.0, "multiple_of": 2}, "multiple_of is for integer"),
        ({"type": "integer", "default": 1, "choices": ("1",)}, "choices are for string"),
        ({"type": "string", "default": "", "maximum": 7}, "minimum and maximum are for numbers"),
        ({"type": "string", "default": "c", "choices": ("a", "b")}, "default='c': not a known value"),
    ],
)
def test_a_specification_that_contradicts_itself_is_refused(fields, text):
    with pytest.raises(ValidationError, match=text):
        ParameterSpec(**fields)


def test_numbers_of_numpy_become_pythons_own():
    # A seed out of an array, and a rate out of a computation, have to fit into JSON in the end.
    for value, expected in [(np.int64(3), 3), (np.uint64(2**63 - 1), 2**63 - 1)]:
        got = SEED.validate_value("seed", value)
        assert (got, type(got)) == (expected, int)
    rate = ParameterSpec(type="number", minimum=0, maximum=240, default=8)
    for value in (np.float32(7.5), np.float64(7.5), Fraction(15, 2)):
        got = rate.validate_value("fps", value)
        assert (got, type(got)) == (7.5, float)
    for bad in (np.float32("nan"), np.bool_(True), np.array(3), np.array([3])):
        with pytest.raises(ParameterError, match="not a finite number"):
            rate.validate_value("fps", bad)


def test_lists_of_texts():
    spec = ParameterSpec(type="strings", default=[])
    assert spec.validate_value("stop", ("a", "b")) == ["a", "b"]
    assert spec.allowed_text() == "a list of strings"
    for value, text in (("a", "not a list"), ([1], r"stop\[0\]=1: not a string"), (["\ud800"], "not Unicode")):
        with pytest.raises(ParameterError, match=text):
            spec.validate_value("stop", value)
    with pytest.raises(ValidationError, match="for numbers"):
        ParameterSpec(type="strings", default=[], minimum=1)
