"""Traces, and what is made of a trace that was played."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from types import SimpleNamespace

import pytest

import _load
import mixed_load
from _load import Arrival, Outcome, Played
from fastvideo_core.runtime.scheduler.base import Job, LatencyClass, Limits, ReadyStep, SchedulerConfig
from fastvideo_core.runtime.scheduler.core import Scheduler
from fastvideo_core.runtime.scheduler.log import DecisionLog


def bench(horizon_s=120.0, **alone):
    return SimpleNamespace(
        alone=alone,
        horizon_s=horizon_s,
        images=lambda: {name: seconds for name, seconds in alone.items() if name.startswith("image")},
        videos=lambda: {name: seconds for name, seconds in alone.items() if name.startswith("video")},
    )


def test_quantiles_are_by_nearest_rank():
    values = list(range(1, 101))
    random.Random(0).shuffle(values)
    assert [_load.quantile(values, share) for share in (0.01, 0.5, 0.95, 1.0)] == [1, 50, 95, 100]
    assert _load.quantile([3.0], 0.95) == 3.0
    assert math.isnan(_load.quantile([], 0.5))


def test_a_poisson_process_has_its_rate_and_its_end():
    times = _load.poisson(5.0, 1000.0, random.Random(1))
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < 1000
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.2, rel=0.05)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.15), "exponential gaps"


def test_a_trace_of_some_work_has_that_work():
    kinds = {"a": 0.5, "b": 1.5}
    trace = _load.poisson_of_work(kinds, 100.0, 60.0, random.Random(3))
    assert sum(kinds[one.kind] for one in trace) == pytest.approx(100.0, abs=1.0)
    assert [one.at_s for one in trace] == sorted(one.at_s for one in trace)
    assert len({one.kind for one in trace[:20]}) == 2


def test_the_first_trace_fills_seventy_percent_of_the_capacity():
    trace = mixed_load.first_trace(bench(long=3.0, short=0.2))
    longs = [one for one in trace if one.kind == "long"]
    assert [one.at_s for one in longs] == [0, 20, 40, 60, 80, 100]
    shorts = [one for one in trace if one.kind == "short"]
    assert {one.latency_class for one in shorts} == {"interactive"}
    # 18 s of 84 s are the long jobs'; how many short ones come is a matter of chance, of 330 by 18.
    assert len(shorts) == pytest.approx((0.7 * 120 - 18) / 0.2, abs=60)
    assert trace == mixed_load.first_trace(bench(long=3.0, short=0.2))
    with pytest.raises(SystemExit, match="more than 70 %"):
        mixed_load.first_trace(bench(long=15.0, short=0.2))


def test_the_second_trace_is_half_images_half_videos_with_deadlines():
    alone = {"image-64x64": 0.1, "image-64x96": 0.2, "video-17": 0.5, "video-81": 2.5, "long": 9.0, "short": 9.0}
    trace = mixed_load.second_trace(bench(**alone))
    work = {"image": 0.0, "video": 0.0}
    for one in trace:
        work[one.kind.partition("-")[0]] += alone[one.kind]
        assert one.deadline_s == 2.5 * alone[one.kind]
    assert work["image"] == pytest.approx(0.45 * 120, abs=0.3)
    assert work["video"] == pytest.approx(0.45 * 120, abs=3)
    assert trace == sorted(trace, key=lambda one: one.at_s)


def test_what_was_played_knows_its_durations_deadlines_and_losses():
    kept, late = Outcome(Arrival(1.0, "a", deadline_s=2.0), 2.5), Outcome(Arrival(1.0, "a", deadline_s=1.0), 2.5)
    failed = Outcome(Arrival(0.0, "b", deadline_s=9.0))
    played = Played([kept, late, failed])
    assert played.durations("a") == [1.5, 1.5]
    assert played.attainment() == pytest.approx(1 / 3)
    assert played.attainment(["a"]) == 0.5
    assert played.num_lost == 1


def test_waits_and_batches_come_from_the_log_of_decisions():
    log = DecisionLog()
    scheduler = Scheduler(SchedulerConfig(), Limits(), lambda step, count: 1.0, log=log)
    jobs = [Job(name, LatencyClass(name, rank, 60.0), 0.0) for rank, name in enumerate(("urgent", "patient"))]
    for job in jobs:
        scheduler.submit(job, 0.0)
    scheduler.start_jobs(0.0)
    for group, job in enumerate(jobs):
        scheduler.offer(ReadyStep(job, group, 60.0, 1.0), 0.5)
    scheduler.next_batch(0.5)
    scheduler.finished(0, 3.0, 1.0)
    scheduler.next_batch(3.0)
    waits, sizes = _load._waits_and_batches(log)
    assert waits == {"urgent": 0.0, "patient": 2.5}
    assert sizes == {1: 2}
