from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from fastvideo_core.runtime.scheduler.base import DEFAULT_CLASSES, Job, ReadyStep
from fastvideo_core.runtime.scheduler.batching import choose_batch
from fastvideo_core.runtime.scheduler.ordering import order_of


def linear(step, num_plans):
    """A device on which a batch takes as long as its steps one after the other."""
    return step.seconds * num_plans


def test_a_batch_is_the_most_urgent_step_and_its_group(make_job, make_step):
    head = make_step(make_job("interactive"), 7)
    mates = [make_step(make_job(name), 7) for name in ("batch", "standard")]
    others = [make_step(make_job("interactive"), 8), make_step(make_job("standard"), 8)]
    batch = choose_batch([*others[1:], *mates, head, others[0]], 0.0, predict=linear)
    assert batch.steps == (head, *mates)
    batch = choose_batch([*others, mates[0]], 0.0, predict=linear)
    assert batch.steps == tuple(others)


def test_the_prediction_and_the_bytes_are_those_of_the_call(make_step):
    steps = [make_step(seconds=2.0, peak_bytes=3) for _ in range(4)]
    asked = []

    def predict(step, num_plans):
        asked.append((step, num_plans))
        return 1.0 + num_plans

    batch = choose_batch(steps, 0.0, predict=predict)
    assert (batch.steps, batch.seconds, batch.peak_bytes, batch.worker) == (tuple(steps), 5.0, 12, 0)
    assert asked == [(steps[0], 4)]


def test_when_not_all_have_a_place_the_most_urgent_do(make_job, make_step):
    names = ("batch", "standard", "interactive", "standard", "interactive")
    steps = [make_step(make_job(name)) for name in names]
    batch = choose_batch(steps, 0.0, predict=linear, max_batch=3)
    assert batch.steps == (steps[2], steps[4], steps[1])


def test_every_step_of_a_call_takes_its_number(make_step):
    head, pair, alone, free = make_step(), make_step(max_batch=2), make_step(max_batch=1), make_step()
    assert choose_batch([head, alone], 0.0, predict=linear).steps == (head,)
    assert choose_batch([head, pair, free], 0.0, predict=linear).steps == (head, pair)
    assert choose_batch([head, free, pair], 0.0, predict=linear).steps == (head, free)
    assert choose_batch([alone, free], 0.0, predict=linear).steps == (alone,)
    assert choose_batch([pair, free, make_step()], 0.0, predict=linear).steps == (pair, free)


def test_unequal_steps_share_a_call_only_where_every_two_may(make_step):
    sizes = {}
    steps = [make_step(handle=size) for size in (4, 1, 6, 3, 8)]

    def near(one, other):
        sizes[one.handle, other.handle] = None
        return abs(one.handle - other.handle) <= 3

    batch = choose_batch(steps, 0.0, predict=linear, can_batch=near)
    assert [step.handle for step in batch.steps] == [4, 1, 3], "six goes with four and not with one"
    assert (4, 1) in sizes and (1, 6) in sizes


def test_memory_bounds_a_batch_and_never_its_first_step(make_step):
    steps = [make_step(peak_bytes=size) for size in (4, 3, 2, 1)]
    for free, size in ((0, 1), (6, 1), (7, 2), (8, 2), (9, 3), (10, 4), (None, 4)):
        batch = choose_batch(steps, 0.0, predict=linear, free_bytes=free)
        assert len(batch.steps) == size
        assert batch.peak_bytes == sum((4, 3, 2, 1)[:size])


def test_a_batch_leaves_the_most_urgent_its_deadline(make_job, make_step):
    # Three steps of a second each are left and six seconds: each step may take twice its time, so three do not fit.
    due = make_job("interactive", deadline_at=6.0, remaining_s=3.0)
    head, mates = make_step(due, seconds=1.0), [make_step(seconds=1.0) for _ in range(5)]
    for now, size in ((0.0, 2), (3.0, 1), (9.0, 1), (-3.0, 3), (-12.0, 6)):
        assert len(choose_batch([head, *mates], now, predict=linear).steps) == size
    due.is_given_up = True
    assert len(choose_batch([head, *mates], 0.0, predict=linear).steps) == 6
    due.is_given_up, due.remaining_s = False, 0.0
    assert len(choose_batch([head, *mates], 0.0, predict=linear).steps) == 6


def test_a_large_batch_shrinks_until_it_leaves_the_deadline(make_job, make_step):
    due = make_job("interactive", deadline_at=10.0, remaining_s=1.0)  # every step may take ten times its own
    steps = [make_step(due, seconds=1.0), *(make_step(seconds=1.0) for _ in range(30))]
    assert 5 <= len(choose_batch(steps, 0.0, predict=linear).steps) <= 10


def test_the_time_of_a_shared_call_may_be_limited(make_step):
    steps = [make_step(seconds=1.0) for _ in range(6)]
    assert [len(choose_batch(steps, 0.0, predict=linear, max_s=most).steps) for most in (0.5, 2.5, 6.0)] == [1, 2, 6]


def test_one_who_has_waited_too_long_leads(make_job, make_step):
    urgent, old = make_step(make_job("interactive"), 1), make_step(make_job("batch"), 2, patience_at=5.0)
    assert choose_batch([urgent, old], 4.0, predict=linear).steps == (urgent,)
    assert choose_batch([urgent, old], 5.0, predict=linear).steps == (old,)


ROW = st.tuples(
    st.integers(0, 2), st.sampled_from(sorted(DEFAULT_CLASSES)), st.integers(1, 5), st.integers(0, 4), st.integers(0, 9)
)


@given(st.lists(ROW, min_size=1, max_size=10), st.integers(0, 12), st.integers(1, 6), st.booleans())
def test_whatever_is_ready_a_batch_keeps_all_its_promises(rows, free, max_batch, is_picky):
    ready = []
    for number, (group, name, most, peak, size) in enumerate(rows):
        job = Job(f"j{number}", DEFAULT_CLASSES[name], 0.0, number)
        job.order = order_of(job)
        ready.append(ReadyStep(job, group, 1e9, 1.0, peak, most, handle=size))

    def near(one, other):
        return abs(one.handle - other.handle) <= 4

    batch = choose_batch(
        ready, 0.0, predict=linear, free_bytes=free, max_batch=max_batch, can_batch=near if is_picky else None
    )
    head, size = batch.steps[0], len(batch.steps)
    assert head is min(ready, key=lambda step: step.job.order)
    assert len(set(map(id, batch.steps))) == size and all(step in ready for step in batch.steps)
    assert {step.group for step in batch.steps} == {head.group}
    assert size <= min(max_batch, *(step.max_batch for step in batch.steps))
    assert size == 1 or batch.peak_bytes <= free
    assert not is_picky or all(near(one, other) for one, other in combinations(batch.steps, 2))
    assert batch.peak_bytes == sum(step.peak_bytes for step in batch.steps)
    assert batch.seconds == float(size)
