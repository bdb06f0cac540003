"""What a policy sees of the fleet, and what it may decide.

Workers are slots: a fixed number of them, some without a GPU.

Array legend: S = slots, C = classes, K = most sessions of any class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np

from fastvideo_fleet.fleet import FleetSpec

__all__ = [
    "DRAINING",
    "EMPTY_PERIOD_S",
    "OFF",
    "READY",
    "STARTING",
    "TIE_S",
    "Decision",
    "FleetEvent",
    "FleetView",
    "Policy",
    "SessionState",
    "SessionView",
    "Signal",
    "WorkerState",
]

EMPTY_PERIOD_S = 1e-9
"""Batch time of a worker without sessions, for arithmetic: it begins a batch whenever one is wanted."""


TIE_S = 1e-6
"""Who is ready just when a batch begins may miss it: plans keep this much away from such a tie."""


class WorkerState(IntEnum):
    """What a slot is doing."""

    OFF = 0
    STARTING = 1
    READY = 2
    DRAINING = 3


OFF, STARTING, READY, DRAINING = (int(state) for state in WorkerState)
"""The states as plain numbers: looking a member up takes longer than what is done with it."""


class SessionState(IntEnum):
    """What a session is doing: the paper's three states."""

    EXECUTION = 0
    """It has a place on a worker."""
    SUSPENDED = 1
    """It has none: its state is on the host, whether its user pauses or it waits for a worker."""
    TERMINATED = 2
    """It has ended, and nothing of it is kept."""


class Signal(IntEnum):
    """What a policy is called for."""

    ACTIVE = 0
    """A session became active: it arrived, came back, or lost its worker. It is in `waiting`."""
    IDLE = 1
    """A session went idle; it has left its worker."""
    DEPARTED = 2
    """A session departed; it has left its worker."""
    READY = 3
    """A worker finished starting."""
    STOPPED = 4
    """A draining worker is gone."""
    FAILED = 5
    """A worker died; its sessions are in `waiting`."""
    TICK = 6
    """The time that the policy asked for has come."""


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """Why a policy is called.

    Attributes:
        signal: What happened.
        session: The session, or -1.
        worker: The worker's slot, or -1.
    """

    signal: Signal
    session: int = -1
    worker: int = -1


@dataclass(slots=True, eq=False)
class SessionView:
    """A session that has arrived and not departed.

    Attributes:
        index: Its number.
        model: Index of its model.
        size: Its state's size, relative to the nominal one.
        slo_s: Most seconds that a chunk should take.
        tenant: Whose it is.
        worker: Slot that it is on; -1 if it is idle or waits.
        since_s: Since when its current chunk has been asked for.
        seated_s: When it was given its worker.
        available_s: From when its suspended state can be resumed.
        is_running: Whether it is in its worker's batches, rather than about to join them.
        is_fresh: Whether it has no state yet, so that nothing has to be resumed.
        has_ended: Whether it has departed.
        num_chunks: Chunks made for it, the one in flight included once the session has left the worker.
    """

    index: int
    model: int
    size: float
    slo_s: float
    tenant: str
    worker: int = -1
    since_s: float = 0.0
    seated_s: float = 0.0
    available_s: float = 0.0
    is_running: bool = False
    is_fresh: bool = True
    has_ended: bool = False
    num_chunks: int = 0

    @property
    def state(self) -> SessionState:
        """What the session is doing."""
        if self.has_ended:
            return SessionState.TERMINATED
        return SessionState.EXECUTION if self.worker >= 0 else SessionState.SUSPENDED


class FleetView:
    """The fleet at a moment. Policies read it; only the session manager writes.

    Attributes:
        spec: What the fleet is made of.
        now_s: The time.
        class_of: Class of each slot, int64 (S,).
        state: `WorkerState` of each slot, int8 (S,).
        count: Sessions that hold a place on each slot, int64 (S,).
        boundary_s: A time at which a batch ends on each slot, float64 (S,); batches repeat from there.
        period_s: Seconds of the batches after that, float64 (S,).
        ready_s: When a starting slot will be ready, float64 (S,).
        chunk_s: Batch times, float64 (C, K + 2); infinite beyond a class's own K.
        sessions: Sessions by index.
        on_worker: Sessions on each slot, in the order of their coming.
        ready_slots: Slots of each model that serve, int64.
        draining_slots: Slots of each model that drain, int64.
        num_seated: Sessions on all workers.
        load_sum: Sum over workers of count squared over K: the load that sessions see, summed over them.
        waiting: Active sessions without a worker, in the order of their coming.
        num_active: Active sessions of each model.
        num_idle: Idle sessions of each model.
    """

    __slots__ = (
        "boundary_s", "chunk_s", "class_of", "count", "draining_slots", "load_sum", "max_count", "model_of",
        "model_slots", "now_s", "num_active", "num_idle", "num_seated", "on_worker", "period_s", "price_of", "ready_s",
        "ready_slots", "sessions", "spec", "state", "waiting",
    )  # fmt: skip

    def __init__(self, spec: FleetSpec) -> None:
        num_slots = spec.num_slots
        sizes = [one.max_gpus for one in spec.classes]
        width = max(one.max_sessions for one in spec.classes) + 2
        self.spec = spec
        self.now_s = 0.0
        self.class_of = np.repeat(np.arange(len(sizes)), sizes)
        self.chunk_s = np.full((len(sizes), width), np.inf)
        for index, one in enumerate(spec.classes):
            self.chunk_s[index, : one.max_sessions + 1] = one.chunk_s
        self.state = np.zeros(num_slots, dtype=np.int8)
        self.count = np.zeros(num_slots, dtype=np.int64)
        self.boundary_s = np.zeros(num_slots)
        self.period_s = np.full(num_slots, EMPTY_PERIOD_S)
        self.ready_s = np.zeros(num_slots)
        self.max_count = np.array([one.max_sessions for one in spec.classes])[self.class_of]
        self.price_of = np.array([one.price_per_hour for one in spec.classes])[self.class_of]
        models = spec.models
        self.model_of = np.array([models.index(one.model) for one in spec.classes])[self.class_of]
        self.model_slots = tuple(np.flatnonzero(self.model_of == index) for index in range(len(models)))
        self.ready_slots = [slots[:0] for slots in self.model_slots]
        self.draining_slots = [slots[:0] for slots in self.model_slots]
        self.num_seated = 0
        self.load_sum = 0.0
        self.sessions: dict[int, SessionView] = {}
        self.on_worker: list[dict[int, None]] = [{} for _ in range(num_slots)]
        self.waiting: dict[int, None] = {}
        self.num_active = [0] * len(models)
        self.num_idle = [0] * len(models)

    def set_state(self, slot: int, state: int) -> None:
        """Change what a slot is doing."""
        self.state[slot] = state
        model = int(self.model_of[slot])
        slots = self.model_slots[model]
        states = self.state[slots]
        self.ready_slots[model] = slots[states == READY]
        self.draining_slots[model] = slots[states == DRAINING]

    def set_count(self, slot: int, count: int) -> None:
        """Change how many sessions hold a place on a slot."""
        before = int(self.count[slot])
        self.count[slot] = count
        self.num_seated += count - before
        self.load_sum += (count * count - before * before) / int(self.max_count[slot])

    def resume_delay_s(self, session: SessionView) -> float:
        """Return how long from now a session that has no worker needs before it can join a batch."""
        if session.is_fresh:
            return 0.0
        return max(session.available_s - self.now_s, 0.0) + self.spec.resume_s * session.size

    def leave_delay_s(self, session: SessionView) -> float:
        """Return how long from now a session on a worker needs before it can join a batch on another one."""
        to_boundary = self.next_boundary_s(session.worker) - self.now_s
        return to_boundary + self.spec.migration_s * session.size + TIE_S

    def next_boundary_s(self, slot: int) -> float:
        """Return when the batch in flight on a slot ends."""
        boundary, period = float(self.boundary_s[slot]), float(self.period_s[slot])
        late = self.now_s - boundary
        return boundary if late < 0 else boundary + (late // period + 1) * period


@dataclass(slots=True)
class Decision:
    """What to do, applied in the order of the fields.

    Attributes:
        recall: Draining slots that shall go on serving.
        start: Slots to start a worker on.
        cancel: Starting slots to give up.
        migrate: Sessions on workers, with their new slots.
        drain: Ready slots that shall take no more work and stop once they are empty.
        place: Waiting sessions, with their slots.
        wake_s: When to call the policy next, if nothing happens before; None for not.
    """

    recall: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    cancel: list[int] = field(default_factory=list)
    migrate: list[tuple[int, int]] = field(default_factory=list)
    drain: list[int] = field(default_factory=list)
    place: list[tuple[int, int]] = field(default_factory=list)
    wake_s: float | None = None


class Policy(Protocol):
    """A controller of the whole fleet."""

    def begin(self, view: FleetView) -> list[int]:
        """Return the slots whose workers are ready at time 0."""
        ...

    def decide(self, view: FleetView, event: FleetEvent) -> Decision:
        """Return what to do about an event; the view already shows it."""
        ...
