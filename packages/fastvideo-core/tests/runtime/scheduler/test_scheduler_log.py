from __future__ import annotations

import json

import pytest

from fastvideo_core.errors import StateError
from fastvideo_core.runtime.scheduler.base import DEFAULT_CLASSES, Job, Limits, SchedulerConfig, WorkerSlot
from fastvideo_core.runtime.scheduler.core import REPLAN_S, Scheduler
from fastvideo_core.runtime.scheduler.log import DecisionLog, replay

CONFIG, LIMITS = SchedulerConfig(max_batch=4), Limits(memory_bytes=100)


@pytest.fixture
def log():
    return DecisionLog()


@pytest.fixture
def records(log, make_step):
    """The records of a short life: two jobs, of which one is withdrawn, some steps, a transfer."""
    scheduler = Scheduler(CONFIG, LIMITS, lambda step, num_plans: 0.1 * num_plans, log=log)
    described = (("a", "interactive", None), ("b", "standard", 0.7), ("c", "standard", 0.9))
    jobs = [
        Job(name, DEFAULT_CLASSES[kind], 0.0, resident_bytes=9, deadline_at=due, remaining_s=1 / 3)
        for name, kind, due in described
    ]
    for job in jobs:
        scheduler.submit(job, 0.0)
    scheduler.start_jobs(0.0)
    steps = [make_step(job, seconds=0.1) for job in jobs]
    for step in steps:
        scheduler.offer(step, 0.1)
    scheduler.offer_transfer(make_step(jobs[0], transfer_bytes=5), 0.1)
    (transfer,) = scheduler.next_transfers(0.1)
    scheduler.retract(steps[2], 0.15)
    scheduler.next_batch(0.2)
    scheduler.finished_transfer(transfer, 0.3)
    scheduler.withdraw("b", 0.4)
    scheduler.finished(0, 0.5, 0.17)
    return log.records


KINDS = ["submit"] * 3 + ["start"] + ["offer"] * 3 + [
    "offer_transfer", "transfer", "retract", "batch", "finished_transfer", "withdraw", "finished",
]  # fmt: skip


def test_everything_is_on_record_and_is_json(records):
    assert [record[0] for record in records] == KINDS
    assert json.loads(json.dumps(records)) == records
    assert records[3][2] == ["a", "b", "c"]
    assert records[10][2:] == [[0, [0, 1]], [0.2]]


def test_a_replay_makes_the_same_decisions(records):
    assert replay(records, CONFIG, LIMITS) == 3


def test_a_replay_from_a_file_is_the_same(records, log, tmp_path):
    log.save(tmp_path / "log.jsonl")
    assert DecisionLog.load(tmp_path / "log.jsonl") == records
    assert replay(DecisionLog.load(tmp_path / "log.jsonl"), CONFIG, LIMITS) == 3


@pytest.mark.parametrize(
    ("number", "decision", "text"),
    [
        (3, ["a"], r"^record 3 \(start\): recorded \['a'\], decided now \['a', 'b', 'c'\]$"),
        (10, [0, [1, 0]], r"^record 10 \(batch\): recorded \[0, \[1, 0\]\], decided now \[0, \[0, 1\]\]$"),
        (8, [], r"^record 8 \(transfer\): recorded \[\], decided now \[3\]$"),
    ],
)
def test_a_decision_that_differs_is_told(number, decision, text, records):
    records[number][2] = decision
    with pytest.raises(StateError, match=text):
        replay(records, CONFIG, LIMITS)


def test_other_settings_decide_otherwise(records):
    with pytest.raises(StateError, match=r"record 10 \(batch\)"):
        replay(records, SchedulerConfig(max_batch=1), LIMITS)
    with pytest.raises(StateError, match=r"record 3 \(start\)"):
        replay(records, CONFIG, Limits(memory_bytes=20))


@pytest.mark.parametrize("line", ["{", "{}", "[1, 2]", '"x"'])
def test_a_line_that_is_no_record_is_refused_by_number(line, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(f'["withdraw", 0.0, "a"]\n{line}\n')
    with pytest.raises(StateError, match=r"log\.jsonl, line 2: no record of a decision log"):
        DecisionLog.load(path)


def test_a_look_that_finds_nothing_to_run_changes_nothing_unseen(log, make_step):
    """The verdict on deadlines may be renewed whenever the scheduler is asked; a replay renews it at the same times."""
    workers = (WorkerSlot(), WorkerSlot("other"))
    scheduler = Scheduler(CONFIG, LIMITS, lambda step, num_plans: 1.0, workers=workers, log=log)
    late = Job("late", DEFAULT_CLASSES["standard"], 0.0, deadline_at=2.0, remaining_s=1.0)
    calm = Job("calm", DEFAULT_CLASSES["standard"], 5.0)
    for job in (late, calm):
        scheduler.submit(job, 0.0)
    scheduler.start_jobs(0.0)
    scheduler.offer(make_step(late, group=0), 0.0)
    scheduler.next_batch(0.0)
    for group, job in enumerate((late, calm)):
        scheduler.offer(make_step(job, group=group), 0.0)
    assert scheduler.next_batch(0.9) is None  # just before the deadline is lost
    scheduler.finished(0, 1.0 + REPLAN_S / 2, 1.0)
    scheduler.next_batch(1.0 + REPLAN_S / 2)
    assert replay(log.records, CONFIG, LIMITS, workers=workers) >= 3
