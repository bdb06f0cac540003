from __future__ import annotations

import pytest

from fastvideo_core.errors import InputError, QueueFullError, ResourceError
from fastvideo_core.runtime.scheduler.base import (
    DEFAULT_CLASSES,
    Job,
    LatencyClass,
    Limits,
    SchedulerConfig,
    WorkerSlot,
)
from fastvideo_core.runtime.scheduler.core import REPLAN_S, Scheduler


def linear(step, num_plans):
    return step.seconds * num_plans


def job(job_id, latency_class="standard", accepted_at=0.0, **fields):
    return Job(job_id, DEFAULT_CLASSES[latency_class], accepted_at, **fields)


@pytest.fixture
def scheduler():
    return Scheduler(SchedulerConfig(), Limits(), linear)


def started(scheduler, *jobs, now=0.0):
    """Submit jobs and start what can start."""
    for one in jobs:
        scheduler.submit(one, now)
    return [one.job_id for one in scheduler.start_jobs(now)]


def ids(batch):
    return None if batch is None else [step.job.job_id for step in batch.steps]


def test_an_id_is_known_until_its_job_has_ended(scheduler):
    scheduler.submit(job("a"), 0.0)
    text = "^request_id='a': a request of this id is running$"
    with pytest.raises(InputError, match=text):
        scheduler.submit(job("a"), 0.0)
    scheduler.start_jobs(0.0)
    with pytest.raises(InputError, match=text):
        scheduler.submit(job("a"), 0.0)
    scheduler.withdraw("a", 1.0)
    scheduler.submit(job("a"), 1.0)
    assert list(scheduler.queued) == ["a"]


def test_what_is_refused_leaves_nothing_behind():
    scheduler = Scheduler(SchedulerConfig(max_queued=1), Limits(memory_bytes=10), linear)
    with pytest.raises(ResourceError):
        scheduler.submit(job("large", resident_bytes=11), 0.0)
    scheduler.submit(job("a"), 0.0)
    with pytest.raises(QueueFullError):
        scheduler.submit(job("b"), 0.0)
    assert (list(scheduler.queued), scheduler.queued["a"].sequence) == (["a"], 0)
    assert [one.job_id for one in scheduler.start_jobs(0.0)] == ["a"]
    scheduler.submit(job("b"), 0.0)
    assert scheduler.queued["b"].sequence == 1


def test_a_class_has_a_deadline_unless_the_job_says_its_own(scheduler):
    hurried = LatencyClass("hurried", 0, patience_s=1.0, deadline_s=3.0)
    one, other = Job("a", hurried, 5.0), Job("b", hurried, 5.0, deadline_at=6.0)
    for each in (one, other):
        scheduler.submit(each, 5.0)
    assert (one.deadline_at, other.deadline_at) == (8.0, 6.0)


def test_an_offered_step_runs_once(scheduler, make_step):
    one = job("a")
    assert started(scheduler, one) == ["a"]
    scheduler.offer(make_step(one), 0.0)
    assert scheduler.is_idle
    assert ids(scheduler.next_batch(0.0)) == ["a"]
    assert not scheduler.is_idle
    assert scheduler.next_batch(0.0) is None
    scheduler.finished(0, 1.0, 1.0)
    assert scheduler.is_idle
    assert scheduler.next_batch(1.0) is None


def test_a_busy_worker_is_given_nothing(scheduler, make_step):
    started(scheduler, one := job("a"), other := job("b"))
    scheduler.offer(make_step(one), 0.0)
    scheduler.next_batch(0.0)
    scheduler.offer(make_step(other), 0.0)
    assert scheduler.next_batch(0.0) is None
    scheduler.finished(0, 1.0, 1.0)
    assert ids(scheduler.next_batch(1.0)) == ["b"]


def test_a_step_that_is_taken_back_does_not_run(scheduler, make_step):
    started(scheduler, one := job("a"))
    step, transfer = make_step(one), make_step(one)
    scheduler.offer(step, 0.0)
    scheduler.offer_transfer(transfer, 0.0)
    for _ in range(2):
        scheduler.retract(step, 0.0)
        scheduler.retract(transfer, 0.0)
    assert scheduler.next_batch(0.0) is None
    assert scheduler.next_transfers(0.0) == []


def test_a_job_that_ends_takes_its_steps_with_it_and_gives_its_memory_back(make_step):
    scheduler = Scheduler(SchedulerConfig(), Limits(memory_bytes=10), linear)
    one, other = job("a", resident_bytes=6), job("b", resident_bytes=6)
    assert started(scheduler, one, other) == ["a"]
    scheduler.offer(make_step(one), 0.0)
    scheduler.offer_transfer(make_step(one, transfer_bytes=1), 0.0)
    scheduler.withdraw("a", 1.0)
    scheduler.withdraw("a", 1.0)
    assert scheduler.next_batch(1.0) is None
    assert scheduler.next_transfers(1.0) == []
    assert [each.job_id for each in scheduler.start_jobs(1.0)] == ["b"]


def test_what_a_worker_still_uses_is_held_until_its_call_has_ended(make_step):
    scheduler = Scheduler(SchedulerConfig(), Limits(memory_bytes=10), linear)
    one, other = job("a", resident_bytes=6), job("b", resident_bytes=6)
    started(scheduler, one, other)
    scheduler.offer(make_step(one), 0.0)
    scheduler.next_batch(0.0)
    scheduler.withdraw("a", 1.0)
    assert scheduler.start_jobs(1.0) == [], "the step of a is still on the device"
    scheduler.finished(0, 2.0, 2.0)
    assert scheduler.start_jobs(2.0) == [other]


def test_a_batch_takes_no_more_than_the_states_leave(make_step):
    scheduler = Scheduler(SchedulerConfig(), Limits(memory_bytes=20), linear)
    jobs = [job(name, resident_bytes=4, peak_bytes=3) for name in "abc"]
    assert started(scheduler, *jobs) == ["a", "b", "c"]
    for one in jobs:
        scheduler.offer(make_step(one, peak_bytes=3), 0.0)
    assert ids(scheduler.next_batch(0.0)) == ["a", "b"], "12 of 20 are states, 8 are left for three each"
    scheduler.withdraw("c", 0.0)
    scheduler.finished(0, 1.0, 1.0)
    for one in jobs[:2]:
        scheduler.offer(make_step(one, peak_bytes=6), 0.0)
    assert ids(scheduler.next_batch(1.0)) == ["a", "b"]


def test_the_memory_that_is_left_is_divided_among_the_workers(make_step):
    scheduler = Scheduler(SchedulerConfig(), Limits(memory_bytes=20), linear, workers=[WorkerSlot(), WorkerSlot()])
    jobs = [job(name, resident_bytes=2, peak_bytes=3) for name in "abcd"]
    assert started(scheduler, *jobs) == ["a", "b", "c", "d"]
    for one in jobs:
        scheduler.offer(make_step(one, peak_bytes=3), 0.0)
    assert [ids(scheduler.next_batch(0.0)) for _ in range(3)] == [["a", "b"], ["c", "d"], None]


def test_the_work_that_is_left_shrinks_with_every_call(scheduler, make_step):
    started(scheduler, one := job("a", remaining_s=2.5))
    for left in (1.5, 0.5, 0.0):
        scheduler.offer(make_step(one, seconds=1.0), 0.0)
        scheduler.next_batch(0.0)
        scheduler.finished(0, 1.0, 1.0)
        assert one.remaining_s == left


def test_the_speed_of_a_pool_is_what_its_batches_win(scheduler, make_step):
    jobs = [job(name) for name in "abcd"]
    started(scheduler, *jobs)
    for _ in range(60):
        for one in jobs:
            scheduler.offer(make_step(one, seconds=1.0), 0.0)
        assert len(scheduler.next_batch(0.0).steps) == 4
        scheduler.finished(0, 1.0, 2.0)
    assert scheduler.speed == pytest.approx(2.0, rel=1e-2)


def test_a_deadline_that_cannot_be_kept_gives_way_to_one_that_can(scheduler, make_step):
    lost, kept = job("a", deadline_at=5.0, remaining_s=6.0), job("b", deadline_at=6.0, remaining_s=5.0)
    started(scheduler, lost, kept)
    for one in (lost, kept):
        scheduler.offer(make_step(one, group=0 if one is lost else 1), 0.0)
    assert ids(scheduler.next_batch(0.0)) == ["b"]
    assert (lost.is_given_up, kept.is_given_up) == (True, False)
    scheduler.withdraw("b", 0.0)
    lost.remaining_s = 1.0
    scheduler.finished(0, 0.0, 0.0)
    assert ids(scheduler.next_batch(0.0)) == ["a"]
    assert not lost.is_given_up, "whoever goes makes room"


def test_the_verdict_on_deadlines_is_looked_at_again_in_time(scheduler, make_step):
    one = job("a", deadline_at=5.0, remaining_s=4.9)
    started(scheduler, one)
    step = make_step(one)
    scheduler.offer(step, 0.0)
    scheduler.next_batch(REPLAN_S)  # 4.75 s are left for 4.9 s of work
    assert one.is_given_up


@pytest.mark.parametrize("classes", [["small"], ["jumbo"], []])
def test_a_pool_that_would_leave_steps_waiting_for_ever_is_refused(classes):
    workers = [WorkerSlot("side"), WorkerSlot("main", frozenset(classes))]
    with pytest.raises(InputError, match=r"no worker of pool main takes (small|jumbo) steps; allowed: each cost class"):
        Scheduler(SchedulerConfig(), Limits(), linear, workers=workers)


def test_a_step_that_no_worker_would_ever_take_is_refused_when_it_is_offered(make_step):
    scheduler = Scheduler(SchedulerConfig(), Limits(), linear, workers=[WorkerSlot(), WorkerSlot("vae")])
    for fields in ({"pool": "audio"}, {"affinity": "1"}):
        with pytest.raises(InputError, match="no (worker of this pool|such worker in its pool)"):
            scheduler.offer(make_step(**fields), 0.0)
    assert not scheduler.ready
    scheduler.offer(make_step(pool="vae", affinity="1"), 0.0)
    assert len(scheduler.ready) == 1


def test_small_workers_are_kept_free_of_long_calls(make_step):
    workers = [WorkerSlot(cost_classes=frozenset({"small"})), WorkerSlot(cost_classes=frozenset({"jumbo"}))]
    scheduler = Scheduler(SchedulerConfig(jumbo_s=1.0), Limits(), linear, workers=workers)
    jobs = [job(f"j{number}") for number in range(8)]
    started(scheduler, *jobs)
    for one in jobs[:6]:
        scheduler.offer(make_step(one, group=0, seconds=0.3), 0.0)
    for one in jobs[6:]:
        scheduler.offer(make_step(one, group=1, seconds=3.0), 0.0)
    first, second = scheduler.next_batch(0.0), scheduler.next_batch(0.0)
    assert (first.worker, len(first.steps)) == (0, 3), "four of them would be as long as a jumbo step"
    assert (second.worker, len(second.steps)) == (1, 2)
    assert scheduler.next_batch(0.0) is None


def test_transfers_run_beside_the_steps(make_step):
    scheduler = Scheduler(SchedulerConfig(), Limits(transfer_bytes=10), linear)
    started(scheduler, one := job("a"))
    scheduler.offer(make_step(one), 0.0)
    transfers = [make_step(one, transfer_bytes=size) for size in (6, 6)]
    for step in transfers:
        scheduler.offer_transfer(step, 0.0)
    assert ids(scheduler.next_batch(0.0)) == ["a"]
    assert scheduler.next_transfers(0.0) == [transfers[0]]
    assert scheduler.next_transfers(0.0) == []
    scheduler.finished_transfer(transfers[0], 1.0)
    assert scheduler.next_transfers(1.0) == [transfers[1]]
