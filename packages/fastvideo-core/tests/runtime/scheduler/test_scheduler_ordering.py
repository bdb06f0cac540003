from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastvideo_core.runtime.scheduler.base import DEFAULT_CLASSES, Job
from fastvideo_core.runtime.scheduler.ordering import GIVEN_UP_S, by_order, most_urgent, order_of, unreachable_deadlines


def due_job(number, seconds, deadline_at):
    return Job(f"j{number}", DEFAULT_CLASSES["standard"], 0.0, number, deadline_at=deadline_at, remaining_s=seconds)


def most_kept(jobs, now):
    """Return how many deadlines one machine can keep at most: over all subsets, by the earliest deadline first."""
    for size in range(len(jobs), -1, -1):
        for subset in combinations(jobs, size):
            time = now
            for job in sorted(subset, key=lambda job: job.deadline_at):
                time += job.remaining_s
                if time > job.deadline_at:
                    break
            else:
                return size
    raise AssertionError("the empty set is always kept")


WORK = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30)), max_size=8)


@given(WORK, st.integers(0, 5))
def test_the_most_deadlines_of_all_are_kept_on_one_machine(work, now):
    jobs = [due_job(number, float(seconds), float(due)) for number, (seconds, due) in enumerate(work)]
    given_up = unreachable_deadlines(jobs, float(now))
    assert len(jobs) - len(given_up) == most_kept(jobs, now)
    time = float(now)  # and those that are kept can be
    for job in sorted(jobs, key=lambda job: job.deadline_at):
        if job.job_id not in given_up:
            time += job.remaining_s
            assert time <= job.deadline_at


@given(WORK.filter(lambda work: len(work) <= 5))
def test_no_order_of_the_jobs_keeps_more(work):
    """The same without the theorem that the earliest deadline goes first: over all orders."""
    jobs = [due_job(number, float(seconds), float(due)) for number, (seconds, due) in enumerate(work)]
    best = 0
    for order in permutations(jobs):
        time, kept = 0.0, 0
        for job in order:
            time += job.remaining_s
            kept += time <= job.deadline_at
        best = max(best, kept)
    assert len(jobs) - len(unreachable_deadlines(jobs, 0.0)) == best


def test_the_verdict_does_not_depend_on_the_order_of_the_jobs():
    jobs = [due_job(0, 4.0, 5.0), due_job(1, 4.0, 5.0), due_job(2, 1.0, 6.0), due_job(3, 9.0, 8.0)]
    assert {frozenset(unreachable_deadlines(order, 0.0)) for order in permutations(jobs)} == {frozenset({"j1", "j3"})}


@pytest.mark.parametrize(("speed", "num_workers", "lost"), [(1.0, 1, 2), (2.0, 1, 1), (3.0, 1, 0), (1.0, 3, 0)])
def test_faster_pools_keep_more(speed, num_workers, lost):
    jobs = [due_job(number, 2.0, 2.5) for number in range(3)]
    assert len(unreachable_deadlines(jobs, 0.0, speed=speed, num_workers=num_workers)) == lost


def test_a_job_alone_is_no_faster_on_many_workers():
    assert unreachable_deadlines([due_job(0, 3.0, 2.0), due_job(1, 1.0, 2.0)], 0.0, num_workers=8) == {"j0"}


def test_jobs_without_a_deadline_are_left_out(make_job):
    assert unreachable_deadlines([make_job(remaining_s=1e9), make_job(remaining_s=1.0, deadline_at=1.0)], 0.0) == set()


def test_rank_comes_before_the_due_time_and_that_before_acceptance(make_job):
    late = make_job("standard", 3.0)
    batch, standard = make_job("batch"), make_job("standard", 1.0)
    due = make_job("standard", 0.0, deadline_at=2.0)
    lost = make_job("standard", 0.0, deadline_at=0.5, is_given_up=True)
    first = make_job("interactive", 9.0)
    jobs = [late, batch, standard, due, lost, first]
    assert sorted(jobs, key=order_of) == [first, due, standard, late, lost, batch]
    assert order_of(lost)[1] == 0.5 + GIVEN_UP_S
    first, second = make_job("batch", 5.0), make_job("batch", 5.0)
    assert sorted([second, first], key=order_of) == [first, second]


def test_the_most_urgent_step_is_first_by_order(make_job, make_step):
    steps = [make_step(make_job(name)) for name in ("batch", "interactive", "standard", "interactive")]
    assert most_urgent(steps, 0.0) is steps[1]


def test_within_a_rank_what_leads_to_shared_steps_goes_first_and_what_is_short_before_it(make_job, make_step):
    first, second = make_job(), make_job()
    step, encoding = make_step(first, 3), make_step(second, 2, is_preparation=True)
    start, urgent = make_step(second, -1, is_preparation=True), make_step(make_job("interactive"), 3)
    ready = [step, encoding, start, urgent]
    order = []
    while ready:
        order.append(most_urgent(ready, 0.0))
        ready.remove(order[-1])
    assert order == [urgent, start, encoding, step]


def test_who_has_waited_too_long_goes_before_all_ranks_longest_first(make_job, make_step):
    urgent = make_step(make_job("interactive"), patience_at=8.0)
    old, older = (make_step(make_job("batch"), patience_at=at) for at in (6.0, 5.0))
    steps = [urgent, old, older]
    assert [most_urgent(steps, now) for now in (4.9, 5.0, 7.0, 9.0)] == [urgent, older, older, older]
    assert most_urgent([urgent, old], 9.0) is old


def test_waiting_jobs_are_ordered_the_same_way(make_job):
    batch = make_job("batch", 0.0)  # patience 20
    standard, other = make_job("standard", 10.0), make_job("standard", 12.0)  # patience 5
    urgent = make_job("interactive", 14.5)  # patience 2
    jobs = [other, urgent, batch, standard]
    assert by_order(jobs, 14.0) == [urgent, standard, other, batch]
    assert by_order(jobs, 15.5) == [standard, urgent, other, batch]
    assert by_order(jobs, 20.0) == [standard, urgent, other, batch]  # patience ran out at 15, 16.5, 17, 20
