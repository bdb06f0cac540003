"""Sessions share calls, no more of them than keep the chunk deadline, and the decisions can be made again."""

from __future__ import annotations

import time

import pytest
import torch

from fastvideo_core import Engine
from fastvideo_core.runtime.engine import RuntimeOptions
from fastvideo_core.runtime.scheduler.base import DEFAULT_CLASSES, Job, Limits, ReadyStep, SchedulerConfig
from fastvideo_core.runtime.scheduler.core import Scheduler
from fastvideo_core.runtime.scheduler.log import DecisionLog, replay
from fastvideo_core.runtime.sessions import SessionOptions
from fastvideo_testing.streams import Reader

PARAMETERS = {"num_inference_steps": 2, "height": 16, "width": 16}
MEMORY = 1 << 30


def batches(log):
    return [record[2][1] for record in log.records if record[0] == "batch" and record[2] is not None]


def run_sessions(card, log, prompts, **given):
    """Run sessions side by side, each with a prompt and seed of its own, and return their chunks."""
    options = RuntimeOptions(SchedulerConfig(), memory_bytes=MEMORY, log=log)
    with Engine.open(card, options=options) as engine:
        with engine.paused():  # so that they begin together, however slow the machine is
            sessions = [
                engine.session(
                    prompt, seed=number, options=SessionOptions(num_chunks=4, buffer_s=1000.0, **given), **PARAMETERS
                )
                for number, prompt in enumerate(prompts)
            ]
        return [Reader(session).read() for session in sessions]


def test_ready_chunks_run_in_one_call_each_at_its_own_place(causal_card):
    prompts = ("a red circle", "a blue square", "a green bar")
    together, alone = DecisionLog(), []
    chunks = run_sessions(causal_card, together, prompts)
    assert max(map(len, batches(together))) == 3
    with Engine.open(causal_card) as engine:
        for number, prompt in enumerate(prompts):
            options = SessionOptions(num_chunks=4, buffer_s=1000.0)
            alone.append(Reader(engine.session(prompt, seed=number, options=options, **PARAMETERS)).read())
    for mine, others in zip(chunks, alone, strict=True):
        assert mine.keys() == others.keys()
        for number in mine:
            difference = (mine[number].int() - others[number].int()).abs().max()
            assert difference <= 1  # the card's bound on batches, as bytes
    assert not torch.equal(chunks[0][2], chunks[1][2])


def test_the_decisions_about_chunks_can_be_made_again(causal_card):
    log = DecisionLog()
    run_sessions(causal_card, log, ("a red circle", "a blue square"), chunk_deadline_s=5.0)
    assert sum(record[0] == "renew" for record in log.records) >= 8
    assert replay(log.records, SchedulerConfig(), Limits(memory_bytes=MEMORY, cache_blocks={"chunk_kv": 64})) > 10


@pytest.mark.parametrize(("deadline_s", "most"), [(None, 4), (8.0, 4), (4.0, 2), (2.5, 1)])
def test_no_more_sessions_share_a_call_than_keep_the_chunk_deadline(deadline_s, most):
    """A chunk is two steps of a second; a call of n takes n seconds. Four seconds are enough for calls of two."""
    scheduler = Scheduler(SchedulerConfig(), Limits(), lambda step, count: float(count))
    now = time.monotonic()
    jobs = [Job(f"s{number}", DEFAULT_CLASSES["interactive"], now) for number in range(4)]
    for job in jobs:
        scheduler.submit(job, now)
    assert len(scheduler.start_jobs(now)) == 4
    for job in jobs:
        scheduler.renew(job, None if deadline_s is None else now + deadline_s, 2.0, now)
        scheduler.speed = 4.0  # so that the deadlines are believed to be within reach
        scheduler.offer(ReadyStep(job, 0, now + 100, seconds=1.0, max_batch=8), now)
    batch = scheduler.next_batch(now)
    assert len(batch.steps) == most


def test_a_session_that_has_just_had_its_chunk_goes_behind_the_others():
    scheduler = Scheduler(SchedulerConfig(), Limits(), lambda step, count: float(count))
    jobs = [Job(f"s{number}", DEFAULT_CLASSES["interactive"], 0.0) for number in range(2)]
    for job in jobs:
        scheduler.submit(job, 0.0)
    scheduler.start_jobs(0.0)
    scheduler.renew(jobs[0], None, 1.0, 0.5)
    for job in jobs:
        scheduler.offer(ReadyStep(job, -1, 100.0, seconds=1.0), 0.5)
    assert scheduler.next_batch(0.5).steps[0].job is jobs[1]
