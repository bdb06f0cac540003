"""The session manager: sessions are executing, suspended or terminated, and every move is checked."""

from __future__ import annotations

from fastvideo_fleet.control.view import (
    DRAINING,
    OFF,
    READY,
    STARTING,
    Decision,
    FleetView,
    SessionView,
    WorkerState,
)
from fastvideo_fleet.errors import DecisionError
from fastvideo_fleet.sim.latencies import Latencies
from fastvideo_fleet.sim.worker import Worker
from fastvideo_fleet.traces.base import SessionAttributes

__all__ = ["SessionManager"]


class SessionManager:
    """Sessions and workers of one run.

    Attributes:
        view: What policies see.
        latencies: Where chunks are counted.
        num_migrations: Moves from worker to worker.
        num_suspends: Moves from worker to host.
        num_starts: Workers started, those of time 0 not counted.
        gpu_seconds: For each class, seconds that its stopped workers were held.
        started: Slots that have begun to start.
        missed: Slots whose batches after a time are not all alike, with that time: what they do then has to be shown.
        stopping: Slots that are empty since they drained, with the time from when they are gone.
    """

    def __init__(self, view: FleetView, latencies: Latencies) -> None:
        self.view = view
        self.latencies = latencies
        self.num_migrations = 0
        self.num_suspends = 0
        self.num_starts = 0
        self.gpu_seconds = [0.0] * len(view.spec.classes)
        self.stopping: list[tuple[float, int]] = []
        self.started: list[int] = []
        self.missed: list[tuple[float, int]] = []
        self._workers: list[Worker | None] = [None] * view.spec.num_slots
        self._since_s = [0.0] * view.spec.num_slots
        self._models = {name: index for index, name in enumerate(view.spec.models)}
        self._limits = [
            max(one.chunk_s[-1] for one in view.spec.classes if one.model == name) for name in view.spec.models
        ]

    # Workers

    def power_on(self, slot: int, *, is_ready: bool = False) -> None:
        """Hold a GPU for a slot; it starts, or is ready at once."""
        view = self.view
        if view.state[slot] != OFF:
            raise DecisionError(f"slot {slot} is started, but it is {WorkerState(int(view.state[slot])).name}")
        self._since_s[slot] = view.now_s
        if is_ready:
            self.make_ready(slot)
            return
        view.set_state(slot, STARTING)
        view.ready_s[slot] = view.now_s + view.spec.classes[view.class_of[slot]].start_s
        self.num_starts += 1
        self.started.append(slot)

    def make_ready(self, slot: int) -> None:
        """Let a slot serve."""
        self._workers[slot] = Worker(slot, self.view, self.latencies)
        self.view.set_state(slot, READY)

    def report(self, slot: int) -> None:
        """Show what a slot does now."""
        worker = self._workers[slot]
        if worker is not None:
            worker.advance(self.view.now_s, is_last=True)
            self._watch(slot, worker)

    def _watch(self, slot: int, worker: Worker) -> None:
        time_s = worker.unclear_after_s()
        if time_s is not None:
            self.missed.append((time_s, slot))

    def stop(self, slot: int) -> bool:
        """Give a drained slot's GPU back, unless it was recalled or still works; say whether it was."""
        view = self.view
        if view.state[slot] != DRAINING or view.on_worker[slot]:
            return False
        worker = self._worker(slot)
        worker.advance(view.now_s, is_last=True)
        if worker.num_in_flight:
            return False  # it was recalled, and drained once more; another call will come
        self._power_off(slot, view.now_s)
        return True

    def _power_off(self, slot: int, at_s: float) -> None:
        self.gpu_seconds[int(self.view.class_of[slot])] += at_s - self._since_s[slot]
        self._workers[slot] = None
        self.view.set_state(slot, OFF)

    def fail(self, slot: int) -> None:
        """Lose a worker: its sessions wait for another, and go on from their last chunk."""
        view = self.view
        if view.state[slot] in (OFF, STARTING):
            if view.state[slot] == STARTING:
                self._power_off(slot, view.now_s)
            return
        worker = self._advanced(slot)
        began, stranded, departed = worker.fail()
        for session in departed:
            if session.worker >= 0:  # it was about to move; its state went with the source
                session.since_s = began
                self._worker(session.worker).rejoin(session, view.now_s + view.spec.resume_s * session.size)
        view.on_worker[slot].clear()
        for session in sorted(stranded, key=lambda one: one.index):
            session.worker = -1
            session.is_fresh = session.is_fresh and session.num_chunks == 0
            session.available_s = view.now_s
            view.waiting[session.index] = None
        self._power_off(slot, view.now_s)

    def held_seconds(self, end_s: float) -> list[float]:
        """Return the seconds that GPUs were held until `end_s`, by class."""
        totals = list(self.gpu_seconds)
        for slot in range(self.view.spec.num_slots):
            if self.view.state[slot] != OFF:
                totals[int(self.view.class_of[slot])] += end_s - self._since_s[slot]
        return totals

    # Sessions

    def arrive(self, index: int, attributes: SessionAttributes) -> None:
        """Take in a session, which is active.

        Raises:
            DecisionError: No worker of the fleet holds its model.
        """
        view = self.view
        model = self._models.get(attributes.model) if attributes.model else 0
        if model is None:
            raise DecisionError(f"session {index} needs model {attributes.model!r}, which the fleet does not have")
        size = attributes.state_bytes / view.spec.state_bytes if attributes.state_bytes else 1.0
        limit = attributes.slo_s or self._limits[model]
        session = SessionView(index, model, size, limit, attributes.tenant, since_s=view.now_s)
        view.sessions[index] = session
        view.waiting[index] = None
        view.num_active[model] += 1

    def activate(self, index: int) -> None:
        """Wake an idle session."""
        view = self.view
        session = view.sessions[index]
        session.since_s = view.now_s
        view.waiting[index] = None
        view.num_active[session.model] += 1
        view.num_idle[session.model] -= 1

    def idle(self, index: int) -> None:
        """Suspend a session: its state goes to the host."""
        view = self.view
        session = view.sessions[index]
        had_worker = session.worker >= 0
        free_s = self._release(session)
        if had_worker:
            self.num_suspends += 1
            session.available_s = free_s + view.spec.suspend_s * session.size
            session.is_fresh = False
        view.num_active[session.model] -= 1
        view.num_idle[session.model] += 1

    def depart(self, index: int) -> SessionView:
        """End a session."""
        view = self.view
        session = view.sessions[index]
        is_active = session.worker >= 0 or index in view.waiting
        self._release(session)
        (view.num_active if is_active else view.num_idle)[session.model] -= 1
        del view.sessions[index]
        session.has_ended = True
        return session

    def _release(self, session: SessionView) -> float:
        """Take a session off its worker, or out of the queue; return when its state is free."""
        view = self.view
        slot = session.worker
        if slot < 0:
            if session.index in view.waiting:
                del view.waiting[session.index]
                self.latencies.add_unserved(view.now_s - session.since_s, view.now_s, session.slo_s)
            return view.now_s
        free_s = self._advanced(slot).leave(session)
        del view.on_worker[slot][session.index]
        session.worker = -1
        self._stop_if_empty(slot)
        return free_s

    # Decisions

    def apply(self, decision: Decision) -> None:
        """Carry out a decision.

        Raises:
            DecisionError: It breaks a rule.
        """
        view = self.view
        for slot in decision.recall:
            self._expect(slot, DRAINING, "recalled")
            view.set_state(slot, READY)
        for slot in decision.start:
            self.power_on(slot)
        for slot in decision.cancel:
            self._expect(slot, STARTING, "given up")
            self._power_off(slot, view.now_s)
        for index, slot in decision.migrate:
            self._migrate(view.sessions[index], slot)
        for slot in decision.drain:
            self._expect(slot, READY, "drained")
            view.set_state(slot, DRAINING)
            self._stop_if_empty(slot)
        for index, slot in decision.place:
            self._place(view.sessions[index], slot)

    def _place(self, session: SessionView, slot: int) -> None:
        if session.index not in self.view.waiting:
            raise DecisionError(f"session {session.index} is placed, but it does not wait")
        del self.view.waiting[session.index]
        delay_s = self.view.resume_delay_s(session)
        self._seat(session, slot, self.view.now_s + delay_s)

    def _migrate(self, session: SessionView, slot: int) -> None:
        view = self.view
        source = session.worker
        if source < 0 or source == slot:
            raise DecisionError(f"session {session.index} is moved from slot {source} to slot {slot}")
        worker = self._advanced(source)
        is_member = worker.is_member(session.index)
        free_s = worker.leave(session)
        del view.on_worker[source][session.index]
        if is_member:
            session.since_s = free_s
            session.is_fresh = False
        self.num_migrations += 1
        self._seat(session, slot, free_s + view.spec.migration_s * session.size)
        self._stop_if_empty(source)

    def _seat(self, session: SessionView, slot: int, ready_s: float) -> None:
        view = self.view
        self._expect(slot, READY, f"given session {session.index}")
        if int(view.count[slot]) >= int(view.max_count[slot]):
            raise DecisionError(f"slot {slot} is given session {session.index}, but it is full")
        if int(view.model_of[slot]) != session.model:
            raise DecisionError(f"slot {slot} is given session {session.index}, which needs another model")
        worker = self._advanced(slot)
        worker.join(session, ready_s)
        self._watch(slot, worker)
        session.worker = slot
        session.seated_s = view.now_s
        view.on_worker[slot][session.index] = None

    def _stop_if_empty(self, slot: int) -> None:
        view = self.view
        if view.state[slot] == DRAINING and not view.on_worker[slot]:
            worker = self._advanced(slot)
            self.stopping.append((max(worker.boundary_s if worker.num_in_flight else 0.0, view.now_s), slot))

    def _expect(self, slot: int, state: int, what: str) -> None:
        found = int(self.view.state[slot])
        if found != state:
            raise DecisionError(f"slot {slot} is {what}, but it is {WorkerState(found).name}")

    def _worker(self, slot: int) -> Worker:
        worker = self._workers[slot]
        assert worker is not None, "a slot that serves has a worker"
        return worker

    def _advanced(self, slot: int) -> Worker:
        worker = self._worker(slot)
        worker.advance(self.view.now_s)
        return worker

    def finish(self, end_s: float) -> None:
        """End the run: active sessions leave, batches in flight are finished, waits that never ended are counted."""
        self.view.now_s = end_s
        for session in list(self.view.sessions.values()):
            self._release(session)
        for slot, worker in enumerate(self._workers):
            if worker is not None:
                self._advanced(slot).run_out()
