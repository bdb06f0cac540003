"""What a job that runs gives back lets others start, and a replay of the log knows of it."""

from __future__ import annotations

import pytest

from fastvideo_core.runtime.estimate import NodeEstimate
from fastvideo_core.runtime.scheduler.base import DEFAULT_CLASSES, Job, Limits, SchedulerConfig
from fastvideo_core.runtime.scheduler.core import Scheduler
from fastvideo_core.runtime.scheduler.log import DecisionLog, replay

CONFIG, LIMITS = SchedulerConfig(max_batch=4), Limits(memory_bytes=100, cache_blocks={"text_kv": 10})


def job(name, blocks):
    return Job(name, DEFAULT_CLASSES["standard"], 0.0, remaining_s=2.0, cache_blocks={"text_kv": blocks})


def test_blocks_that_are_given_back_let_the_next_job_start():
    log = DecisionLog()
    scheduler = Scheduler(CONFIG, LIMITS, lambda step, num_plans: 0.1, log=log)
    first, second = job("first", 8), job("second", 6)
    for one in (first, second):
        scheduler.submit(one, 0.0)
    assert scheduler.start_jobs(0.0) == [first]
    scheduler.refund(first, 0.5, {"text_kv": 3}, 0.1)
    assert scheduler.start_jobs(0.1) == []
    scheduler.refund(first, 5.0, {"text_kv": 1}, 0.2)
    assert scheduler.start_jobs(0.2) == [second]
    assert (first.remaining_s, first.cache_blocks) == (0.0, {"text_kv": 4})
    assert replay(log.records, CONFIG, LIMITS) == 3


@pytest.mark.parametrize(
    ("num_made", "expected"),
    [
        (0, (3.0, {"text_kv": 9})),
        (10, (2.0, {"text_kv": 6})),
        (29, (0.1, {"text_kv": 0})),
        (30, (0.0, {})),
        (31, (0.0, {})),
    ],
)
def test_a_loop_gives_back_the_share_of_the_steps_that_it_did_not_make(num_made, expected):
    seconds, blocks = NodeEstimate(3.0, 30, {"text_kv": 9}).unused(num_made)
    assert seconds == pytest.approx(expected[0])
    assert blocks == expected[1]
