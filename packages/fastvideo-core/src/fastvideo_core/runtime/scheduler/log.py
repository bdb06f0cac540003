"""The log of a scheduler's events and decisions, and its replay: the same events give the same decisions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fastvideo_core.errors import StateError
from fastvideo_core.runtime.scheduler.base import Job, LatencyClass, Limits, ReadyStep, SchedulerConfig, WorkerSlot

if TYPE_CHECKING:
    from fastvideo_core.runtime.scheduler.core import Scheduler

__all__ = ["DecisionLog", "replay"]

_T = TypeVar("_T")
_STEP_FIELDS = (
    "group",
    "patience_at",
    "seconds",
    "peak_bytes",
    "max_batch",
    "pool",
    "affinity",
    "transfer_bytes",
    "is_preparation",
)
_JOB_FIELDS = ("job_id", "accepted_at", "deadline_at", "resident_bytes", "peak_bytes", "remaining_s")


class DecisionLog:
    """Records what a scheduler was told, what its cost model said, and what it decided.

    Attributes:
        records: JSON-able records: kind, time, and what belongs to it.
    """

    def __init__(self) -> None:
        self.records: list[list[Any]] = []
        self._answers: list[Any] = []

    def recording(self, function: Callable[..., _T]) -> Callable[..., _T]:
        """Return a function whose answers are kept with the next decision."""

        def call(*args: Any) -> _T:
            answer = function(*args)
            self._answers.append(answer)
            return answer

        return call

    def submitted(self, job: Job, now: float) -> None:
        """Note a job, with its class."""
        fields = {name: getattr(job, name) for name in _JOB_FIELDS}
        fields["latency_class"] = asdict(job.latency_class)
        fields["cache_blocks"] = dict(job.cache_blocks)
        self.records.append(["submit", now, fields])

    def offered(self, kind: str, step: ReadyStep, now: float) -> None:
        """Note a step that can run."""
        self.records.append(
            [kind, now, {"job": step.job.job_id, **{name: getattr(step, name) for name in _STEP_FIELDS}}]
        )

    def decided(self, kind: str, now: float, decision: Any) -> None:
        """Note a decision, with all that the cost model was asked for it."""
        self.records.append([kind, now, decision, self._answers])
        self._answers = []

    def ended(self, kind: str, now: float, subject: int, seconds: float) -> None:
        """Note the end of a call or a transfer, or that a step is no longer wanted."""
        self.records.append([kind, now, subject, seconds])

    def renewed(self, job: Job, now: float) -> None:
        """Note that a job has another deadline."""
        self.records.append(["renew", now, [job.job_id, job.deadline_at, job.remaining_s]])

    def refunded(self, job: Job, seconds: float, blocks: Mapping[str, int], now: float) -> None:
        """Note that a job needs less than it was admitted with."""
        self.records.append(["refund", now, [job.job_id, seconds, dict(blocks)]])

    def withdrawn(self, job_id: str, now: float) -> None:
        """Note that a job has ended."""
        self.records.append(["withdraw", now, job_id])

    def save(self, path: Path) -> None:
        """Write one record a line."""
        path.write_text("".join(json.dumps(record) + "\n" for record in self.records), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> list[list[Any]]:
        """Read what `save` wrote.

        Raises:
            StateError: A line is no record.
        """
        records = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise StateError(f"{path}, line {number}: no record of a decision log: {error}") from error
            if not isinstance(record, list) or len(record) < 3:
                raise StateError(f"{path}, line {number}: no record of a decision log")
            records.append(record)
        return records


class _Replay:
    """Feeds a scheduler from records, with the cost model's recorded answers in place of the cost model."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.steps: list[ReadyStep] = []
        self.answers: Iterator[Any] = iter(())

    def answer(self, *_: Any) -> Any:
        return next(self.answers)

    def feed(self, scheduler: Scheduler, record: list[Any]) -> Any:
        """Apply one record; returns the scheduler's own decision where it is one."""
        kind, now, subject = record[:3]
        if kind == "submit":
            self._submit(scheduler, subject, now)
        elif kind in ("offer", "offer_transfer"):
            step = ReadyStep(self.jobs[subject["job"]], **{name: subject[name] for name in _STEP_FIELDS})
            self.steps.append(step)
            getattr(scheduler, kind)(step, now)
        elif kind == "renew":
            job_id, deadline_at, remaining_s = subject
            scheduler.renew(self.jobs[job_id], deadline_at, remaining_s, now)
        elif kind == "refund":
            job_id, seconds, blocks = subject
            scheduler.refund(self.jobs[job_id], seconds, blocks, now)
        elif kind == "withdraw":
            scheduler.withdraw(subject, now)
        elif kind == "retract":
            scheduler.retract(self.steps[subject], now)
        elif kind == "finished":
            scheduler.finished(subject, now, record[3])
        elif kind == "finished_transfer":
            scheduler.finished_transfer(ReadyStep(next(iter(self.jobs.values())), 0, 0.0, transfer_bytes=subject), now)
        else:
            self.answers = iter(record[3])
            return self._decide(scheduler, kind, now)
        return None

    def _submit(self, scheduler: Scheduler, fields: Mapping[str, Any], now: float) -> None:
        rest = dict(fields)
        job = Job(latency_class=LatencyClass(**rest.pop("latency_class")), **rest)
        self.jobs[job.job_id] = job
        scheduler.submit(job, now)

    def _decide(self, scheduler: Scheduler, kind: str, now: float) -> Any:
        if kind == "start":
            return [job.job_id for job in scheduler.start_jobs(now)]
        if kind == "transfer":
            return [step.step_id for step in scheduler.next_transfers(now)]
        batch = scheduler.next_batch(now)
        return None if batch is None else [batch.worker, [step.step_id for step in batch.steps]]


def replay(
    records: Iterable[list[Any]],
    config: SchedulerConfig,
    limits: Limits,
    *,
    workers: tuple[WorkerSlot, ...] = (),
    has_can_batch: bool = False,
) -> int:
    """Make all decisions of a log anew and compare them.

    Args:
        records: What a log recorded, from its scheduler's first event on.
        config: Settings of that scheduler.
        limits: Its limits.
        workers: Its workers.
        has_can_batch: Whether it was given a function for unequal steps.

    Returns:
        How many decisions were made.

    Raises:
        StateError: A decision differs; with its number, what was recorded and what was decided now.
    """
    from fastvideo_core.runtime.scheduler.core import Scheduler

    feeder = _Replay()
    scheduler = Scheduler(
        config, limits, feeder.answer, workers=workers, can_batch=feeder.answer if has_can_batch else None
    )
    num_decisions = 0
    for number, record in enumerate(records):
        decision = feeder.feed(scheduler, record)
        if len(record) == 4 and record[0] in ("start", "batch", "transfer"):
            num_decisions += 1
            if decision != record[2]:
                raise StateError(f"record {number} ({record[0]}): recorded {record[2]}, decided now {decision}")
    return num_decisions
