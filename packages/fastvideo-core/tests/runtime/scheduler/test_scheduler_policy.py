"""What the policy does to requests, on a pool that takes no time."""

from __future__ import annotations

import random

import pytest

from fastvideo_core.runtime.scheduler.base import DEFAULT_CLASSES, Limits, SchedulerConfig, WorkerSlot
from fastvideo_testing.simulation import SimulatedJob, shared_fraction, simulate

STEP_LEVEL = SchedulerConfig()
FIFO, EDF = (SchedulerConfig(dispatch=name) for name in ("request_fifo", "request_edf"))


def long_job(name, at, **fields):
    return SimulatedJob(job_id=name, arrives_at=at, num_steps=50, step_s=0.2, latency_class="batch", group=1, **fields)


def poisson(rate, until_s, seed, **fields):
    """Return short interactive jobs that come by chance."""
    draw, jobs, at = random.Random(seed), [], 0.0
    while (at := at + draw.expovariate(rate)) < until_s:
        jobs.append(SimulatedJob(job_id=f"s{len(jobs)}", arrives_at=at, latency_class="interactive", **fields))
    return jobs


SHORT = {"num_steps": 8, "step_s": 0.05}


@pytest.fixture(scope="module")
def mixed():
    """Long jobs every 20 s and short ones between them, 70 % of what one worker can do, under both ways to dispatch."""
    jobs = [long_job(f"l{n}", 20.0 * n) for n in range(6)] + poisson(0.5, 120.0, 7, **SHORT)
    assert 0.6 < sum(job.alone_s for job in jobs) / 120 < 0.75
    return {config.dispatch: simulate(jobs, config=config) for config in (STEP_LEVEL, FIFO)}


def test_short_requests_do_not_wait_for_long_ones(mixed):
    assert all(result.is_complete for done in mixed.values() for result in done.results.values())
    p95 = {name: done.duration_quantile_s(0.95, "interactive") for name, done in mixed.items()}
    assert p95["step"] <= 0.25 * p95["request_fifo"]
    assert p95["step"] < 2.0, "four tenths of a second of its own, one long step, and others of its kind"


def test_long_requests_lose_next_to_nothing(mixed):
    ends = {name: max(result.ended_at for result in done.of_class("batch")) for name, done in mixed.items()}
    busy = {name: sum(done.busy_s) for name, done in mixed.items()}
    assert busy["step"] <= busy["request_fifo"] * (1 + 1e-9), "the same work is done"
    totals = {name: sum(result.duration_s for result in done.of_class("batch")) for name, done in mixed.items()}
    assert totals["step"] <= 1.5 * totals["request_fifo"]
    assert ends["step"] <= ends["request_fifo"] + 20.0


def test_one_job_more_is_one_step_of_the_long_one_more():
    """A short job that comes while a long one runs waits for the step in progress and for nothing else."""
    done = simulate(
        [long_job("long", 0.0), SimulatedJob(job_id="s", arrives_at=5.05, latency_class="interactive", **SHORT)]
    )
    assert done["s"].started_at == 5.05
    assert done["s"].ended_at == pytest.approx(5.2 + 0.4)
    assert done["long"].ended_at == pytest.approx(10.4)


def test_nobody_starves_under_a_flood_of_urgent_work():
    """More urgent work than the pool can do: the batch job still makes a step each time its patience is over."""
    flood = [
        SimulatedJob(
            job_id=f"s{n}", arrives_at=0.09 * n, num_steps=1, step_s=0.1, latency_class="interactive", max_batch=1
        )
        for n in range(4000)
    ]
    job = SimulatedJob(job_id="slow", num_steps=10, step_s=0.1, latency_class="batch", group=1)
    done = simulate([job, *flood], config=SchedulerConfig(max_queued=5000))
    assert done["slow"].is_complete
    patience_s = DEFAULT_CLASSES["batch"].patience_s
    # It may also stand behind those whose own patience ended earlier, which a pool at its limit always has.
    assert done["slow"].longest_wait_s <= patience_s + 16 * 0.1 + 0.2
    assert done["slow"].duration_s <= 10 * (patience_s + 2.0)


def test_a_large_request_starts_however_many_small_ones_come():
    small = [
        SimulatedJob(
            job_id=f"s{n}", arrives_at=0.4 * n, num_steps=2, step_s=0.3, resident_bytes=3, latency_class="interactive"
        )
        for n in range(300)
    ]
    large = SimulatedJob(job_id="large", arrives_at=1.0, resident_bytes=10, latency_class="standard", group=1)
    done = simulate([*small, large], limits=Limits(memory_bytes=10), batch_seconds=shared_fraction(0.7))
    patience_s = DEFAULT_CLASSES["standard"].patience_s
    assert 1.0 < done["large"].started_at - large.arrives_at <= patience_s + 3.0
    assert all(result.is_complete for result in done.results.values())


@pytest.mark.parametrize("seed", range(3))
def test_more_deadlines_are_kept_than_by_whole_requests(seed):
    """Images and videos, half each by time, 90 % load, due at two and a half times their own time."""
    draw, jobs, at = random.Random(seed), [], 0.0
    kinds = [{"num_steps": 8, "step_s": 0.05, "group": 0}, {"num_steps": 40, "step_s": 0.25, "group": 1}]
    while at < 400.0:
        kind = kinds[draw.random() < 0.4 / 10.4]
        alone_s = kind["num_steps"] * kind["step_s"]
        jobs.append(SimulatedJob(job_id=f"j{len(jobs)}", arrives_at=at, deadline_s=2.5 * alone_s, **kind))
        at += draw.expovariate(0.9 / (0.8 * 10.0 / 10.4))
    kept = {}
    for config in (STEP_LEVEL, FIFO, EDF):
        kept[config.dispatch] = simulate(jobs, config=config, batch_seconds=shared_fraction(0.2)).deadlines_kept()
    assert kept["step"] >= max(kept["request_fifo"], kept["request_edf"]) + 0.2


def test_a_deadline_that_is_lost_costs_no_other():
    lost = SimulatedJob(job_id="lost", num_steps=10, deadline_s=5.0, group=1)
    fine = [SimulatedJob(job_id=f"f{n}", num_steps=2, deadline_s=9.0, group=2 + n) for n in range(4)]
    done = simulate([lost, *fine])
    assert [done[job.job_id].is_in_time for job in fine] == [True] * 4
    assert done["lost"].is_complete and done["lost"].ended_at == 18.0


def test_a_batch_grows_only_as_far_as_the_deadline_allows():
    due = SimulatedJob(job_id="due", num_steps=5, deadline_s=12.0)
    others = [SimulatedJob(job_id=f"o{n}", num_steps=5, latency_class="batch") for n in range(7)]
    # 12 s for five steps of one second let each take 2.4; the three that take 2 leave 3 for each of the others.
    for share, sizes in ((0.0, [2, 2, 2, 3, 3]), (1.0, [8] * 5)):
        done = simulate([due, *others], batch_seconds=shared_fraction(share))
        assert done["due"].is_in_time
        assert done.batch_sizes[:5] == sizes


def test_jumbo_steps_have_a_worker_of_their_own():
    jobs = [
        SimulatedJob(job_id=f"j{n}", num_steps=5, step_s=8.0, latency_class="batch", group=1, max_batch=1)
        for n in range(2)
    ]
    jobs += poisson(1.0, 60.0, 3, **SHORT)
    shared = simulate(jobs, workers=[WorkerSlot(), WorkerSlot()])
    apart = simulate(
        jobs, workers=[WorkerSlot(cost_classes=frozenset({"small"})), WorkerSlot(cost_classes=frozenset({"jumbo"}))]
    )
    p95 = {name: done.duration_quantile_s(0.95, "interactive") for name, done in (("shared", shared), ("apart", apart))}
    assert p95["apart"] < 2.0 < 4.0 < p95["shared"], "two jumbo steps at a time leave no worker for eight seconds"
    assert max(result.longest_wait_s for result in apart.of_class("interactive")) < 2.0
    assert all(result.is_complete for result in apart.results.values())
    assert apart.busy_s[1] == pytest.approx(80.0)


def test_wrong_predictions_lose_nobody():
    jobs = [long_job(f"l{n}", 20.0 * n, deadline_s=40.0) for n in range(3)] + poisson(
        0.5, 60.0, 5, deadline_s=2.0, **SHORT
    )
    draw = random.Random(1)
    errors = {job.job_id: draw.choice([0.1, 0.5, 1.0, 3.0, 10.0]) for job in jobs}
    done = simulate(jobs, prediction_error=lambda job: errors[job.job_id], batch_seconds=shared_fraction(0.4))
    assert all(result.is_complete for result in done.results.values())
    assert done.deadlines_kept() > 0.5


def test_cancelling_gives_the_memory_to_the_next():
    jobs = [
        SimulatedJob(job_id="a", num_steps=100, resident_bytes=10, cancelled_at=3.5),
        SimulatedJob(job_id="b", arrives_at=1.0, num_steps=2, resident_bytes=10),
    ]
    done = simulate(jobs, limits=Limits(memory_bytes=10))
    assert (done["a"].ended_at, done["b"].started_at, done["b"].ended_at) == (4.0, 4.0, 6.0)
