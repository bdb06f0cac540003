"""The filter over arrival rates, against enumeration, closed forms and traces whose rates are known."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastvideo_fleet.control.arrivals import ArrivalFilter, RegimeSettings
from fastvideo_fleet.traces import TraceSettings, make_trace
from fastvideo_fleet.traces.demand import TRACE_LAW


def counts_of(times, duration_s):
    return np.bincount(np.asarray(times).astype(int), minlength=int(duration_s)).tolist()


def chain_within(rates, step_s):
    """Return the transitions within a step by the exponential series."""
    total, term = np.eye(len(rates)), np.eye(len(rates))
    for order in range(1, 40):
        term = term @ rates * step_s / order
        total = total + term
    return total


def test_the_posterior_is_that_of_all_paths():
    settings = RegimeSettings(factors=(1.0, 6.0), dwell_s=(20.0, 4.0), calm_s=50.0, calm_share=0.2, drift_s=math.inf)
    found = ArrivalFilter(0.5, step_s=2.0, settings=settings)
    counts = [0, 3, 7, 1]
    for count in counts:
        found.update(count)
    rates = 0.5 * 8.0 * 1.25 ** -np.arange(51)  # from 8 times the prior's rate down to less than 1/1000 of it
    prior = rates * np.exp(-rates / 0.5)
    leaving = np.array([[0, 1 / 20, 1 / 50], [1 / 4, 0, 0], [1 / 50, 0, 0]])
    turn = chain_within(leaving - np.diag(leaving.sum(axis=1)), 2.0)
    first, factors = (0.8 * 20 / 24, 0.8 * 4 / 24, 0.2), (1.0, 6.0, 1.0)
    posterior = np.zeros((len(rates), 3))
    for path in product(range(3), repeat=5):
        chance = prior * first[path[0]]
        for before, now, count in zip(path, path[1:], counts, strict=False):
            mean = rates * factors[now] * 2.0
            chance = chance * turn[before, now] * mean**count * np.exp(-mean)
        posterior[:, path[-1]] += chance
    posterior /= posterior.sum()
    assert found.regimes == pytest.approx(posterior.sum(axis=0), rel=1e-3)
    assert found.usual_rate == pytest.approx(rates @ posterior.sum(axis=1), rel=1e-3)
    assert found.burst_rate == pytest.approx(rates @ posterior @ [6.0, 6.0, 1.0], rel=1e-3)


@given(st.lists(st.integers(0, 10_000), max_size=60), st.floats(1e-4, 1e3))
@example([0] * 50 + [10_000], 1e-4)
@example([10_000, 0, 0, 10_000], 1e-4)
@example([0, 0, 0], 1e3)
def test_any_arrivals_leave_probabilities(counts, prior_rate):
    found = ArrivalFilter(prior_rate, step_s=1.0)
    for count in counts:
        found.update(count)
    assert found.regimes.sum() == pytest.approx(1.0)
    assert (found.regimes >= 0).all()
    assert 0 < found.usual_rate <= found.burst_rate <= 8.0 * found.usual_rate * (1 + 1e-9)


@pytest.mark.parametrize(("rate", "seed"), [(0.6, 11), (1.5, 12)])
def test_the_usual_rate_of_a_trace_is_found(rate, seed):
    trace = make_trace(TraceSettings(rate, seed))
    found = ArrivalFilter(1.0, step_s=1.0)
    for count in counts_of(trace.time_s[trace.kind == 0], 3601):
        found.update(count)
    assert found.usual_rate == pytest.approx(rate / TRACE_LAW.mean_rate_factor, rel=0.25)
    assert found.burst_rate == pytest.approx(8 * found.usual_rate, rel=0.02)


def test_where_no_burst_ever_comes_none_is_expected(rng):
    found = ArrivalFilter(1.0, step_s=1.0)
    arrivals = rng.poisson(0.6, 7200).tolist()
    ready_for = []
    for count in arrivals:
        found.update(count)
        ready_for.append(found.burst_rate)
    assert ready_for[600] == pytest.approx(8 * 0.6, rel=0.25)
    assert ready_for[-1] == pytest.approx(0.6, rel=0.15)


def test_a_burst_raises_the_regime_not_the_usual_rate():
    found = ArrivalFilter(1.0, step_s=1.0)
    rng = np.random.default_rng(5)
    for count in rng.poisson(1.0, 300).tolist():
        found.update(count)
    before = found.burst_rate
    for count in rng.poisson(8.0, 10).tolist():
        found.update(count)
    assert found.regimes.argmax() == 2
    assert found.burst_rate == pytest.approx(before, rel=0.1)


def test_a_rate_that_has_changed_for_good_is_learnt_anew(rng):
    found = ArrivalFilter(1.0, step_s=1.0)
    for count in [*rng.poisson(0.2, 3600).tolist(), *rng.poisson(0.5, 5400).tolist()]:
        found.update(count)
    assert found.usual_rate == pytest.approx(0.5, rel=0.25)
