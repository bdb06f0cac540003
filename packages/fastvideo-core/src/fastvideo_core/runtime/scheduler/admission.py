"""Admission: a request or a step gets all that it needs, or nothing yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fastvideo_core.errors import QueueFullError, ResourceError
from fastvideo_core.runtime.scheduler.base import Job, Limits, SchedulerConfig
from fastvideo_core.runtime.scheduler.ordering import by_order
from fastvideo_core.runtime.weights.text import format_bytes

__all__ = ["Holdings", "check_can_ever_fit", "check_queue", "choose_starts"]


@dataclass(slots=True)
class Holdings:
    """What the started jobs hold, at the worst.

    Attributes:
        num_jobs: How many there are.
        resident_bytes: Bytes of their states.
        peak_bytes: Most bytes that a step of one of them takes on top.
        cache_blocks: Blocks of each cache.
    """

    num_jobs: int = 0
    resident_bytes: int = 0
    peak_bytes: int = 0
    cache_blocks: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, jobs: Iterable[Job]) -> Holdings:
        """Add up what some jobs hold."""
        held = cls()
        for job in jobs:
            held.add(job)
        return held

    def add(self, job: Job) -> None:
        """Take up another job."""
        self.num_jobs += 1
        self.resident_bytes += job.resident_bytes
        self.peak_bytes = max(self.peak_bytes, job.peak_bytes)
        self.cache_blocks.update(job.cache_blocks)

    def can_take(self, job: Job, limits: Limits) -> bool:
        """Tell whether another job fits: its state beside the others', and on each worker any one's largest step."""
        if limits.memory_bytes is not None:
            peak_bytes = max(self.peak_bytes, job.peak_bytes) * limits.num_workers
            if self.resident_bytes + job.resident_bytes + peak_bytes > limits.memory_bytes:
                return False
        return all(
            self.cache_blocks[name] + count <= limits.cache_blocks.get(name, 0)
            for name, count in job.cache_blocks.items()
        )


def check_can_ever_fit(job: Job, limits: Limits) -> None:
    """Refuse a job that does not fit even alone.

    Raises:
        ResourceError: With what it needs, and what there is.
    """
    need = job.resident_bytes + job.peak_bytes * limits.num_workers
    if limits.memory_bytes is not None and need > limits.memory_bytes:
        raise ResourceError(
            f"request {job.job_id} needs {format_bytes(need)} besides the weights; {format_bytes(limits.memory_bytes)} "
            "are there for all requests; ask for fewer frames or a smaller size"
        )
    for name, count in job.cache_blocks.items():
        there = limits.cache_blocks.get(name, 0)
        if count > there:
            raise ResourceError(f"request {job.job_id} needs {count} blocks of cache {name}; there are {there}")


def check_queue(queued: Sequence[Job], running: Sequence[Job], config: SchedulerConfig, *, speed: float = 1.0) -> None:
    """Refuse another job when the queue is full.

    Args:
        queued: Jobs that wait for their start.
        running: Jobs that have started.
        config: Settings.
        speed: Predicted seconds that the pool works off in a second.

    Raises:
        QueueFullError: With the seconds after which a place is expected to be free.
    """
    if len(queued) < config.max_queued:
        return
    # A place is free once one more of the started jobs has ended; which one, their steps decide.
    active = len(running) or 1
    retry_after_s = max(0.1, sum(job.remaining_s for job in running) / active / speed)
    raise QueueFullError(
        f"the queue is full: {len(queued)} requests wait; allowed: {config.max_queued}; "
        f"come back in {retry_after_s:.1f} s",
        retry_after_s=retry_after_s,
    )


def choose_starts(
    queued: Sequence[Job], running: Sequence[Job], limits: Limits, config: SchedulerConfig, now: float
) -> list[Job]:
    """Return the waiting jobs that start now, in order.

    One that does not fit is skipped, so that it does not block those behind it; once it has waited beyond its patience,
    nothing starts before it any more, so that it does not starve.
    """
    max_running = config.max_running if config.dispatch == "step" else 1
    if not queued or len(running) >= max_running:
        return []
    held = Holdings.of(running)
    starts: list[Job] = []
    for job in _in_order(queued, config, now):
        if held.num_jobs >= max_running:
            break
        if held.can_take(job, limits):
            held.add(job)
            starts.append(job)
        elif job.accepted_at + job.latency_class.patience_s <= now:
            break
    return starts


def _in_order(queued: Sequence[Job], config: SchedulerConfig, now: float) -> list[Job]:
    if config.dispatch == "request_fifo":
        return sorted(queued, key=lambda job: job.sequence)
    if config.dispatch == "request_edf":
        return sorted(queued, key=lambda job: (job.deadline_at is None, job.deadline_at or 0.0, job.sequence))
    return by_order(queued, now)
