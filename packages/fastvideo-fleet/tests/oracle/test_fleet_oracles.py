from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fastvideo_fleet.control.minmax import min_max_plan
from fastvideo_fleet.fleet import calibrated_fleet
from fastvideo_fleet.oracle.budget import (
    Demand,
    clairvoyant_seconds,
    demand_of,
    experienced_utilization,
    lead_time_seconds,
    plan_slots,
    slot_means,
    slot_peaks,
    unavoidable_wait_s,
)
from fastvideo_fleet.oracle.placement import best_placement
from fastvideo_fleet.traces import TraceSettings, make_trace


def step_demand(*counts, step_s=10.0):
    times = np.arange(len(counts)) * step_s
    return Demand(times, np.array(counts), len(counts) * step_s)


def cheapest_by_trying(needed, *, max_gpus, start_s, step_s):
    """Try every schedule of whole steps."""
    best = np.inf
    for schedule in product(range(max_gpus + 1), repeat=len(needed)):
        if any(held < min(least, max_gpus) for held, least in zip(schedule, needed, strict=True)):
            continue
        starts = sum(max(now - before, 0) for before, now in zip((0, *schedule), schedule, strict=False))
        best = min(best, step_s * sum(schedule) + start_s * starts)
    return best


@pytest.mark.parametrize("start_s", [0.0, 7.0, 15.0, 25.0])
def test_the_clairvoyant_schedule_is_the_cheapest(rng, start_s):
    for _ in range(20):
        counts = rng.integers(0, 7, 6)
        demand = step_demand(*counts)
        needed = -(-counts // 2)
        expected = cheapest_by_trying(needed, max_gpus=3, start_s=start_s, step_s=10.0)
        assert clairvoyant_seconds(demand, 2, max_gpus=3, start_s=start_s) == pytest.approx(expected)
        plan = plan_slots(needed, max_gpus=3, start_s=start_s, slot_s=10.0)
        assert plan.gpu_seconds == pytest.approx(expected)
        assert (plan.gpus >= needed).all()


def test_knowing_how_much_but_not_when_costs_more():
    trace = make_trace(TraceSettings(0.4, 2, 1200.0))
    demand = demand_of(trace)
    for level in (3, 6):
        with_time = clairvoyant_seconds(demand, level, max_gpus=64, start_s=20.0)
        without = lead_time_seconds(demand, level, max_gpus=64, start_s=20.0)
        assert without > with_time
        assert lead_time_seconds(demand, level, max_gpus=64, start_s=0.0) < without


def test_the_lead_time_bound_by_hand():
    # One GPU's worth is 1 session. At 1 session, 3 were needed 5 s later; at 3 no more than 3 ever.
    demand = Demand(np.array([0.0, 10.0, 20.0, 30.0]), np.array([1, 3, 1, 0]), 40.0)
    assert lead_time_seconds(demand, 1, max_gpus=9, start_s=12.0) == 10 * 3 + 10 * 3 + 10 * 3 + 10 * 0


def test_demand_and_slots():
    trace = make_trace(TraceSettings(0.4, 2, 600.0))
    demand = demand_of(trace)
    assert demand.peak == trace.active_counts().max()
    means, peaks = slot_means(demand), slot_peaks(demand)
    assert len(means) == len(peaks) == 10
    assert means.mean() == pytest.approx(trace.mean_active())
    assert (peaks >= means).all()
    assert peaks.max() == demand.peak


def test_experienced_utilization_by_hand():
    demand = Demand(np.array([0.0, 60.0]), np.array([4, 6]), 120.0)
    # Slot 1: 4 sessions on 2 GPUs, 2 each. Slot 2: 6 on 4 GPUs: 2, 2, 1, 1.
    squares = (4 + 4) * 60 + (4 + 4 + 1 + 1) * 60
    assert experienced_utilization(demand, np.array([2, 4]), 5) == pytest.approx(squares / (5 * (4 + 6) * 60))


def test_waits_are_unavoidable_only_beyond_the_fleet(make_rows):
    trace = make_rows("0 a arrive", "1 b arrive", "2 c arrive", "5 a idle", "9 b depart", "9 c depart", duration_s=10.0)
    assert unavoidable_wait_s(trace, 3) == 0
    assert unavoidable_wait_s(trace, 2) == 3
    assert unavoidable_wait_s(trace, 1) == 7  # b takes a's place at 5 and c never gets one


@pytest.mark.parametrize("num_workers", [3, 6, 12])
def test_the_solver_and_the_controller_agree(rng, num_workers):
    for _ in range(6):
        one = calibrated_fleet("h20-7b", 1).classes[0]
        speeds = rng.choice([0.6, 1.0, 1.7], num_workers)
        chunk_s = np.append(np.outer(speeds, one.chunk_s), np.full((num_workers, 1), np.inf), axis=1)
        count = rng.integers(0, 5, num_workers)
        num_new, moves = int(rng.integers(0, 4)), int(rng.integers(0, num_workers))
        best = best_placement(count, chunk_s, num_new=num_new, max_moves=moves)
        plan = min_max_plan(count, chunk_s, num_new=num_new, max_moves=moves)
        assert (best is None) == (plan is None)
        if best is not None:
            assert plan.worst_s == pytest.approx(best.worst_s, rel=1e-6)
            assert best.count.sum() == count.sum() + num_new
