"""Who goes first: latency classes, deadlines, ageing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from fastvideo_core.runtime.scheduler.base import Job, ReadyStep

__all__ = ["GIVEN_UP_S", "by_order", "most_urgent", "order_of", "unreachable_deadlines"]

GIVEN_UP_S = 1e9
"""What a due time is moved back by once it cannot be kept, so that the job goes behind those of its rank that can."""


def order_of(job: Job) -> tuple[int, float, int]:
    """Return a job's sort key: rank, then due time, then order of acceptance.

    A job without a deadline counts as due when the patience of its class is over: such jobs go in order of acceptance,
    and one that is due sooner goes before them.
    """
    due_at = job.accepted_at + job.latency_class.patience_s if job.deadline_at is None else job.deadline_at
    if job.is_given_up:
        due_at += GIVEN_UP_S
    return job.latency_class.rank, due_at, job.sequence


def most_urgent(ready: Iterable[ReadyStep], now: float) -> ReadyStep:
    """Return the step that goes first: one that has waited beyond its patience, longest first; else by rank and order.

    Within a rank, what prepares a request goes before what requests share.

    Args:
        ready: At least one step.
        now: The time.
    """
    best: ReadyStep | None = None
    overdue: ReadyStep | None = None
    least, order = 1 << 30, (0, 0.0, 0)
    for step in ready:
        if step.patience_at <= now:
            if overdue is None or step.patience_at < overdue.patience_at:
                overdue = step
        elif step.urgency < least or (step.urgency == least and step.job.order < order):
            best, least, order = step, step.urgency, step.job.order
    chosen = overdue or best
    assert chosen is not None, "at least one step is ready"
    return chosen


def unreachable_deadlines(jobs: Iterable[Job], now: float, *, speed: float = 1.0, num_workers: int = 1) -> set[str]:
    """Return the ids of jobs whose deadlines are better given up, so that the most deadlines of all are kept.

    Jobs are taken in order of deadline; whenever the work up to one of them does not fit before it, the longest job so
    far is given up.

    Args:
        jobs: Jobs; those without a deadline are left out of account.
        now: The time.
        speed: Predicted seconds that the pool works off in a second: above one where batches help.
        num_workers: Workers that share the work.

    Source: Moore 1968, "An n job, one machine sequencing algorithm for minimizing the number of late jobs" (with
    Hodgson's form of it); exact for one machine where all have arrived.
    """
    due = sorted((job.deadline_at, job.sequence, job) for job in jobs if job.deadline_at is not None)
    kept: list[tuple[float, int, str]] = []
    given_up: set[str] = set()
    work_s = 0.0
    for deadline_at, sequence, job in due:
        seconds = job.remaining_s / speed
        heappush(kept, (-seconds, -sequence, job.job_id))
        work_s += seconds
        # A job alone is no faster on many workers.
        if work_s / num_workers > deadline_at - now or seconds > deadline_at - now:
            longest_s, _, job_id = heappop(kept)
            work_s += longest_s
            given_up.add(job_id)
    return given_up


def by_order(jobs: Sequence[Job], now: float) -> list[Job]:
    """Return waiting jobs, first those that have waited beyond their patience, longest first; then by order."""

    def key(job: Job) -> tuple[int, float, tuple[int, float, int]]:
        patience_at = job.accepted_at + job.latency_class.patience_s
        return (0, patience_at, job.order) if patience_at <= now else (1, 0.0, job.order)

    return sorted(jobs, key=key)
