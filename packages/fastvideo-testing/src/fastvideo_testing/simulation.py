"""A pool that takes no time: the real scheduler over described jobs, event by event, on a clock of its own.

    jobs = [SimulatedJob("a", num_steps=50, step_s=0.2), SimulatedJob("b", 3.0, num_steps=4, step_s=0.05)]
    result = simulate(jobs, config=SchedulerConfig(max_running=8))
    result["b"].duration_s

It says what a policy does to requests, thousands of them a second, the same each time. What a call takes is a function
of its steps' time and number; nothing is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from types import MappingProxyType

from fastvideo_core.errors import InputError, QueueFullError, ResourceError
from fastvideo_core.runtime.scheduler.base import Batch, Job, Limits, ReadyStep, SchedulerConfig, WorkerSlot
from fastvideo_core.runtime.scheduler.core import Scheduler
from fastvideo_core.runtime.scheduler.log import DecisionLog

__all__ = ["BatchSeconds", "SimulatedJob", "SimulatedResult", "Simulation", "shared_fraction", "simulate"]

BatchSeconds = Callable[[float, int], float]
"""Seconds of a call, from the seconds of its first step alone and the number of steps."""

_NO_BLOCKS: Mapping[str, int] = MappingProxyType({})


def shared_fraction(share: float) -> BatchSeconds:
    """Return how long calls take where a share of each step is work that a batch does once.

    Args:
        share: From 0, batches win nothing, to 1, further steps cost nothing.
    """
    return lambda step_s, num_steps: step_s * (share + (1 - share) * num_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """A request, as far as a scheduler cares.

    Attributes:
        job_id: Its name.
        arrives_at: When it comes, in seconds.
        num_steps: Its steps, one after the other.
        step_s: Seconds of each, alone in its call.
        latency_class: One of the configuration's classes.
        deadline_s: Seconds after its arrival at which it is due.
        group: Steps of one group may share a call.
        max_batch: Most steps in a call with one of it.
        resident_bytes: Bytes that it holds while it runs.
        peak_bytes: Bytes that a step takes on top.
        cache_blocks: Blocks that it holds of each cache.
        cancelled_at: When it is cancelled; the step in progress ends first.
    """

    job_id: str
    arrives_at: float = 0.0
    num_steps: int = 1
    step_s: float = 1.0
    latency_class: str = "standard"
    deadline_s: float | None = None
    group: int = 0
    max_batch: int = 32
    resident_bytes: int = 0
    peak_bytes: int = 0
    cache_blocks: Mapping[str, int] = field(default_factory=lambda: _NO_BLOCKS)
    cancelled_at: float = math.inf

    @property
    def alone_s(self) -> float:
        """Seconds that it takes on a pool of its own."""
        return self.num_steps * self.step_s


@dataclass(slots=True)
class SimulatedResult:
    """What became of a job.

    Attributes:
        job: The job.
        started_at: When it started; NaN if it did not.
        ended_at: When it ended, in whatever way.
        num_steps: Steps that it made.
        longest_wait_s: Longest that one of its steps was ready and did not run.
        refusal: Why it was not accepted.
        is_cancelled: Whether it was cancelled before its end.
    """

    job: SimulatedJob
    started_at: float = math.nan
    ended_at: float = math.nan
    num_steps: int = 0
    longest_wait_s: float = 0.0
    refusal: ResourceError | None = None
    is_cancelled: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether it made all its steps."""
        return self.num_steps == self.job.num_steps

    @property
    def duration_s(self) -> float:
        """Seconds from its arrival to its end."""
        return self.ended_at - self.job.arrives_at

    @property
    def is_in_time(self) -> bool:
        """Whether it was complete by its deadline."""
        return self.is_complete and (self.job.deadline_s is None or self.duration_s <= self.job.deadline_s)


@dataclass(frozen=True, slots=True)
class Simulation:
    """What became of all jobs.

    Attributes:
        results: By job.
        end_s: When the last one ended.
        busy_s: Seconds that each worker was in calls.
        batch_sizes: Steps of each call, in order.
        max_running: Most jobs that had started and not ended.
    """

    results: Mapping[str, SimulatedResult]
    end_s: float
    busy_s: Sequence[float]
    batch_sizes: Sequence[int]
    max_running: int

    def __getitem__(self, job_id: str) -> SimulatedResult:
        return self.results[job_id]

    def of_class(self, latency_class: str) -> list[SimulatedResult]:
        """Return the results of a class."""
        return [result for result in self.results.values() if result.job.latency_class == latency_class]

    def duration_quantile_s(self, quantile: float, latency_class: str) -> float:
        """Return a quantile (nearest rank) of the durations of a class's complete jobs."""
        durations = sorted(result.duration_s for result in self.of_class(latency_class) if result.is_complete)
        return durations[max(0, math.ceil(quantile * len(durations)) - 1)]

    def deadlines_kept(self) -> float:
        """Return the share of the jobs with a deadline that kept it."""
        due = [result for result in self.results.values() if result.job.deadline_s is not None]
        return sum(result.is_in_time for result in due) / len(due)


def simulate(
    jobs: Iterable[SimulatedJob],
    *,
    config: SchedulerConfig | None = None,
    limits: Limits | None = None,
    workers: Sequence[WorkerSlot] = (),
    batch_seconds: BatchSeconds | None = None,
    prediction_error: Callable[[SimulatedJob], float] | None = None,
    log: DecisionLog | None = None,
) -> Simulation:
    """Run jobs to their ends.

    Args:
        jobs: Jobs with different names.
        config: Settings of the scheduler.
        limits: What the pool has.
        workers: Its workers; one by default.
        batch_seconds: How long calls take; as long as their steps one by one if it is not given.
        prediction_error: What the predicted seconds of a job's steps are multiplied by; one if it is not given.
        log: Where the scheduler's decisions are written.

    Raises:
        InputError: Two jobs have the same name, or one has no steps.
    """
    seconds, error = batch_seconds or shared_fraction(0.0), prediction_error or _no_error
    pool = _Pool(config or SchedulerConfig(), limits or Limits(), workers, seconds, error, log)
    for job in jobs:
        pool.add(job)
    pool.run()
    busy_s = [pool.busy_s[index] for index in range(len(pool.scheduler.workers))]
    return Simulation(pool.results, pool.now, busy_s, pool.batch_sizes, pool.max_running)


def _no_error(_: SimulatedJob) -> float:
    return 1.0


class _Pool:
    """The events to come, and the scheduler that they are told to."""

    def __init__(
        self,
        config: SchedulerConfig,
        limits: Limits,
        workers: Sequence[WorkerSlot],
        batch_seconds: BatchSeconds,
        prediction_error: Callable[[SimulatedJob], float],
        log: DecisionLog | None,
    ) -> None:
        self.scheduler = Scheduler(config, limits, self._predict, workers=workers, log=log)
        self.results: dict[str, SimulatedResult] = {}
        self.now = 0.0
        self.busy_s = [0.0] * len(self.scheduler.workers)
        self.batch_sizes: list[int] = []
        self.max_running = 0
        self._batch_seconds = batch_seconds
        self._prediction_error = prediction_error
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def add(self, job: SimulatedJob) -> None:
        """Let a job come at its time."""
        if job.job_id in self.results:
            raise InputError("two jobs have this name", field="job_id", value=job.job_id)
        if job.num_steps < 1:
            raise InputError("too few", field="num_steps", value=job.num_steps, allowed="1 or more", nearest=1)
        self.results[job.job_id] = SimulatedResult(job)
        self._at(job.arrives_at, lambda: self._arrive(job))
        if job.cancelled_at < math.inf:
            self._at(job.cancelled_at, lambda: self._cancel(job))

    def run(self) -> None:
        """Take one event after the other; what happens at the same time is decided on together."""
        while self._events:
            self.now = self._events[0][0]
            while self._events and self._events[0][0] <= self.now:
                heappop(self._events)[2]()
            self._pump()

    def _at(self, time: float, what: Callable[[], None]) -> None:
        heappush(self._events, (time, next(self._numbers), what))

    def _arrive(self, job: SimulatedJob) -> None:
        due_at = None if job.deadline_s is None else self.now + job.deadline_s
        predicted_s = job.alone_s * self._prediction_error(job)
        accepted = Job(
            job.job_id, self.scheduler.config.classes[job.latency_class], self.now, deadline_at=due_at,
            resident_bytes=job.resident_bytes, peak_bytes=job.peak_bytes, cache_blocks=job.cache_blocks,
            remaining_s=predicted_s,
        )  # fmt: skip
        try:
            self.scheduler.submit(accepted, self.now)
        except (ResourceError, QueueFullError) as refusal:
            self.results[job.job_id].refusal = refusal
            self.results[job.job_id].ended_at = self.now

    def _cancel(self, job: SimulatedJob) -> None:
        result = self.results[job.job_id]
        if math.isnan(result.ended_at):
            result.is_cancelled = True
            if not any(step.job.job_id == job.job_id for step in self.scheduler.running_steps()):
                self._end(result)

    def _end(self, result: SimulatedResult) -> None:
        result.ended_at = self.now
        self.scheduler.withdraw(result.job.job_id, self.now)

    def _pump(self) -> None:
        for job in self.scheduler.start_jobs(self.now):
            self.results[job.job_id].started_at = self.now
            self._offer(job)
        self.max_running = max(self.max_running, len(self.scheduler.running))
        while (batch := self.scheduler.next_batch(self.now)) is not None:
            self._dispatch(batch)

    def _offer(self, accepted: Job) -> None:
        job = self.results[accepted.job_id].job
        patience_at = self.now + accepted.latency_class.patience_s
        predicted_s = job.step_s * self._prediction_error(job)
        self.scheduler.offer(
            ReadyStep(
                accepted, job.group, patience_at, predicted_s, job.peak_bytes, job.max_batch, handle=(job, self.now)
            ),
            self.now,
        )

    def _predict(self, step: ReadyStep, num_steps: int) -> float:
        return self._batch_seconds(step.seconds, num_steps)

    def _dispatch(self, batch: Batch) -> None:
        for step in batch.steps:
            job, ready_at = step.handle
            result = self.results[job.job_id]
            result.longest_wait_s = max(result.longest_wait_s, self.now - ready_at)
        seconds = self._batch_seconds(batch.steps[0].handle[0].step_s, len(batch.steps))
        self.busy_s[batch.worker] += seconds
        self.batch_sizes.append(len(batch.steps))
        self._at(self.now + seconds, lambda: self._finish(batch, seconds))

    def _finish(self, batch: Batch, seconds: float) -> None:
        self.scheduler.finished(batch.worker, self.now, seconds)
        for step in batch.steps:
            result = self.results[step.job.job_id]
            result.num_steps += 1
            if result.is_complete or result.is_cancelled:
                self._end(result)
            else:
                self._offer(step.job)
