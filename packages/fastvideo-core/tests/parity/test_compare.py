from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastvideo_core.parity import Comparison, compare_tensors

INF = math.inf
NAN = math.nan
FLOATS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=5)


@settings(max_examples=40)
@given(FLOATS, st.data())
def test_the_distance_is_the_greatest_difference(reference, data):
    value = data.draw(st.lists(st.floats(-1e6, 1e6, width=32), min_size=len(reference), max_size=len(reference)))
    a, b = np.array(value, np.float64), np.array(reference, np.float64)
    expected = np.abs(a - b).max()
    got = compare_tensors(torch.tensor(value), torch.tensor(reference))
    assert got.max_absolute == expected
    if np.abs(b).max() > 0:
        assert got.max_relative == expected / np.abs(b).max()
    assert got.is_equal == (np.array(value, np.float32).tobytes() == np.array(reference, np.float32).tobytes())


@pytest.mark.parametrize(
    ("value", "reference", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], Comparison(True, 0.0, 0.0)),
        ([1.0, 2.5], [1.0, 2.0], Comparison(False, 0.5, 0.25)),
        ([0.0], [-0.0], Comparison(False, 0.0, 0.0)),
        ([0.0], [0.0], Comparison(True, 0.0, 0.0)),
        ([1.0], [0.0], Comparison(False, 1.0, INF)),
        ([NAN], [NAN], Comparison(False, INF, INF)),
        ([NAN], [1.0], Comparison(False, INF, INF)),
        ([1.0], [NAN], Comparison(False, INF, INF)),
        ([-INF, 1.0], [-INF, 1.0], Comparison(True, 0.0, 0.0)),
        ([-INF, 3.0], [-INF, 2.0], Comparison(False, 1.0, 0.5)),
        ([INF], [-INF], Comparison(False, INF, INF)),
        ([INF], [1.0], Comparison(False, INF, INF)),
        ([], [], Comparison(True, 0.0, 0.0)),
        ([1.0], [1.0, 1.0], Comparison(False, INF, INF)),
    ],
)
def test_special_values(value, reference, expected):
    assert compare_tensors(torch.tensor(value), torch.tensor(reference)) == expected


def test_other_formats_and_layouts():
    x = torch.arange(6.0).reshape(2, 3)
    assert compare_tensors(x.t(), x.t().contiguous()).is_equal
    assert compare_tensors(x[:, :2], x[:, :2].clone()).is_equal
    assert compare_tensors(x.bfloat16(), x) == Comparison(False, 0.0, 0.0)
    assert compare_tensors(x.reshape(3, 2), x) == Comparison(False, INF, INF)
    assert compare_tensors(x.requires_grad_(), x.detach()).is_equal
    assert compare_tensors(torch.tensor(2**53 + 1), torch.tensor(2**53)) == Comparison(False, 0.0, 0.0)
    assert compare_tensors(torch.tensor([True]), torch.tensor([False])) == Comparison(False, 1.0, INF)
    assert compare_tensors(torch.empty(0), torch.empty(0, dtype=torch.int64)) == Comparison(False, 0.0, 0.0)


def test_complex_numbers_are_compared_part_by_part():
    x = torch.tensor([1 + 2j, 3 - 4j])
    assert compare_tensors(x, x.clone()).is_equal
    assert compare_tensors(x.conj(), torch.tensor([1 - 2j, 3 + 4j])).is_equal
    assert compare_tensors(x + 1j, x) == Comparison(False, 1.0, 0.25)
    assert compare_tensors(x.real, x) == Comparison(False, INF, INF)


@pytest.mark.parametrize(
    ("comparison", "bound", "is_good"),
    [
        (Comparison(True, 0.0, 0.0), 0.0, True),
        (Comparison(False, 1.0, 0.25), 0.25, True),
        (Comparison(False, 1.0, 0.25), 0.2, False),
        (Comparison(False, INF, INF), 1e9, False),
    ],
)
def test_a_bound_is_kept_or_not(comparison, bound, is_good):
    assert comparison.is_within(bound) == is_good
