from __future__ import annotations

import pytest

from fastvideo_core.errors import InputError
from fastvideo_core.runtime.scheduler.base import WorkerSlot
from fastvideo_core.runtime.scheduler.placement import (
    check_has_worker,
    choose_transfers,
    choose_worker,
    cost_class,
    steps_for,
)

SMALL, JUMBO, BOTH = frozenset({"small"}), frozenset({"jumbo"}), frozenset({"small", "jumbo"})


def test_a_step_is_jumbo_above_the_limit():
    assert [cost_class(seconds, 1.0) for seconds in (0.0, 1.0, 1.001, 50.0)] == ["small", "small", "jumbo", "jumbo"]


def test_a_worker_takes_the_cost_classes_of_its_pool(make_step):
    workers = [WorkerSlot(cost_classes=SMALL), WorkerSlot(cost_classes=JUMBO), WorkerSlot("vae")]
    small, jumbo = make_step(seconds=0.5), make_step(seconds=2.0)
    decode = make_step(seconds=2.0, pool="vae")
    ready = [small, jumbo, decode]
    assert [list(steps_for(index, workers, ready, 1.0)) for index in range(3)] == [[small], [jumbo], [decode]]


def test_a_step_that_is_bound_to_a_worker_waits_for_it(make_step):
    workers = [WorkerSlot(), WorkerSlot()]
    bound, free = make_step(affinity="1"), make_step()
    assert list(steps_for(0, workers, [bound, free], 1.0)) == [free]
    assert list(steps_for(1, workers, [bound, free], 1.0)) == [bound, free]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pool": "audio"}, "pool='audio': no worker of this pool; allowed: main, vae"),
        ({"affinity": "2"}, "affinity='2': no such worker in its pool; allowed: 0, 1"),
        ({"pool": "vae", "affinity": "0"}, "affinity='0': no such worker in its pool; allowed: 2"),
    ],
)
def test_a_step_that_no_worker_would_ever_take_is_refused(make_step, fields, message):
    workers = [WorkerSlot(), WorkerSlot(), WorkerSlot("vae")]
    with pytest.raises(InputError) as caught:
        check_has_worker(make_step(**fields), workers)
    assert str(caught.value) == message


def test_one_worker_takes_all_that_is_there(make_step):
    ready = [make_step(), make_step(seconds=9.0)]
    assert steps_for(0, [WorkerSlot()], ready, 1.0) is ready


@pytest.mark.parametrize(("idle", "expected"), [((1, 1, 1), [1, 2, 0]), ((1, 0, 1), [2, 0]), ((0, 0, 0), [])])
def test_the_choosiest_idle_worker_is_asked_first(idle, expected):
    classes = (BOTH, SMALL, JUMBO)
    workers = [WorkerSlot(cost_classes=one, is_idle=bool(is_idle)) for one, is_idle in zip(classes, idle, strict=True)]
    assert choose_worker(workers) == expected


def test_transfers_share_the_link_as_far_as_it_goes(make_step):
    steps = [make_step(transfer_bytes=size) for size in (4, 3, 3, 1)]
    assert choose_transfers(steps, 0.0, 0, 10) == steps[:3]
    assert choose_transfers(steps, 0.0, 4, 10) == steps[:1], "the one that does not fit holds back those behind it"
    assert choose_transfers(steps, 0.0, 10, 10) == []
    assert choose_transfers([], 0.0, 0, 10) == []


def test_one_that_is_larger_than_the_link_goes_alone(make_step):
    large, small = make_step(transfer_bytes=25), make_step(transfer_bytes=1)
    assert choose_transfers([large, small], 0.0, 0, 10) == [large]
    assert choose_transfers([large, small], 0.0, 1, 10) == []


def test_the_most_urgent_transfer_goes_first_unless_one_has_waited_too_long(make_job, make_step):
    urgent = make_step(make_job("interactive"), transfer_bytes=6)
    large = make_step(make_job("batch"), patience_at=5.0, transfer_bytes=10)
    assert choose_transfers([large, urgent], 4.0, 0, 10) == [urgent]
    assert choose_transfers([large, urgent], 5.0, 0, 10) == [large]
    assert choose_transfers([large, urgent], 5.0, 6, 10) == [], "so that the link empties for it"
