"""The scheduler's state, and the events that change it: what a request does, and what a worker does.

Every method takes the time. The decisions themselves are the pure functions of the modules beside this one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastvideo_core.errors import InputError
from fastvideo_core.runtime.scheduler.admission import Holdings, check_can_ever_fit, check_queue, choose_starts
from fastvideo_core.runtime.scheduler.base import Batch, Job, Limits, ReadyStep, SchedulerConfig, WorkerSlot
from fastvideo_core.runtime.scheduler.batching import CanBatch, Predict, choose_batch
from fastvideo_core.runtime.scheduler.log import DecisionLog
from fastvideo_core.runtime.scheduler.ordering import order_of, unreachable_deadlines
from fastvideo_core.runtime.scheduler.placement import check_has_worker, choose_transfers, choose_worker, steps_for

__all__ = ["Scheduler"]

REPLAN_S = 0.25
"""How old the verdict on deadlines may become while no job comes or goes."""

SPEED_DECAY = 0.9

_FIRST = (0,)


class Scheduler:
    """Decides which jobs start, and which steps run next on which worker.

    Args:
        config: Settings.
        limits: What the pool has for all requests together.
        predict: Predicted seconds of a call.
        workers: Workers; one that takes everything by default.
        can_batch: Whether unequal steps of a group may share a call; None if groups hold equal ones only.
        log: Where events and decisions are written for a replay; None keeps none.

    Attributes:
        queued: Jobs that wait for their start, by id.
        running: Jobs that have started, by id.
        ready: Steps that can run now.
        speed: Predicted seconds, as if each step ran alone, that a worker works off in one second.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        limits: Limits,
        predict: Predict,
        *,
        workers: Sequence[WorkerSlot] = (),
        can_batch: CanBatch | None = None,
        log: DecisionLog | None = None,
    ) -> None:
        self.config = config
        self.limits = replace(limits, num_workers=max(1, len(workers)))
        self.queued: dict[str, Job] = {}
        self.running: dict[str, Job] = {}
        self.ready: dict[ReadyStep, None] = {}
        self.transfers: dict[ReadyStep, None] = {}
        self.workers = [replace(worker) for worker in workers] or [WorkerSlot()]
        _check_workers(self.workers)
        self._is_alone = len(self.workers) == 1
        self._served = {(worker.pool, at) for index, worker in enumerate(self.workers) for at in ("", str(index))}
        self.speed = 1.0
        self._in_flight: dict[int, Batch] = {}
        self._leaving: list[Job] = []
        self._transfer_bytes = 0
        self._predict = predict if log is None else log.recording(predict)
        self._can_batch = can_batch if log is None or can_batch is None else log.recording(can_batch)
        self._log = log
        self._num_jobs = 0
        self._num_steps = 0
        self._num_due = 0
        self._replan_at = 0.0
        self._held_bytes = 0
        self._may_start = False

    def submit(self, job: Job, now: float) -> None:
        """Take a job into the queue.

        Raises:
            InputError: A job of this id is known.
            ResourceError: It could never run.
            QueueFullError: Too many wait.
        """
        if job.job_id in self.queued or job.job_id in self.running:
            raise InputError("a request of this id is running", field="request_id", value=job.job_id)
        check_can_ever_fit(job, self.limits)
        speed = self.speed * len(self.workers)
        check_queue(tuple(self.queued.values()), tuple(self.running.values()), self.config, speed=speed)
        job.sequence = self._num_jobs
        self._num_jobs += 1
        if job.deadline_at is None and job.latency_class.deadline_s is not None:
            job.deadline_at = job.accepted_at + job.latency_class.deadline_s
        job.order = order_of(job)
        self.queued[job.job_id] = job
        self._may_start = True
        if job.deadline_at is not None:
            self._num_due += 1
            self._replan_at = now
        if self._log is not None:
            self._log.submitted(job, now)

    def start_jobs(self, now: float) -> list[Job]:
        """Return the jobs that start now; from here on they hold what they asked for."""
        if not self._may_start:
            return []
        if self._replan_at <= now and self._num_due:
            self._replan(now)
        starts = choose_starts(tuple(self.queued.values()), self._holders(), self.limits, self.config, now)
        # Who does not start now starts no sooner with time alone: something must come, or give back what it holds.
        self._may_start = False
        for job in starts:
            self.running[job.job_id] = self.queued.pop(job.job_id)
        if starts:
            self._held_bytes = Holdings.of(self._holders()).resident_bytes
        if self._log is not None:
            self._log.decided("start", now, [job.job_id for job in starts])
        return starts

    def offer(self, step: ReadyStep, now: float) -> None:
        """Take a step of a started job that can run now.

        Raises:
            InputError: No worker would ever take it.
        """
        if not self._is_alone and (step.pool, step.affinity) not in self._served:
            check_has_worker(step, self.workers)
        self._take("offer", self.ready, step, now)

    def offer_transfer(self, step: ReadyStep, now: float) -> None:
        """Take a transfer that can run now."""
        self._take("offer_transfer", self.transfers, step, now)

    def next_batch(self, now: float) -> Batch | None:
        """Return what an idle worker runs next, and note that it does; None if nothing can run."""
        if not self.ready:
            return None
        idle = _FIRST if self._is_alone and self.workers[0].is_idle else choose_worker(self.workers)
        if not idle:
            return None
        # What changes the state is part of a decision that is logged, or a replay would not find it.
        if self._replan_at <= now and self._num_due:
            self._replan(now)
        if self._is_alone:
            return self._dispatch(0, self.ready, now)
        for index in idle:
            ready = steps_for(index, self.workers, self.ready, self.config.jumbo_s)
            if ready:
                return self._dispatch(index, ready, now)
        if self._log is not None:
            self._log.decided("batch", now, None)
        return None

    def next_transfers(self, now: float) -> list[ReadyStep]:
        """Return the transfers that start now, and note that they do."""
        if not self.transfers:
            return []
        starts = choose_transfers(self.transfers, now, self._transfer_bytes, self.limits.transfer_bytes)
        for step in starts:
            del self.transfers[step]
            self._transfer_bytes += step.transfer_bytes
        if self._log is not None:
            self._log.decided("transfer", now, [step.step_id for step in starts])
        return starts

    def finished(self, worker: int, now: float, seconds: float) -> None:
        """Note that a worker has ended its call, which took so many seconds."""
        batch = self._in_flight.pop(worker)
        self.workers[worker].is_idle = True
        if self._leaving:
            self._leaving = [job for job in self._leaving if self._is_in_flight(job)]
            self._held_bytes = Holdings.of(self._holders()).resident_bytes
            self._may_start = bool(self.queued)
        alone_s = 0.0
        for step in batch.steps:
            alone_s += step.seconds
            step.job.remaining_s = max(0.0, step.job.remaining_s - step.seconds)
        if seconds > 0 and alone_s > 0:
            self.speed += (1 - SPEED_DECAY) * (min(max(alone_s / seconds, 0.1), 10.0) - self.speed)
        if self._log is not None:
            self._log.ended("finished", now, worker, seconds)

    def finished_transfer(self, step: ReadyStep, now: float) -> None:
        """Note that a transfer has ended."""
        self._transfer_bytes -= step.transfer_bytes
        if self._log is not None:
            self._log.ended("finished_transfer", now, step.transfer_bytes, 0.0)

    def retract(self, step: ReadyStep, now: float) -> None:
        """Forget one step that was offered; one that runs, or has run, is no trouble."""
        is_known = self.ready.pop(step, self) is not self or self.transfers.pop(step, self) is not self
        if is_known and self._log is not None:
            self._log.ended("retract", now, step.step_id, 0.0)

    def withdraw(self, job_id: str, now: float) -> None:
        """Forget a job, however it has ended: its steps, its place, and what it held; unknown ones are no trouble.

        What a step of it is still using on a worker is held until that call has ended.
        """
        job = self.queued.pop(job_id, None) or self.running.pop(job_id, None)
        if job is None:
            return
        for steps in (self.ready, self.transfers):
            for step in [step for step in steps if step.job is job]:
                del steps[step]
        if self._is_in_flight(job):
            self._leaving.append(job)
        self._held_bytes = Holdings.of(self._holders()).resident_bytes
        self._may_start = bool(self.queued)
        if job.deadline_at is not None:
            self._num_due -= 1
            self._replan_at = now
        if self._log is not None:
            self._log.withdrawn(job_id, now)

    def renew(self, job: Job, deadline_at: float | None, remaining_s: float, now: float) -> None:
        """Give a job that has started the deadline and the work of a stream's next chunk, as if it came now."""
        self._num_due += (deadline_at is not None) - (job.deadline_at is not None)
        job.accepted_at, job.deadline_at, job.remaining_s, job.is_given_up = now, deadline_at, remaining_s, False
        job.order = order_of(job)
        self._replan_at = now
        if self._log is not None:
            self._log.renewed(job, now)

    def refund(self, job: Job, seconds: float, blocks: Mapping[str, int], now: float) -> None:
        """Take back what a job that runs was admitted with and will not need: predicted seconds, blocks of caches."""
        job.remaining_s = max(0.0, job.remaining_s - seconds)
        if blocks:
            job.cache_blocks = {name: count - blocks.get(name, 0) for name, count in job.cache_blocks.items()}
            self._may_start = bool(self.queued)
        if self._log is not None:
            self._log.refunded(job, seconds, blocks, now)

    def running_steps(self) -> list[ReadyStep]:
        """Return the steps that are on workers."""
        return [step for batch in self._in_flight.values() for step in batch.steps]

    @property
    def is_idle(self) -> bool:
        """Whether no worker has anything to do."""
        return not self._in_flight

    def _holders(self) -> tuple[Job, ...]:
        """Return the jobs that hold what they asked for."""
        return (*self.running.values(), *self._leaving)

    def _is_in_flight(self, job: Job) -> bool:
        return any(step.job is job for step in self.running_steps())

    def _take(self, kind: str, waiting: dict[ReadyStep, None], step: ReadyStep, now: float) -> None:
        step.step_id = self._num_steps
        self._num_steps += 1
        waiting[step] = None
        if self._log is not None:
            self._log.offered(kind, step, now)

    def _dispatch(self, index: int, ready: Any, now: float) -> Batch:
        limit = self.limits.memory_bytes
        batch = choose_batch(
            ready,
            now,
            predict=self._predict,
            free_bytes=None if limit is None else (limit - self._held_bytes) // len(self.workers),
            max_batch=self.config.max_batch,
            can_batch=self._can_batch,
            max_s=math.inf if "jumbo" in self.workers[index].cost_classes else self.config.jumbo_s,
        )
        if index:
            batch = replace(batch, worker=index)
        for step in batch.steps:
            del self.ready[step]
        self._in_flight[index] = batch
        self.workers[index].is_idle = False
        if self._log is not None:
            self._log.decided("batch", now, [index, [step.step_id for step in batch.steps]])
        return batch

    def _replan(self, now: float) -> None:
        """Look anew at which deadlines can be kept."""
        self._replan_at = now + REPLAN_S
        jobs = [*self.queued.values(), *self.running.values()]
        given_up = unreachable_deadlines(jobs, now, speed=self.speed, num_workers=len(self.workers))
        for job in jobs:
            is_given_up = job.job_id in given_up
            if is_given_up != job.is_given_up:
                job.is_given_up = is_given_up
                job.order = order_of(job)


def _check_workers(workers: Iterable[WorkerSlot]) -> None:
    """Refuse pools in which steps of a cost class would wait for ever."""
    taken: dict[str, set[str]] = {}
    for worker in workers:
        taken.setdefault(worker.pool, set()).update(worker.cost_classes)
    for pool, classes in taken.items():
        if missing := {"small", "jumbo"} - classes:
            raise InputError(
                f"no worker of pool {pool} takes {missing.pop()} steps", field="workers", value=sorted(classes),
                allowed="each cost class by some worker of each pool",
            )  # fmt: skip
