from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
