from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression, nnls

from fastvideo_core.cost.line import Anchor, CallSize, CostLine, MonotoneMap, fit_line
from fastvideo_core.loop.work import StepCost

PRIOR = CostLine(1e-3, 1e-4, 2e-11, 1e-10)


def test_the_size_of_a_call_counts_weights_once():
    assert CallSize.of(StepCost(10.0, 100.0, 3.0), 4) == CallSize(4.0, 40.0, 112.0)


def test_without_anchors_the_prior_stands():
    assert fit_line([], PRIOR) == PRIOR


@given(st.lists(st.tuples(st.integers(1, 20), st.floats(1e6, 1e12), st.floats(1e3, 1e9)), min_size=8, max_size=30))
def test_the_fit_is_about_as_good_as_an_independent_nonnegative_fit(sizes):
    draw = np.random.default_rng(0)
    anchors = [
        Anchor(CallSize(*size), PRIOR.seconds(CallSize(*size)) * float(np.exp(draw.normal(0, 0.05))), 1.0)
        for size in sizes
    ]
    line = fit_line(anchors, CostLine(2e-3, 1e-4, 1e-11, 3e-10))
    rows = np.array([(1.0, *anchor.size) for anchor in anchors]) / np.array([[a.seconds] for a in anchors])
    scale = np.array(PRIOR)
    best, _ = nnls(rows * scale, np.ones(len(rows)))
    ours = np.abs(rows @ np.array(line) - 1.0)
    theirs = np.abs(rows @ (best * scale) - 1.0)
    assert min(line) >= 0
    assert np.sqrt(np.mean(ours**2)) <= np.sqrt(np.mean(theirs**2)) + 0.02


def test_an_anchor_that_disagrees_with_all_others_hardly_counts():
    sizes = [CallSize(float(n), 1e10 * n * t, 1e7 * n) for n in (1, 2, 4) for t in (1, 3, 9, 27)]
    anchors = [Anchor(size, PRIOR.seconds(size), 1.0) for size in sizes]
    broken = [*anchors[:-1], anchors[-1]._replace(seconds=30 * anchors[-1].seconds)]
    line = fit_line(broken, PRIOR)
    for size, seconds, _ in anchors:
        assert line.seconds(size) == pytest.approx(seconds, rel=0.15)


@given(
    st.lists(
        st.tuples(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3), st.floats(0.1, 1.0)),
        min_size=1,
        max_size=20,
        unique_by=lambda point: point[0],
    )
)
def test_the_curve_passes_through_the_isotonic_regression(points):
    curve = MonotoneMap(points)
    ordered = sorted(points)
    fitted = isotonic_regression([m for _, m, _ in ordered], weights=[w for _, _, w in ordered])
    # Every pooled block is one knot, at its mean: there the curve has the regression's value.
    for start, end in zip(fitted.blocks, fitted.blocks[1:], strict=False):
        block = ordered[start:end]
        total = sum(w for _, _, w in block)
        middle = sum(z * w for z, _, w in block) / total
        assert curve(middle) == pytest.approx(fitted.x[start], rel=1e-6)


@given(
    st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0.1, 1.0)), max_size=20),
    st.lists(st.floats(0, 1e6), min_size=2, max_size=20),
)
def test_the_curve_never_falls(points, values):
    curve = MonotoneMap(points)
    mapped = [curve(value) for value in sorted(values)]
    assert all(value >= 0 for value in mapped)
    assert all(b >= a - 1e-9 * max(1.0, a) for a, b in pairwise(mapped))
