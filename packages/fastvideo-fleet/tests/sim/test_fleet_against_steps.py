"""The lazy simulator against one that steps through every batch, fed with the same decisions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from fastvideo_fleet.control.registry import make_policy
from fastvideo_fleet.control.view import Decision, Signal
from fastvideo_fleet.fleet import calibrated_fleet
from fastvideo_fleet.sim.simulator import WorkerFailure, simulate
from fastvideo_fleet.traces import EventKind, TraceSettings, make_trace


class Recorder:
    """Passes a policy's decisions on and keeps them with their times and events."""

    def __init__(self, policy):
        self.policy, self.log = policy, []

    def begin(self, view):
        self.first = self.policy.begin(view)
        return self.first

    def decide(self, view, event):
        decision = self.policy.decide(view, event)
        copy = Decision(*(list(part) if isinstance(part, list) else part for part in vars_of(decision)))
        self.log.append((view.now_s, event, copy))
        return decision


def vars_of(decision):
    return [getattr(decision, name) for name in Decision.__slots__]


@dataclass
class Chunk:
    session: int
    worker: int
    asked: float
    done: float
    batch: int


@dataclass
class StepWorker:
    """One worker, one batch at a time."""

    members: dict = field(default_factory=dict)  # in the batch in flight, with the time since which it is asked for
    coming: list = field(default_factory=list)  # (ready, session, asked)
    leaving: set = field(default_factory=set)
    start: float = 0.0
    end: float = -1.0  # -1: no batch in flight
    held_since: float = 0.0


class Steps:
    """Everything spelled out, as slow as it may be."""

    def __init__(self, fleet, trace):
        self.fleet, self.trace = fleet, trace
        self.table = fleet.classes[0].chunk_s
        self.workers = {}
        self.available, self.fresh, self.place, self.queue = {}, {}, {}, {}
        self.chunks, self.waits, self.lost, self.seconds = [], [], [], 0.0

    def advance(self, now):
        for slot, worker in self.workers.items():
            while self.one_batch(slot, worker, now):
                pass

    def one_batch(self, slot, worker, now):
        if worker.end >= 0:
            if worker.end >= now:
                return False
            for session, asked in worker.members.items():
                self.chunks.append(Chunk(session, slot, asked, worker.end, len(worker.members)))
            worker.members = {session: worker.end for session in worker.members if session not in worker.leaving}
            worker.leaving = set()
            return self.begin(worker, worker.end)
        if worker.coming and min(worker.coming)[0] < now:
            return self.begin(worker, min(worker.coming)[0])
        return False

    def begin(self, worker, start):
        worker.members |= {session: asked for ready, session, asked in worker.coming if ready <= start}
        worker.coming = [one for one in worker.coming if one[0] > start]
        worker.start = start
        worker.end = start + self.table[len(worker.members)] if worker.members else -1.0
        return True

    def leave(self, session, now):
        worker = self.workers[self.place.pop(session)]
        if session in worker.members and session not in worker.leaving:
            worker.leaving.add(session)
            return worker.end, worker.end
        ((ready, _, asked),) = [one for one in worker.coming if one[1] == session]
        worker.coming = [one for one in worker.coming if one[1] != session]
        return max(ready, now), asked

    def happen(self, now, event):
        if event.signal == Signal.ACTIVE:
            self.fresh.setdefault(event.session, True)
            self.available.setdefault(event.session, now)
            self.queue[event.session] = now
        elif event.signal in (Signal.IDLE, Signal.DEPARTED):
            if event.session in self.place:
                free, _ = self.leave(event.session, now)
                self.available[event.session] = free + self.fleet.suspend_s
                self.fresh[event.session] = False
            elif event.session in self.queue:
                self.waits.append(now - self.queue.pop(event.session))
        elif event.signal == Signal.READY:
            pass
        elif event.signal == Signal.STOPPED:
            self.one_batch(event.worker, self.workers[event.worker], now + 1e-6)  # ends may differ by rounding
            worker = self.workers.pop(event.worker)
            self.seconds += now - worker.held_since
        elif event.signal == Signal.FAILED and event.worker in self.workers:
            self.fail(event.worker, now)

    def fail(self, slot, now):
        worker = self.workers.pop(slot)
        self.seconds += now - worker.held_since
        for session in worker.members:
            self.lost.append((session, now))
        for session, place in list(self.place.items()):
            if place == slot:
                del self.place[session]
                # What was lost is asked for since the lost batch began, or since its own first request.
                waiting = [asked for _, other, asked in worker.coming if other == session]
                self.queue[session] = waiting[0] if waiting else worker.members[session]
                self.available[session] = now
                if any(chunk.session == session for chunk in self.chunks):
                    self.fresh[session] = False

    def carry_out(self, now, decision):
        for slot in decision.start:
            self.workers[slot] = StepWorker(held_since=now)
        for slot in decision.cancel:
            self.seconds += now - self.workers.pop(slot).held_since
        for session, slot in decision.migrate:
            free, asked = self.leave(session, now)
            self.workers[slot].coming.append((free + self.fleet.migration_s, session, asked))
            self.place[session] = slot
            self.fresh[session] = self.fresh[session] and free != asked
        for session, slot in decision.place:
            ready = now
            if not self.fresh[session]:
                ready = max(now, self.available[session]) + self.fleet.resume_s
            self.workers[slot].coming.append((ready, session, self.queue.pop(session)))
            self.place[session] = slot

    def run(self, recorder):
        for slot in recorder.first:
            self.workers[slot] = StepWorker()
        for now, event, decision in recorder.log:
            self.advance(now)
            self.happen(now, event)
            self.carry_out(now, decision)
        end = self.trace.duration_s
        self.advance(end + 1e-9)
        self.seconds += sum(end - worker.held_since for worker in self.workers.values())
        for worker in self.workers.values():
            worker.coming = []
            worker.leaving = set(worker.members)
        self.advance(end + 100.0)


def both(policy, trace, fleet, **arguments):
    recorder = Recorder(make_policy(policy, **arguments.pop("policy_arguments", {})))
    sessions = {}

    def keep(view, event):
        sessions.update(view.sessions)

    result = simulate(trace, fleet, recorder, observer=keep, **arguments)
    steps = Steps(fleet, trace)
    steps.run(recorder)
    return result, steps, sessions


def fleet_of(name, max_gpus):
    """Return a fleet whose transfer times are no multiples of anything, so that nothing happens at the same moment."""
    return replace(calibrated_fleet(name, max_gpus), migration_s=0.023717, suspend_s=0.051337, resume_s=0.049791)


POLICIES = ("round-robin", "load-aware", "memory-aware", "turboserve", "turboserve-no-migration", "fastvideo")


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_chunks_at_the_same_times(policy):
    fleet = fleet_of("h20-1.3b", 6)
    trace = make_trace(TraceSettings(0.3, 21, 300.0))
    result, steps, _ = both(policy, trace, fleet)
    latencies = sorted(chunk.done - chunk.asked for chunk in steps.chunks)
    assert result.num_chunks == len(steps.chunks)
    assert result.worst_chunk_latency_s == pytest.approx(max([*latencies, *steps.waits]), abs=1e-6)
    assert result.mean_chunk_latency_s == pytest.approx(sum(latencies) / len(latencies), rel=1e-9)
    place = int(0.99 * len(latencies))
    last = min(place + 2, len(latencies) - 1)
    assert latencies[place - 2] - 1e-6 <= result.p99_chunk_latency_s <= latencies[last] + 1e-6
    assert result.gpu_hours * 3600 == pytest.approx(steps.seconds, rel=1e-9)
    assert result.max_sessions_on_worker == max(chunk.batch for chunk in steps.chunks)


@pytest.mark.parametrize("policy", ["turboserve", "fastvideo"])
def test_every_chunk_is_made_once_and_in_turn(policy):
    fleet = fleet_of("h20-7b", 6)
    trace = make_trace(TraceSettings(0.25, 8, 300.0))
    result, steps, sessions = both(policy, trace, fleet)
    by_session = {}
    for chunk in steps.chunks:
        by_session.setdefault(chunk.session, []).append(chunk)
    for session, chunks in by_session.items():
        assert sessions[session].num_chunks == len(chunks)
        chunks.sort(key=lambda chunk: chunk.done)
        for one, two in pairwise(chunks):
            start = two.done - fleet.classes[0].chunk_s[two.batch]
            assert one.done <= start + 1e-9, "a chunk is begun when the one before is done"
    assert result.num_chunks == sum(map(len, by_session.values()))
    assert result.num_migrations > 0


def test_slo_violations_are_the_late_chunks():
    fleet = fleet_of("h20-1.3b", 3)
    trace = make_trace(TraceSettings(0.2, 3, 300.0))
    result, steps, _ = both("load-aware", trace, fleet)
    limit = fleet.classes[0].chunk_s[-1]
    late = sum(chunk.done - chunk.asked > limit for chunk in steps.chunks) + sum(wait > limit for wait in steps.waits)
    assert result.slo_violations == pytest.approx(late, abs=2)  # the two round differently at the limit itself
    assert late > 20


@pytest.mark.parametrize("policy", ["load-aware", "fastvideo"])
def test_a_failed_worker_loses_the_chunks_in_flight_and_they_are_made_again(policy):
    fleet = fleet_of("h20-1.3b", 6)
    trace = make_trace(TraceSettings(0.3, 5, 240.0))
    failures = [WorkerFailure(100.3, 0), WorkerFailure(140.7, 1), WorkerFailure(141.2, 2)]
    result, steps, _ = both(policy, trace, fleet, failures=failures)
    assert steps.lost, "the failures hit batches in flight"
    assert result.num_chunks == len(steps.chunks)
    assert result.gpu_hours * 3600 == pytest.approx(steps.seconds, rel=1e-9)
    assert trace.kind[0] == EventKind.ARRIVE
