"""The simulator: trace events and the fleet's own events in the order of time, each followed by a decision."""

from __future__ import annotations

import heapq
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fastvideo_fleet.control.view import OFF, READY, STARTING, FleetEvent, FleetView, Policy, Signal
from fastvideo_fleet.errors import FleetError
from fastvideo_fleet.fleet import FleetSpec
from fastvideo_fleet.sim.latencies import Latencies
from fastvideo_fleet.sim.manager import SessionManager
from fastvideo_fleet.sim.result import Series, SimulationResult
from fastvideo_fleet.traces.base import EventKind, Trace

__all__ = ["Observer", "WorkerFailure", "simulate"]

Observer = Callable[[FleetView, FleetEvent], None]
"""Called after each decision has been carried out, for tests and logs."""

_READY, _STOP, _FAIL, _TICK, _REPORT = range(5)
_TRACE_SIGNALS = (Signal.ACTIVE, Signal.ACTIVE, Signal.IDLE, Signal.DEPARTED)
"""What the policy is told, by `EventKind`."""


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A worker that dies.

    Attributes:
        time_s: When.
        worker: Its slot; nothing happens if no GPU is held for it then.
    """

    time_s: float
    worker: int


def simulate(
    trace: Trace,
    fleet: FleetSpec,
    policy: Policy,
    *,
    name: str = "",
    failures: Sequence[WorkerFailure] = (),
    bin_s: float = 10.0,
    observer: Observer | None = None,
) -> SimulationResult:
    """Run a policy on a trace.

    Args:
        trace: What the sessions do.
        fleet: What there is.
        policy: Who decides; one object serves one run.
        name: Name of the policy, for the result.
        failures: Workers that die.
        bin_s: Width of the bins of what happened over time.
        observer: Called after each decision.

    Returns:
        The figures; all but the decision times are the same in every run.

    Raises:
        FleetError: The trace asks for a model that the fleet does not have, or a failure names no slot.
        DecisionError: The policy broke a rule.
    """
    _check(trace, fleet, failures)
    return _Run(trace, fleet, policy, failures, bin_s, observer).run(name)


def _check(trace: Trace, fleet: FleetSpec, failures: Sequence[WorkerFailure]) -> None:
    known = set(fleet.models)
    for index, one in enumerate(trace.attributes):
        if one.model and one.model not in known:
            raise FleetError(
                f"session {trace.ids[index]} asks for a model that no worker holds",
                field="model",
                value=one.model,
                allowed=", ".join(fleet.models),
            )
    for failure in failures:
        if not 0 <= failure.worker < fleet.num_slots or failure.time_s < 0:
            allowed = f"a time of at least 0, and a worker from 0 to {fleet.num_slots - 1}"
            raise FleetError("no such failure", field="failure", value=failure, allowed=allowed)


@dataclass(slots=True)
class _Samples:
    """Figures at the ends of bins, and sums over time."""

    rows: list[tuple[float, int, int, float, int]] = field(default_factory=list)
    budget: list[tuple[float, int]] = field(default_factory=list)
    load_seconds: float = 0.0
    session_seconds: float = 0.0


class _Run:
    """One run's state."""

    def __init__(
        self,
        trace: Trace,
        fleet: FleetSpec,
        policy: Policy,
        failures: Sequence[WorkerFailure],
        bin_s: float,
        observer: Observer | None,
    ) -> None:
        self.trace = trace
        self.policy = policy
        self.observer = observer
        self.bin_s = bin_s
        self.view = FleetView(fleet)
        self.latencies = Latencies(fleet, bin_s=bin_s, duration_s=trace.duration_s)
        self.manager = SessionManager(self.view, self.latencies)
        self.decide_s = array("d")
        self.samples = _Samples()
        self.queue: list[tuple[float, int, int]] = [(one.time_s, _FAIL, one.worker) for one in failures]
        heapq.heapify(self.queue)
        self.wake_s = np.inf
        self.next_sample_s = bin_s

    def run(self, name: str) -> SimulationResult:
        """Run to the end and return the figures."""
        for slot in self.policy.begin(self.view):
            self.manager.power_on(slot, is_ready=True)
        self._note_budget()
        rows = zip(self.trace.time_s.tolist(), self.trace.session.tolist(), self.trace.kind.tolist(), strict=True)
        attributes, manager, arrive = self.trace.attributes, self.manager, int(EventKind.ARRIVE)
        handlers = {
            int(EventKind.ACTIVATE): manager.activate,
            int(EventKind.IDLE): manager.idle,
            int(EventKind.DEPART): manager.depart,
        }
        for time_s, session, kind in rows:
            if self.queue and self.queue[0][0] <= time_s:
                self._fleet_events(time_s)
            self._move_to(time_s)
            if kind == arrive:
                manager.arrive(session, attributes[session])
            else:
                handlers[kind](session)
            self._decide(FleetEvent(_TRACE_SIGNALS[kind], session))
        self._fleet_events(self.trace.duration_s)
        self._move_to(self.trace.duration_s)
        manager.finish(self.trace.duration_s)
        return self._result(name)

    def _fleet_events(self, until_s: float) -> None:
        queue = self.queue
        while queue and queue[0][0] <= until_s:
            if queue[0][0] == until_s and queue[0][1] == _REPORT:
                return  # what the trace does at the same moment comes first: it may still join the batch
            time_s, kind, subject = heapq.heappop(queue)
            if kind == _TICK and time_s != self.wake_s:
                continue  # another one was asked for since
            self._move_to(time_s)
            event = self._happens(kind, subject)
            if event is not None:
                self._decide(event)

    def _happens(self, kind: int, slot: int) -> FleetEvent | None:
        """Let one of the fleet's own events happen; return what the policy is told, if anything."""
        view, manager = self.view, self.manager
        if kind == _READY and view.state[slot] == STARTING and view.ready_s[slot] <= view.now_s:
            manager.make_ready(slot)
            return FleetEvent(Signal.READY, worker=slot)
        if kind == _STOP and manager.stop(slot):
            return FleetEvent(Signal.STOPPED, worker=slot)
        if kind == _FAIL and view.state[slot] != OFF:
            manager.fail(slot)
            return FleetEvent(Signal.FAILED, worker=slot)
        if kind == _REPORT:
            manager.report(slot)
        if kind == _TICK:
            self.wake_s = np.inf
            return FleetEvent(Signal.TICK)
        return None

    def _decide(self, event: FleetEvent) -> None:
        start = time.thread_time()
        decision = self.policy.decide(self.view, event)
        self.decide_s.append(time.thread_time() - start)
        manager, now_s = self.manager, self.view.now_s
        manager.apply(decision)
        for slot in manager.started:
            heapq.heappush(self.queue, (float(self.view.ready_s[slot]), _READY, slot))
        for time_s, slot in manager.missed:
            heapq.heappush(self.queue, (time_s, _REPORT, slot))
        manager.missed.clear()
        for stop_s, slot in manager.stopping:
            heapq.heappush(self.queue, (stop_s, _STOP, slot))
        if manager.started or manager.stopping or decision.cancel or event.worker >= 0:
            manager.started.clear()
            manager.stopping.clear()
            self._note_budget()
        if decision.wake_s is not None and decision.wake_s != self.wake_s:
            self.wake_s = max(decision.wake_s, now_s)
            heapq.heappush(self.queue, (self.wake_s, _TICK, 0))
        if self.observer is not None:
            self.observer(self.view, event)

    def _move_to(self, time_s: float) -> None:
        view, samples = self.view, self.samples
        step = time_s - view.now_s
        if step > 0:
            while self.next_sample_s <= time_s:
                self._sample(self.next_sample_s)
                self.next_sample_s += self.bin_s
            samples.load_seconds += step * view.load_sum
            samples.session_seconds += step * view.num_seated
            view.now_s = time_s

    def _sample(self, time_s: float) -> None:
        view = self.view
        serving = view.state >= READY
        places = int(view.max_count[serving].sum())
        load = float(view.count.sum()) / places if places else 0.0
        held = int(np.count_nonzero(view.state))
        busy = view.count > 0
        longest = float(view.chunk_s[view.class_of[busy], view.count[busy]].max()) if busy.any() else 0.0
        index = min(int(time_s // self.bin_s) - 1, len(self.latencies.worst_by_bin) - 1)
        bins = self.latencies.worst_by_bin
        bins[index] = max(bins[index], longest)
        self.samples.rows.append((time_s, sum(view.num_active), held, load, self.manager.num_migrations))

    def _note_budget(self) -> None:
        held = int(np.count_nonzero(self.view.state))
        budget = self.samples.budget
        if not budget or budget[-1][1] != held:
            budget.append((self.view.now_s, held))

    def _result(self, name: str) -> SimulationResult:
        latencies, manager, samples = self.latencies, self.manager, self.samples
        seconds = manager.held_seconds(self.trace.duration_s)
        prices = [one.price_per_hour for one in self.view.spec.classes]
        times = np.frombuffer(self.decide_s) if len(self.decide_s) else np.zeros(1)
        rows = np.array(samples.rows, dtype=np.float64).reshape(len(samples.rows), 5)
        worst = np.array(latencies.worst_by_bin[: len(rows)])
        counts = [n for row in latencies.steady for n, k in enumerate(row) if k]
        return SimulationResult(
            policy=name,
            worst_chunk_latency_s=latencies.worst_s(),
            p99_chunk_latency_s=latencies.quantile_s(0.99),
            mean_chunk_latency_s=latencies.mean_s(),
            worst_batch_s=latencies.worst_steady_s(),
            worst_queue_and_batch_s=latencies.worst_without_boundary_s(),
            worst_unserved_s=max(latencies.unserved, default=0.0),
            gpu_cost=sum(price * part / 3600 for price, part in zip(prices, seconds, strict=True)),
            gpu_hours=sum(seconds) / 3600,
            num_chunks=latencies.num_chunks,
            num_migrations=manager.num_migrations,
            num_suspends=manager.num_suspends,
            num_starts=manager.num_starts,
            max_sessions_on_worker=max(counts, default=0),
            slo_violations=latencies.num_violations,
            experienced_utilization=samples.load_seconds / samples.session_seconds if samples.session_seconds else 0.0,
            decide_ms_p50=1e3 * float(np.quantile(times, 0.5)),
            decide_ms_p99=1e3 * float(np.quantile(times, 0.99)),
            series=Series(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3], worst, rows[:, 4]),
            budget=tuple(samples.budget),
        )
