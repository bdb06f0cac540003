"""The fake pool itself: what it says of cases that can be worked out by hand."""

from __future__ import annotations

import math
import time

import pytest

from fastvideo_core.errors import InputError, QueueFullError, ResourceError
from fastvideo_core.runtime.scheduler.base import Limits, SchedulerConfig, WorkerSlot
from fastvideo_core.runtime.scheduler.log import DecisionLog, replay
from fastvideo_testing.simulation import SimulatedJob, shared_fraction, simulate


def test_one_job_takes_its_own_time():
    done = simulate([SimulatedJob(job_id="a", arrives_at=2.0, num_steps=3, step_s=0.5)])
    result = done["a"]
    assert (result.started_at, result.ended_at, result.duration_s, result.num_steps) == (2.0, 3.5, 1.5, 3)
    assert (done.end_s, done.busy_s, done.batch_sizes, done.max_running) == (3.5, [1.5], [1, 1, 1], 1)
    assert result.is_complete and result.is_in_time and result.longest_wait_s == 0.0


def test_steps_that_share_a_call_end_together():
    jobs = [SimulatedJob(job_id=name, num_steps=2, step_s=1.0) for name in "ab"]
    done = simulate(jobs, batch_seconds=shared_fraction(0.5))  # a call of two takes 1.5
    assert done.batch_sizes == [2, 2]
    assert [done[name].ended_at for name in "ab"] == [3.0, 3.0]


def test_steps_of_other_groups_take_turns():
    jobs = [SimulatedJob(job_id=name, num_steps=2, group=group) for group, name in enumerate("ab")]
    done = simulate(jobs)
    assert done.batch_sizes == [1, 1, 1, 1]
    assert (done["a"].ended_at, done["b"].ended_at) == (2.0, 4.0), "by the order of acceptance"
    assert done["b"].longest_wait_s == 2.0


def test_a_job_joins_between_two_steps():
    jobs = [SimulatedJob(job_id="a", num_steps=3), SimulatedJob(job_id="b", arrives_at=0.5, num_steps=1)]
    done = simulate(jobs, batch_seconds=shared_fraction(1.0))
    assert done.batch_sizes == [1, 2, 1]
    assert (done["a"].ended_at, done["b"].ended_at) == (3.0, 2.0)


def test_two_workers_work_side_by_side():
    jobs = [SimulatedJob(job_id=name, num_steps=2, max_batch=1) for name in "ab"]
    done = simulate(jobs, workers=[WorkerSlot(), WorkerSlot()])
    assert [done[name].ended_at for name in "ab"] == [2.0, 2.0]
    assert done.busy_s == [2.0, 2.0]


def test_refusals_and_cancellations_are_told():
    jobs = [
        SimulatedJob(job_id="a", num_steps=4, resident_bytes=8),
        SimulatedJob(job_id="large", resident_bytes=11),
        SimulatedJob(job_id="b", arrives_at=0.5, resident_bytes=8, cancelled_at=1.0),
        SimulatedJob(job_id="crowd", arrives_at=0.6),
        SimulatedJob(job_id="c", arrives_at=2.0, num_steps=3, group=1, cancelled_at=2.5),
    ]
    done = simulate(jobs, limits=Limits(memory_bytes=10), config=SchedulerConfig(max_queued=1))
    assert type(done["large"].refusal) is ResourceError
    assert type(done["crowd"].refusal) is QueueFullError
    assert done["b"].is_cancelled and math.isnan(done["b"].started_at) and done["b"].ended_at == 1.0
    assert (done["c"].num_steps, done["c"].is_complete, done["c"].ended_at) == (0, False, 2.5)
    assert done["a"].ended_at == 4.0
    assert not done["b"].is_in_time


def test_a_cancelled_step_runs_to_its_end_first():
    done = simulate([SimulatedJob(job_id="a", num_steps=5, cancelled_at=1.5)])
    assert (done["a"].num_steps, done["a"].ended_at) == (2, 2.0)


def test_quantiles_and_deadlines():
    jobs = [
        SimulatedJob(job_id=f"j{n}", step_s=1.0, max_batch=1, deadline_s=2.5, latency_class="batch") for n in range(4)
    ]
    done = simulate(jobs)  # they end at 1, 2, 3 and 4
    assert [done.duration_quantile_s(q, "batch") for q in (0.25, 0.5, 0.75, 0.95, 1.0)] == [1.0, 2.0, 3.0, 4.0, 4.0]
    assert done.deadlines_kept() == 0.5


def test_names_are_unique_and_jobs_have_steps():
    with pytest.raises(InputError, match="job_id='a': two jobs have this name"):
        simulate([SimulatedJob(job_id="a"), SimulatedJob(job_id="a")])
    with pytest.raises(InputError, match="num_steps=0: too few"):
        simulate([SimulatedJob(job_id="a", num_steps=0)])


def test_thousands_of_requests_a_second_and_every_decision_replays():
    jobs = [
        SimulatedJob(
            job_id=f"j{n}", arrives_at=n * 0.025, num_steps=1 + n % 4, step_s=0.02, group=n % 2,
            latency_class=("interactive", "standard", "batch")[n % 3], deadline_s=1.0 if n % 5 == 0 else None,
        )
        for n in range(2000)
    ]  # fmt: skip
    started_s = time.process_time()
    done = simulate(jobs, batch_seconds=shared_fraction(0.6))
    rate = len(jobs) / (time.process_time() - started_s)
    assert all(result.is_complete for result in done.results.values())
    assert rate > 1000  # of processor time, so that a busy machine does not matter; 8,000 measured
    log = DecisionLog()
    again = simulate(jobs[:300], batch_seconds=shared_fraction(0.6), log=log)
    assert [again[f"j{n}"].ended_at for n in range(250)] == [done[f"j{n}"].ended_at for n in range(250)]
    assert replay(log.records, SchedulerConfig(), Limits()) > 300
