from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastvideo_core.errors import QueueFullError, ResourceError
from fastvideo_core.runtime.scheduler.admission import Holdings, check_can_ever_fit, check_queue, choose_starts
from fastvideo_core.runtime.scheduler.base import DEFAULT_CLASSES, Job, Limits, SchedulerConfig
from fastvideo_core.runtime.scheduler.ordering import order_of

MB = 10**6


def total(jobs, num_workers=1):
    """Return what jobs take at the worst: all states, and on each worker the largest step of any."""
    return sum(job.resident_bytes for job in jobs) + num_workers * max((job.peak_bytes for job in jobs), default=0)


@pytest.mark.parametrize(("resident", "peak", "workers", "fits"), [
    (6, 4, 1, True), (6, 5, 1, False), (2, 4, 2, True), (3, 4, 2, False), (0, 10, 1, True), (11, 0, 1, False),
])  # fmt: skip
def test_a_job_fits_alone_with_its_largest_step_on_every_worker(resident, peak, workers, fits, make_job):
    job = make_job(job_id="a", resident_bytes=resident * MB, peak_bytes=peak * MB)
    limits = Limits(memory_bytes=10 * MB, num_workers=workers)
    if fits:
        check_can_ever_fit(job, limits)
    else:
        need = f"{resident + peak * workers} MB"
        with pytest.raises(ResourceError, match=f"^request a needs {need} besides the weights; 10 MB are there for"):
            check_can_ever_fit(job, limits)
    assert Holdings().can_take(job, limits) is fits
    check_can_ever_fit(job, Limits())


def test_a_job_that_needs_more_blocks_than_there_are_is_refused_with_the_figures(make_job):
    limits = Limits(cache_blocks={"kv": 4})
    check_can_ever_fit(make_job(cache_blocks={"kv": 4}), limits)
    with pytest.raises(ResourceError, match="^request a needs 5 blocks of cache kv; there are 4$"):
        check_can_ever_fit(make_job(job_id="a", cache_blocks={"kv": 5}), limits)
    with pytest.raises(ResourceError, match="^request b needs 1 blocks of cache other; there are 0$"):
        check_can_ever_fit(make_job(job_id="b", cache_blocks={"other": 1}), limits)


def test_two_that_fit_alone_and_not_together_do_not_start_together(make_job):
    one, other = make_job(resident_bytes=6, peak_bytes=3), make_job(resident_bytes=2, peak_bytes=1)
    config, limits = SchedulerConfig(), Limits(memory_bytes=10)
    assert choose_starts([one, other], [], limits, config, 0.0) == [one]
    assert choose_starts([other], [one], limits, config, 0.0) == []
    assert choose_starts([one, other], [], Limits(memory_bytes=11), config, 0.0) == [one, other]
    assert choose_starts([one, other], [], Limits(memory_bytes=12, num_workers=2), config, 0.0) == [one]
    assert choose_starts([one, other], [], Limits(memory_bytes=14, num_workers=2), config, 0.0) == [one, other]


def test_blocks_are_held_by_cache(make_job):
    jobs = [make_job(cache_blocks={"a": 3}), make_job(cache_blocks={"a": 2}), make_job(cache_blocks={"b": 2})]
    limits = Limits(cache_blocks={"a": 4, "b": 2})
    assert choose_starts(jobs, [], limits, SchedulerConfig(), 0.0) == [jobs[0], jobs[2]]


def test_what_does_not_fit_is_skipped_until_its_patience_ends(make_job):
    running = make_job(resident_bytes=5)
    large, small = make_job("interactive", 1.0, resident_bytes=6), make_job("batch", 1.0, resident_bytes=1)
    limits, config = Limits(memory_bytes=10), SchedulerConfig()
    assert choose_starts([large, small], [running], limits, config, 2.9) == [small]
    assert choose_starts([large, small], [running], limits, config, 3.0) == [], "nothing overtakes it any more"
    assert choose_starts([large, small], [], limits, config, 3.0) == [large, small]


def test_who_has_waited_beyond_patience_goes_first_and_the_others_follow(make_job):
    old, new = make_job("batch", 0.0, resident_bytes=6), make_job("interactive", 20.0, resident_bytes=6)
    config, limits = SchedulerConfig(), Limits(memory_bytes=10)
    assert choose_starts([old, new], [], limits, config, 19.9) == [new]
    assert choose_starts([old, new], [], limits, config, 20.0) == [old]


def test_no_more_start_than_may_run(make_job):
    jobs = [make_job() for _ in range(5)]
    config = SchedulerConfig(max_running=3)
    assert choose_starts(jobs, [], Limits(), config, 0.0) == jobs[:3]
    assert choose_starts(jobs[2:], jobs[:2], Limits(), config, 0.0) == [jobs[2]]
    assert choose_starts(jobs[3:], jobs[:3], Limits(), config, 0.0) == []


@pytest.mark.parametrize(("dispatch", "order"), [("request_fifo", [0, 1, 2, 3]), ("request_edf", [3, 1, 0, 2])])
def test_whole_requests_go_one_by_one(dispatch, order, make_job):
    jobs = [make_job("batch"), make_job(deadline_at=9.0), make_job("interactive"), make_job(deadline_at=5.0)]
    config = SchedulerConfig(dispatch=dispatch)
    waiting, started = list(jobs), []
    while waiting:
        (job,) = choose_starts(waiting, [], Limits(), config, 0.0)
        assert choose_starts(waiting, [job], Limits(), config, 0.0) == []
        waiting.remove(job)
        started.append(jobs.index(job))
    assert started == order


def blocks_of(jobs):
    return sum(job.cache_blocks.get("kv", 0) for job in jobs)


CLASS = st.sampled_from(sorted(DEFAULT_CLASSES))
ROW = st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 4), CLASS, st.integers(0, 40))


@given(
    st.lists(ROW, max_size=12), st.integers(0, 12), st.integers(1, 5), st.integers(1, 2), st.integers(0, 60)
)  # fmt: skip
def test_starts_are_never_over_the_budget_and_leave_no_place_unused(rows, num_started, max_running, num_workers, now):
    limits = Limits(memory_bytes=20, cache_blocks={"kv": 6}, num_workers=num_workers)
    config = SchedulerConfig(max_running=max_running)
    jobs, running = [], []
    for number, (resident, peak, blocks, name, at) in enumerate(rows):
        job = Job(f"j{number}", DEFAULT_CLASSES[name], float(at), number, None, resident, peak, {"kv": blocks})
        job.order = order_of(job)
        jobs.append(job)

    def fit(some):
        return len(some) <= max_running and total(some, num_workers) <= 20 and blocks_of(some) <= 6

    for job in jobs[:num_started]:  # some legal set of started jobs
        if fit([*running, job]):
            running.append(job)
    queued = [job for job in jobs if job not in running]
    starts = choose_starts(queued, running, limits, config, float(now))
    held = [*running, *starts]
    assert len(set(map(id, starts))) == len(starts) and set(map(id, starts)) <= set(map(id, queued))
    assert fit(held)
    left = [job for job in queued if job not in starts]
    patience_at = {job.job_id: job.accepted_at + job.latency_class.patience_s for job in jobs}
    if not any(patience_at[job.job_id] <= now for job in left):
        assert not any(fit([*held, job]) for job in left), "who fits, and overtakes nobody, has started"
    for old in left:  # who has waited too long is overtaken by nobody who has not waited longer
        if patience_at[old.job_id] <= now:
            assert all(patience_at[job.job_id] <= patience_at[old.job_id] for job in starts)


def test_nothing_is_held_by_who_waits(make_job):
    held = Holdings.of([make_job(resident_bytes=3, peak_bytes=2)])
    assert not held.can_take(make_job(resident_bytes=3, cache_blocks={"kv": 1}), Limits(memory_bytes=10))
    assert (held.num_jobs, held.resident_bytes, held.peak_bytes, held.cache_blocks) == (1, 3, 2, {})


def test_a_full_queue_says_when_to_come_back(make_job):
    config = SchedulerConfig(max_queued=2)
    queued = [make_job(), make_job()]
    check_queue(queued[:1], [], config)
    running = [make_job(remaining_s=3.0), make_job(remaining_s=5.0)]
    text = "^the queue is full: 2 requests wait; allowed: 2; come back in 4.0 s$"
    with pytest.raises(QueueFullError, match=text) as caught:
        check_queue(queued, running, config)
    assert caught.value.retry_after_s == 4.0
    with pytest.raises(QueueFullError) as caught:
        check_queue(queued, [], config)
    assert caught.value.retry_after_s == 0.1
