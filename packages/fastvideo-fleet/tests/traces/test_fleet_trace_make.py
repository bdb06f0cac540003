from __future__ import annotations

import math
import statistics
from itertools import pairwise

import numpy as np
import pytest

from fastvideo_fleet.errors import TraceError
from fastvideo_fleet.fleet import calibrated_fleet
from fastvideo_fleet.traces import (
    EventKind,
    SessionLaw,
    TraceSettings,
    active_seconds_per_arrival,
    arrivals_per_second,
    format_trace,
    make_trace,
    parse_trace,
)
from fastvideo_fleet.traces.demand import mean_length_s, probability_active, untruncated_mean_s


def spells(trace):
    """Return active spells, idle spells and lengths of sessions that are whole within the trace."""
    rows = {}
    for time_s, session, kind in zip(trace.time_s, trace.session, trace.kind, strict=True):
        rows.setdefault(int(session), []).append((float(time_s), int(kind)))
    active, idle, lengths = [], [], []
    for events in rows.values():
        if events[-1][0] >= trace.duration_s:
            continue
        lengths.append(events[-1][0] - events[0][0])
        for (start, kind), (end, after) in pairwise(events):
            if after != EventKind.DEPART:
                (active if kind in (EventKind.ARRIVE, EventKind.ACTIVATE) else idle).append(end - start)
    return active, idle, lengths


def test_the_same_seed_gives_the_same_bytes_and_another_does_not():
    one, same, other = (format_trace(make_trace(TraceSettings(0.2, seed))) for seed in (3, 3, 4))
    assert one == same
    assert one != other


def test_every_made_trace_keeps_the_rules():
    for seed in range(5):
        trace = make_trace(TraceSettings(0.5, seed, 600.0, wave=0.5))
        again = parse_trace(format_trace(trace), origin="made")
        assert again.num_events == trace.num_events
        assert trace.active_counts()[-1] == 0


def test_lengths_follow_their_law():
    _, _, lengths = spells(make_trace(TraceSettings(0.4, 9, 40_000.0)))
    assert statistics.median(lengths) == pytest.approx(180, rel=0.03)
    # The log of the length is normal with sigma 1.2: 68 % of a normal variable lie within one sigma.
    logs = np.log(np.array(lengths) / 180)
    assert np.mean(np.abs(logs) < 1.2) == pytest.approx(0.6827, abs=0.02)
    assert max(lengths) <= 3600.000001


def test_spells_follow_their_laws():
    # Sessions so long that hardly any spell is cut short by a departure.
    law = SessionLaw(length_median_s=20_000.0, length_sigma=0.01, max_length_s=1e6)
    active, idle, _ = spells(make_trace(TraceSettings(0.005, 9, 60_000.0, law=law)))
    assert statistics.median(active) == pytest.approx(40 * math.log(2), rel=0.03)
    assert statistics.fmean(active) == pytest.approx(40, rel=0.03)
    assert statistics.median(idle) == pytest.approx(20, rel=0.03)
    assert np.mean(np.abs(np.log(np.array(idle) / 20)) < 1.0) == pytest.approx(0.6827, abs=0.02)


def test_the_mean_rate_is_the_one_asked_for():
    counts = [make_trace(TraceSettings(0.5, seed, 20_000.0)).num_sessions for seed in range(12)]
    # A modulated process varies far more than a Poisson one; twelve traces bring the mean within some per cent.
    assert statistics.fmean(counts) == pytest.approx(10_000, rel=0.06)


def test_arrivals_come_in_bursts():
    trace = make_trace(TraceSettings(2.0, 1, 20_000.0))
    arrivals = trace.time_s[trace.kind == EventKind.ARRIVE]
    minutes = np.bincount((arrivals // 10).astype(int))
    assert np.var(minutes) > 3 * np.mean(minutes)  # 1 for a Poisson process


def test_the_daily_wave_moves_arrivals_to_noon():
    trace = make_trace(TraceSettings(0.5, 2, 86_400.0, wave=0.8))
    arrivals = trace.time_s[trace.kind == EventKind.ARRIVE] / 3600
    noon, midnight = np.sum((arrivals > 9) & (arrivals < 15)), np.sum((arrivals < 3) | (arrivals > 21))
    assert noon > 3 * midnight
    assert trace.num_sessions == pytest.approx(43_200, rel=0.15)


@pytest.mark.parametrize(("name", "gpus"), [("h20-1.3b", 16), ("b300-7b", 64)])
def test_the_mean_load_is_half_of_the_fleet_at_the_target(name, gpus):
    fleet = calibrated_fleet(name, gpus)
    rate = arrivals_per_second(fleet)
    loads = [make_trace(TraceSettings(rate, seed)).mean_active() for seed in range(100, 140)]
    wanted = 0.5 * 0.7 * gpus * fleet.classes[0].max_sessions
    assert statistics.fmean(loads) == pytest.approx(wanted, rel=0.05)


def test_the_expected_active_time_is_that_of_drawn_sessions():
    rng = np.random.default_rng(1)
    law, duration = SessionLaw(), 1800.0
    total, count = 0.0, 20_000
    for _ in range(count):
        now = rng.uniform(0, duration)
        end = min(duration, now + min(3600, 180 * math.exp(1.2 * rng.standard_normal())))
        while now < end:
            spell = rng.exponential(40)
            total += min(spell, end - now)
            now += spell + 20 * math.exp(rng.standard_normal())
    assert active_seconds_per_arrival(law, duration) == pytest.approx(total / count, rel=0.02)


def test_a_session_is_active_at_first_and_later_with_its_long_run_share():
    law = SessionLaw(length_median_s=1e9, max_length_s=1e9)
    shares = probability_active(law, np.arange(0.0, 600.0))
    assert shares[0] == pytest.approx(math.exp(-0.5 / 40), rel=1e-6)
    idle_mean = 20 * math.exp(0.5)
    assert shares[-1] == pytest.approx(40 / (40 + idle_mean), rel=0.01)


def test_the_cut_shortens_the_mean_length():
    law = SessionLaw()
    assert untruncated_mean_s(law) == pytest.approx(180 * math.exp(0.72))
    assert mean_length_s(law) < untruncated_mean_s(law)
    assert mean_length_s(SessionLaw(max_length_s=300_000.0)) == pytest.approx(untruncated_mean_s(law), rel=0.005)


def test_state_sizes_can_spread():
    plain = make_trace(TraceSettings(0.2, 1, 300.0))
    spread = make_trace(TraceSettings(0.2, 1, 300.0, state_sigma=0.5))
    assert {one.state_bytes for one in plain.attributes} == {0}
    assert len({one.state_bytes for one in spread.attributes}) == spread.num_sessions


@pytest.mark.parametrize(
    ("field", "value"), [("mean_rate", -1.0), ("duration_s", 0.0), ("wave", 2.0), ("seed", -1), ("mean_rate", math.nan)]
)
def test_settings_out_of_range_are_refused(field, value):
    with pytest.raises(TraceError, match=f"{field}="):
        TraceSettings(**{"mean_rate": 1.0, "seed": 1, field: value})
