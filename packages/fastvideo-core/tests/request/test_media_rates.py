from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastvideo_core.errors import ParameterError
from fastvideo_core.request.media.rates import as_fps, format_fps


@pytest.mark.parametrize(
    ("value", "fps"),
    [
        (16, Fraction(16)),
        (16.0, Fraction(16)),
        ("16", Fraction(16)),
        (12.5, Fraction(25, 2)),
        (7.3, Fraction(73, 10)),
        (23.976, Fraction(24000, 1001)),
        (23.98, Fraction(24000, 1001)),
        ("23.976", Fraction(24000, 1001)),
        (24000 / 1001, Fraction(24000, 1001)),
        (29.97, Fraction(30000, 1001)),
        (59.94, Fraction(60000, 1001)),
        (47.952, Fraction(48000, 1001)),
        (119.88, Fraction(120000, 1001)),
        ("24000/1001", Fraction(24000, 1001)),
        ("24/1", Fraction(24)),
        (Fraction(2997, 100), Fraction(2997, 100)),
        (24, Fraction(24)),
        (23.9, Fraction(239, 10)),
        (0.5, Fraction(1, 2)),
    ],
)
def test_rates_are_exact(value, fps):
    assert as_fps(value) == fps


@pytest.mark.parametrize("value", [True, None, "fast", "1/0", "16 fps", "", float("nan"), float("inf"), [16]])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ParameterError, match="not a frame rate"):
        as_fps(value)


@pytest.mark.parametrize(
    ("value", "nearest"), [(0, "0.01"), (-16, "0.01"), (1001, "1000"), (1e9, "1000"), (1e-9, "0.01")]
)
def test_out_of_range_names_the_nearest(value, nearest):
    with pytest.raises(ParameterError, match=f"nearest: {nearest}$") as caught:
        as_fps(value, field="rate")
    assert caught.value.field == "rate"


@given(st.fractions(min_value="1/100", max_value=1000, max_denominator=100_000))
def test_text_reads_back_exactly(fps):
    text = format_fps(fps)
    assert as_fps(text if "/" in text else Fraction(text)) == fps
