from __future__ import annotations

import numpy as np
import pytest

from fastvideo_fleet.control.registry import make_policy
from fastvideo_fleet.errors import FleetError
from fastvideo_fleet.fleet import calibrated_fleet
from fastvideo_fleet.sim.simulator import WorkerFailure, simulate


def test_one_session_alone_by_hand(make_rows, small_fleet):
    # Batches of one take 0.75 s: at 10 s, 13 are done and the 14th is in flight; the session gets that one too.
    trace = make_rows("0 a arrive", "10 a depart", duration_s=20.0)
    result = simulate(trace, small_fleet, make_policy("load-aware", num_gpus=1))
    assert result.num_chunks == 14
    assert result.worst_chunk_latency_s == pytest.approx(0.75)
    assert result.gpu_cost == pytest.approx(3.6 * 20 / 3600)
    assert (result.num_suspends, result.num_migrations, result.slo_violations) == (0, 0, 0)


def test_a_second_session_waits_for_the_batch_in_flight(make_rows, small_fleet):
    # The first batch ends at 0.75; the newcomer asked at 0.25, and its batch of two takes 1.0.
    trace = make_rows("0 a arrive", "0.25 b arrive", "1.9 a depart", "1.9 b depart", duration_s=3.0)
    result = simulate(trace, small_fleet, make_policy("load-aware", num_gpus=1))
    assert result.worst_chunk_latency_s == pytest.approx(1.5)
    assert result.worst_batch_s == pytest.approx(1.0)
    assert result.worst_queue_and_batch_s == pytest.approx(1.0)


def test_coming_back_costs_the_transfer(make_rows, small_fleet):
    trace = make_rows("0 a arrive", "1 a idle", "5 a activate", "5.5 a depart", duration_s=8.0)
    result = simulate(trace, small_fleet, make_policy("load-aware", num_gpus=1))
    assert result.worst_chunk_latency_s == pytest.approx(0.75 + 0.05)
    assert result.num_suspends == 1


def test_a_session_is_in_one_of_three_states(make_rows, small_fleet):
    trace = make_rows("0 a arrive", "1 a idle", "5 a activate", "6 a depart", "7 b arrive", duration_s=8.0)
    seen, states = [], []

    def watch(view, event):
        seen.extend(view.sessions.values() if not seen else ())
        states.append(seen[0].state.name)

    simulate(trace, small_fleet, make_policy("load-aware", num_gpus=1), observer=watch)
    assert states == ["EXECUTION", "SUSPENDED", "EXECUTION", "TERMINATED", "TERMINATED"]


def test_a_full_fleet_makes_sessions_wait(make_rows, small_fleet):
    rows = [f"0 s{i} arrive" for i in range(4)]
    trace = make_rows(*rows, "4 s0 depart", "9 s3 idle", duration_s=10.0)
    result = simulate(trace, small_fleet, make_policy("load-aware", num_gpus=1))
    # s3 gets a place at 4, when the fourth batch of three (1.25 s) is in flight until 5; its chunk is done at 6.25.
    assert result.worst_chunk_latency_s == pytest.approx(6.25)
    assert result.worst_queue_and_batch_s == pytest.approx(4 + 1.25)


def test_a_wait_without_a_chunk_counts(make_rows, small_fleet):
    rows = [f"0 s{i} arrive" for i in range(4)]
    trace = make_rows(*rows, "7 s3 depart", duration_s=10.0)
    result = simulate(trace, small_fleet, make_policy("load-aware", num_gpus=1))
    assert result.worst_unserved_s == 7
    assert result.worst_chunk_latency_s == 7
    assert result.slo_violations == 1


def test_starting_and_draining_are_paid_for(make_rows):
    fleet = calibrated_fleet("h20-1.3b", 4)
    trace = make_rows("0 a arrive", "0 b arrive", "300 a depart", "300 b depart", duration_s=600.0)
    result = simulate(trace, fleet, make_policy("fastvideo"))
    times = [0.0, *(time for time, _ in result.budget[1:]), 600.0]
    held = [number for _, number in result.budget]
    seconds = sum(number * (end - start) for number, start, end in zip(held, times, times[1:], strict=False))
    assert result.gpu_hours * 3600 == pytest.approx(seconds)


def test_series_tell_what_happened(short_trace):
    trace, fleet = short_trace
    result = simulate(trace, fleet, make_policy("fastvideo"), bin_s=5.0)
    series = result.series
    assert series.time_s.tolist() == pytest.approx(np.arange(5, 601, 5.0))
    assert series.worst_latency_s.max() == pytest.approx(result.worst_chunk_latency_s)
    assert series.num_migrations[-1] == result.num_migrations
    assert (series.load <= 1).all()
    assert (series.num_gpus <= 8).all()
    counts = trace.active_counts()[np.searchsorted(trace.time_s, series.time_s, side="left") - 1]
    assert np.array_equal(series.num_active[:-1], counts[:-1])


def test_a_lost_fleet_recovers(short_trace):
    trace, fleet = short_trace
    failures = [WorkerFailure(200.0, worker) for worker in range(8)]
    result = simulate(trace, fleet, make_policy("fastvideo"), failures=failures)
    usual = simulate(trace, fleet, make_policy("fastvideo"))
    assert result.num_chunks > 0.8 * usual.num_chunks
    assert result.worst_chunk_latency_s > 20  # a start takes 20 s, and everybody waits for it


@pytest.mark.parametrize("failure", [WorkerFailure(1.0, 8), WorkerFailure(1.0, -1), WorkerFailure(-1.0, 0)])
def test_failures_of_no_worker_are_refused(short_trace, failure):
    trace, fleet = short_trace
    with pytest.raises(FleetError, match="no such failure"):
        simulate(trace, fleet, make_policy("load-aware"), failures=[failure])


def test_an_empty_stretch_makes_no_chunks(make_rows, small_fleet):
    trace = make_rows("50 a arrive", "51 a depart", duration_s=100.0)
    result = simulate(trace, small_fleet, make_policy("fastvideo"))
    assert result.num_chunks == 2
    assert result.experienced_utilization == pytest.approx(1 / 3)


@pytest.mark.slow
def test_a_day_is_simulated():
    from fastvideo_fleet.traces import TraceSettings, make_trace

    trace = make_trace(TraceSettings(100_000 / 86_400, 1, 86_400.0, wave=0.6))
    result = simulate(trace, calibrated_fleet("b300-1.3b", 512), make_policy("fastvideo"))
    assert trace.num_sessions == pytest.approx(100_000, rel=0.1)
    assert result.num_chunks > 10_000_000
