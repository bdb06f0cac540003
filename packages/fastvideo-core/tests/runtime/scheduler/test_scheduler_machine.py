"""The scheduler under random events in any legal order, beside a model of what must hold and a twin of it."""

from __future__ import annotations

import tempfile
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fastvideo_core.errors import InputError, QueueFullError, ResourceError
from fastvideo_core.runtime.scheduler.base import DEFAULT_CLASSES, Job, Limits, ReadyStep, SchedulerConfig, WorkerSlot
from fastvideo_core.runtime.scheduler.core import Scheduler
from fastvideo_core.runtime.scheduler.log import DecisionLog, replay

CONFIG = SchedulerConfig(max_running=4, max_queued=5, max_batch=3, jumbo_s=1.0)
LIMITS = Limits(memory_bytes=40, cache_blocks={"kv": 5}, transfer_bytes=10)
POOLS = {
    "one": (WorkerSlot(),),
    "two": (WorkerSlot(), WorkerSlot()),
    "classes": (WorkerSlot(cost_classes=frozenset({"small"})), WorkerSlot()),
}
JOB = st.tuples(
    st.sampled_from(sorted(DEFAULT_CLASSES)), st.sampled_from([None, 0.5, 3.0, 20.0]),
    st.sampled_from([0, 3, 8, 15, 30]), st.sampled_from([0, 2, 4, 11]), st.sampled_from([0, 0, 1, 3, 6]),
    st.sampled_from([0.0, 2.0, 9.0]),
)  # fmt: skip
"""Class, deadline, bytes of states, bytes of a step, blocks, seconds of work."""

STEP = st.tuples(
    st.integers(0, 3), st.sampled_from([0, 0, 0, 1]), st.sampled_from([0.1, 0.9, 3.0]),
    st.sampled_from([9, 9, 4, 2, 1]),
    st.integers(0, 4), st.sampled_from([False, False, True]), st.sampled_from([False, False, False, True]),
)  # fmt: skip
"""Of which job, group, seconds, most in a call, a figure, whether bound to a worker, whether a transfer."""


def predict(step, num_plans):
    return step.seconds * (0.4 + 0.6 * num_plans)


def can_batch(one, other):
    return abs(one.transfer_bytes - other.transfer_bytes) <= 2  # any figure that a step carries will do


class Machine(RuleBasedStateMachine):
    """Offers, runs and ends steps; `where` is what has become of each."""

    @initialize(pool=st.sampled_from(sorted(POOLS)), is_packed=st.booleans())
    def open(self, pool, is_packed):
        self.workers, self.is_packed = POOLS[pool], is_packed
        self.log = DecisionLog()
        options = {"workers": self.workers, "can_batch": can_batch if is_packed else None}
        self.scheduler = Scheduler(CONFIG, LIMITS, predict, log=self.log, **options)
        self.twin = Scheduler(CONFIG, LIMITS, predict, **options)
        self.now, self.num_jobs, self.num_decisions = 0.0, 0, 0
        self.waiting, self.started, self.twins = {}, {}, {}
        self.where, self.flights, self.links = {}, {}, []

    def both(self, name, one, other):
        """Tell the scheduler and its twin the same."""
        getattr(self.scheduler, name)(*one)
        getattr(self.twin, name)(*other)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.3, 1.0, 6.0]))
    def pass_time(self, seconds):
        self.now += seconds

    @rule(news=st.lists(JOB, min_size=1, max_size=4))
    def submit(self, news):
        for new in news:
            self.submit_one(*new)

    def submit_one(self, name, due_s, resident, peak, blocks, seconds):
        def make():
            job_id, due_at = f"j{self.num_jobs}", None if due_s is None else self.now + due_s
            needs = (resident, peak, {"kv": blocks}, seconds)
            return Job(job_id, DEFAULT_CLASSES[name], self.now, -1, due_at, *needs)

        self.num_jobs += 1
        job, twin = make(), make()
        if resident + peak * len(self.workers) > 40 or blocks > 5:
            error = ResourceError
        elif len(self.waiting) >= CONFIG.max_queued:
            error = QueueFullError
        else:
            self.both("submit", (job, self.now), (twin, self.now))
            self.waiting[job.job_id], self.twins[job.job_id] = job, twin
            return
        for scheduler, one in ((self.scheduler, job), (self.twin, twin)):
            with pytest.raises(ResourceError) as caught:
                scheduler.submit(one, self.now)
            assert type(caught.value) is error

    @precondition(lambda self: self.waiting or self.started)
    @rule(data=st.data())
    def submit_again(self, data):
        name = data.draw(st.sampled_from(sorted([*self.waiting, *self.started])))
        with pytest.raises(InputError, match="is running"):
            self.scheduler.submit(Job(name, DEFAULT_CLASSES["batch"], self.now), self.now)

    @rule()
    def start(self):
        starts = self.scheduler.start_jobs(self.now)
        assert [job.job_id for job in starts] == [job.job_id for job in self.twin.start_jobs(self.now)]
        for job in starts:
            self.started[job.job_id] = self.waiting.pop(job.job_id)
            assert self.started[job.job_id] is job

    @precondition(lambda self: self.started)
    @rule(news=st.lists(STEP, min_size=1, max_size=5))
    def offer(self, news):
        for new in news:
            self.offer_one(*new)

    def offer_one(self, number, group, seconds, most, figure, is_bound, is_transfer):
        job = self.started[sorted(self.started)[number % len(self.started)]]
        affinity = str(len(self.workers) - 1) if is_bound else ""
        patience_at = self.now + job.latency_class.patience_s

        def make(of):
            return ReadyStep(of, group, patience_at, seconds, job.peak_bytes, most, "main", affinity, figure)

        step, twin = make(job), make(self.twins[job.job_id])
        kind = "offer_transfer" if is_transfer else "offer"
        self.both(kind, (step, self.now), (twin, self.now))
        assert (step.step_id, twin.step_id) == (len(self.where), len(self.where))
        step.handle = twin
        self.where[step] = "link" if is_transfer else "ready"

    @rule()
    def run(self):
        before = {step for step, place in self.where.items() if place == "ready"}
        batch, twin = self.scheduler.next_batch(self.now), self.twin.next_batch(self.now)
        assert (batch is None) == (twin is None)
        if batch is None:
            free = [index for index in range(len(self.workers)) if index not in self.flights]
            assert not any(self.may_run(step, index) for step in before for index in free), "no worker idles in vain"
            return
        assert [step.handle for step in batch.steps] == list(twin.steps)
        assert batch.worker == twin.worker and batch.worker not in self.flights
        self.check_batch(batch, before)
        for step in batch.steps:
            self.where[step] = "running"
        self.flights[batch.worker] = batch

    def may_run(self, step, index):
        is_jumbo = step.seconds > CONFIG.jumbo_s
        return step.affinity in ("", str(index)) and (not is_jumbo or "jumbo" in self.workers[index].cost_classes)

    def check_batch(self, batch, before):
        head, size = batch.steps[0], len(batch.steps)
        assert set(batch.steps) <= before and len(set(batch.steps)) == size
        assert all(self.may_run(step, batch.worker) for step in batch.steps)
        assert {step.group for step in batch.steps} == {head.group}
        assert size <= min(CONFIG.max_batch, *(step.max_batch for step in batch.steps))
        assert not self.is_packed or all(can_batch(one, other) for one, other in combinations(batch.steps, 2))
        # Whoever has waited too long goes first, longest first: so every step's wait is bounded.
        there = [step for step in before if self.may_run(step, batch.worker)]
        overdue = [step.patience_at for step in there if step.patience_at <= self.now]
        if overdue:
            assert head.patience_at == min(overdue)
        else:
            assert head.job.order == min(step.job.order for step in there)

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), seconds=st.sampled_from([0.0, 0.2, 1.5]))
    def finish(self, data, seconds):
        worker = data.draw(st.sampled_from(sorted(self.flights)))
        self.both("finished", (worker, self.now, seconds), (worker, self.now, seconds))
        for step in self.flights.pop(worker).steps:
            self.where[step] = "done"

    @rule()
    def start_transfers(self):
        starts = self.scheduler.next_transfers(self.now)
        assert [step.handle for step in starts] == self.twin.next_transfers(self.now)
        assert all(self.where[step] == "link" for step in starts)
        for step in starts:
            self.where[step] = "moving"
        self.links += starts
        moving = [step.transfer_bytes for step in self.links]
        assert sum(moving) <= 10 or len([size for size in moving if size]) == 1

    @precondition(lambda self: self.links)
    @rule()
    def finish_transfer(self):
        step = self.links.pop(0)
        self.both("finished_transfer", (step, self.now), (step.handle, self.now))
        self.where[step] = "done"

    @precondition(lambda self: self.where)
    @rule(data=st.data())
    def retract(self, data):
        step = list(self.where)[data.draw(st.integers(0, len(self.where) - 1))]
        self.both("retract", (step, self.now), (step.handle, self.now))
        if self.where[step] in ("ready", "link"):
            self.where[step] = "retracted"

    @precondition(lambda self: self.waiting or self.started)
    @rule(data=st.data())
    def withdraw(self, data):
        name = data.draw(st.sampled_from(sorted([*self.waiting, *self.started])))
        self.both("withdraw", (name, self.now), (name, self.now))
        job = self.waiting.pop(name, None) or self.started.pop(name)
        for step, place in self.where.items():
            if step.job is job and place in ("ready", "link"):
                self.where[step] = "withdrawn"

    @invariant()
    def all_is_accounted_for(self):
        if not hasattr(self, "where"):
            return
        assert set(self.scheduler.ready) == {step for step, place in self.where.items() if place == "ready"}
        assert set(self.scheduler.transfers) == {step for step, place in self.where.items() if place == "link"}
        assert self.scheduler.queued == self.waiting and self.scheduler.running == self.started

    @invariant()
    def nobody_is_over_the_limits(self):
        if not hasattr(self, "where"):
            return
        assert len(self.started) <= CONFIG.max_running and len(self.waiting) <= CONFIG.max_queued
        on_device = {step.job for batch in self.flights.values() for step in batch.steps}
        held = {*self.started.values(), *on_device}
        resident = sum(job.resident_bytes for job in held)
        peak = max((job.peak_bytes for job in held), default=0)
        assert resident + peak * len(self.workers) <= 40
        assert sum(job.cache_blocks["kv"] for job in held) <= 5
        # At the worst, as if the worker that idles were given the largest step.
        assert resident + sum(max(batch.peak_bytes, 0) for batch in self.flights.values()) <= 40

    def teardown(self):
        if not hasattr(self, "where"):
            return
        self.drain()
        options = {"workers": self.workers, "has_can_batch": self.is_packed}
        num_decisions = replay(self.log.records, CONFIG, LIMITS, **options)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log"
            self.log.save(path)
            assert replay(DecisionLog.load(path), CONFIG, LIMITS, **options) == num_decisions

    def drain(self):
        """Let everything end: every job starts and every step runs, whatever has come before."""
        for _ in range(3 * (len(self.where) + self.num_jobs) + 3):
            for worker in tuple(self.flights):
                self.scheduler.finished(worker, self.now, 0.1)
                for step in self.flights.pop(worker).steps:
                    self.where[step] = "done"
            self.now += 0.1
            for job in self.scheduler.start_jobs(self.now):
                self.started[job.job_id] = self.waiting.pop(job.job_id)
            while (batch := self.scheduler.next_batch(self.now)) is not None:
                self.flights[batch.worker] = batch
            busy = {step.job.job_id for step, place in self.where.items() if place == "ready"}
            for name in [name for name in self.started if name not in busy]:
                self.scheduler.withdraw(name, self.now)
                del self.started[name]
        assert not self.waiting and not self.started and not self.flights
        assert "ready" not in self.where.values() and "running" not in self.where.values()


Machine.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestScheduler = Machine.TestCase
