"""What an engine does for its sessions: makes them, starts and ends their legs, keeps count of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from fastvideo_core.cache import CachePools
from fastvideo_core.card import LoopSpec, ModelCard, resolve_ref
from fastvideo_core.errors import InputError, LoopMismatchError, SessionLimitError
from fastvideo_core.loop.chunks import fork_state
from fastvideo_core.program.base import ModelLoopNode, TensorEdge
from fastvideo_core.request import session_events
from fastvideo_core.request.base import new_request_id
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.runtime.accept import check_fits, make_job
from fastvideo_core.runtime.active import Active
from fastvideo_core.runtime.control import ControlPlane
from fastvideo_core.runtime.durable.base import RunningNode
from fastvideo_core.runtime.estimate import estimate_request
from fastvideo_core.runtime.host import check_request
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.prepare import PreparedRequest
from fastvideo_core.runtime.pricing import Pricing
from fastvideo_core.runtime.run import RequestRun
from fastvideo_core.runtime.scheduler.core import Scheduler
from fastvideo_core.runtime.sessions.base import SessionLimits, SessionOptions, SessionState
from fastvideo_core.runtime.sessions.marks import Mark, Place
from fastvideo_core.runtime.sessions.moving import MovedSession
from fastvideo_core.runtime.sessions.parked import (
    FiledState,
    HeldState,
    ParkedState,
    hold,
    pack,
    read_parked,
    remove_parked,
    unpack,
    write_parked,
)
from fastvideo_core.runtime.sessions.session import Session
from fastvideo_core.runtime.sessions.side import Beside, SessionSide

__all__ = ["EngineParts", "SessionHost", "makes_streams", "stream_task"]

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What sessions use of an engine.

    Attributes:
        instance: Returns the resident model; raises `ResourceError` once the engine is closed.
        control: The control plane.
        scheduler: The scheduler, on the control plane's thread only.
        caches: The card's caches.
        pricing: Prices steps.
    """

    instance: Callable[[], ModelInstance]
    control: ControlPlane
    scheduler: Scheduler
    caches: CachePools
    pricing: Pricing


class SessionHost:
    """The sessions of an engine. May be used from any thread.

    Args:
        parts: The engine.
        limits: How many there may be.
    """

    def __init__(self, parts: EngineParts, limits: SessionLimits) -> None:
        self._parts = parts
        self._limits = limits
        self._lock = threading.RLock()
        self._sessions: dict[str, Session] = {}
        self._worker = ThreadPoolExecutor(1, "fastvideo-sessions")

    @property
    def sessions(self) -> tuple[Session, ...]:
        """Those that have not ended."""
        with self._lock:
            return tuple(self._sessions.values())

    @property
    def is_control_thread(self) -> bool:
        """Whether the caller is on the control plane's thread, which must not wait."""
        return self._parts.control.is_own_thread

    def open(
        self,
        prepared: PreparedRequest,
        options: SessionOptions,
        *,
        parked: ParkedState | None = None,
    ) -> Session:
        """Make a session, and begin it.

        Args:
            prepared: What `prepare_request` has made of its request.
            options: How it runs.
            parked: Where it goes on, in place of the beginning.

        Raises:
            InputError: Its id is in use, or the request is not valid for the engine's card.
            LoopMismatchError: The task makes no stream.
            SessionLimitError: As many as are allowed are there.
            StateError: The parked state is not one of the card.
            ResourceError: The engine is closed, or there could never be a place for it.
        """
        instance = self._parts.instance()
        chosen = _only_stream(prepared)
        if parked is None:
            return self._open(chosen, options, None, Place(), None)
        scope = CancelScope("request", chosen.request.request_id)
        held = unpack(parked, instance.card)
        return self._open(chosen, options, _renamed(held.placed(instance.device), scope), held.place, None)

    def install(self, moved: MovedSession, options: SessionOptions, *, seen: int) -> Session:
        """Make a session that has come from elsewhere, frozen; see `Session.unfreeze`.

        Args:
            moved: The session.
            options: How it runs.
            seen: Pieces of media that its viewer has.

        Raises:
            InputError: Its id is in use, or its request is not valid for the engine's card.
            SessionLimitError: As many as are allowed are there.
            StateError: Its state is not one of the card.
        """
        instance = self._parts.instance()
        prepared = _only_stream(moved.prepared)
        check_fits(prepared, instance)
        held = None if moved.parked is None else unpack(moved.parked, instance.card)
        place = Place() if held is None else held.place
        session = self._made(prepared, options, place, None, is_suspended=True)
        session.installed(held)
        session.side.log.extend(moved.log)
        session.side.is_paused = moved.is_paused
        session.side.media.num_seen = seen
        session.side.media.give_again(session.node.node_id, moved.pending)
        session.outbox.begin_at(moved.pending[0].start_s if moved.pending else place.media_s)
        return session

    def fork(
        self, session: Session, chunk: int | None, session_id: str | None, options: SessionOptions | None
    ) -> Session:
        """Make a session that goes on from the beginning of another's chunk; see `Session.fork`."""
        name = session_id or new_request_id()
        prepared = replace(session.prepared, request=session.prepared.request.model_copy(update={"request_id": name}))
        mark, loop_id = self._mark(session, chunk)
        node = _renamed(RunningNode(loop_id, mark.state, mark.place.num_steps), CancelScope("request", name))
        return self._open(prepared, options or session.options, node, mark.place, session.session_id)

    def snapshot(self, session: Session, chunk: int | None) -> ParkedState:
        """Return the state at the beginning of a chunk; see `Session.snapshot`."""
        return self._packed_mark(session, *self._mark(session, chunk))

    def _packed_mark(self, session: Session, mark: Mark, loop_id: str) -> ParkedState:
        return pack(session.node.node_id, hold(RunningNode(loop_id, mark.state, mark.place.num_steps), mark.place))

    def captured(self, session: Session) -> tuple[ParkedState | None, Beside]:
        """Return a session's state and what belongs to it besides; see `Session.captured`."""
        side, node_id = session.side, session.node.node_id
        with session.lock:
            parked = session.parked
        if parked is not None:
            packed = read_parked(parked.path) if isinstance(parked, FiledState) else pack(node_id, parked)
            return packed, side.beside(parked.place)

        def look() -> tuple[Mark | None, Beside]:
            newest = side.marks.newest
            return newest, side.beside(Place() if newest is None else newest.place)

        mark, beside = self.call(look)
        if mark is None:
            return None, Beside((), (*beside.log, *beside.waiting), ())
        return self._packed_mark(session, mark, session.node.loop), beside

    def resume(self, session: Session) -> None:
        """Begin the next leg of a suspended session; the caller holds its lock.

        Raises:
            SessionLimitError: As many as are allowed are in execution.
            ResourceError: The engine is closed.
        """
        instance = self._parts.instance()
        parked = session.parked
        self._check_live()
        if parked is None:
            self._begin(session, instance, None, Place())
            return
        self._begin(session, instance, self._placed(parked), parked.place)
        _remove_file(session)

    def park(self, session: Session) -> None:
        """Keep the state of a session whose leg has ended, where its options say; not on the control plane."""
        assert session.side.parked is not None, "a leg that is suspended has parked its state"
        held = hold(*session.side.parked)
        num_bytes, path = held.num_bytes, _file_of(session)
        if path is None or session.side.stop == "moving":
            session.suspended(held, num_bytes)
            return
        write_parked(pack(session.node.node_id, held), path)
        session.suspended(FiledState(path, held.place), num_bytes)

    def check_can_suspend(self, session: Session) -> None:
        """Refuse to suspend one more session than is allowed.

        Raises:
            SessionLimitError: As many are.
        """
        if session.state is not SessionState.SUSPEND and not self._may_suspend():
            raise SessionLimitError(f"{self._limits.max_suspended} sessions are suspended; no more are allowed")

    def check_text(self, session: Session, text: str) -> None:
        """Let the loops refuse a prompt as they would a request's.

        Raises:
            InputError: It is not allowed.
        """
        prepared = session.prepared
        inputs = prepared.card.task(prepared.request.task).inputs
        name = next(name for name, spec in inputs.items() if spec.modality == "text")
        check_request(replace(prepared, inputs={**prepared.inputs, name: text}), self._parts.instance().view)

    def wake(self, leg: Active) -> None:
        """Let a leg look at what has come from outside, soon."""
        self._parts.control.notify(lambda: self._parts.control.wake(leg))

    def stop(self, leg: Active) -> None:
        """Let a leg end at its next boundary, soon; one that has not started, and knows where it begins, at once."""

        def stop() -> None:
            side = leg.run.outside
            if not leg.run.started and isinstance(side, SessionSide) and side.parked is not None:
                leg.run.cancel.cancel(leg.run.scope, "stopped before it began")
            self._parts.control.wake(leg)

        self._parts.control.notify(stop)

    def call(self, function: Callable[[], _T]) -> _T:
        """Run a function on the control plane, and return what it returns."""
        return self._parts.control.call(function)

    def later(self, function: Callable[[], None]) -> None:
        """Run a function on a thread of the sessions' own."""
        with suppress(RuntimeError):  # the engine is closed, so that nothing comes of it any more
            self._worker.submit(function)

    def log(self, message: str) -> None:
        """Write a line for whoever runs the engine."""
        _LOG.warning("%s", message)

    def forget(self, session: Session) -> None:
        """Take note that a session has ended."""
        with self._lock:
            self._sessions.pop(session.session_id, None)
        _remove_file(session)

    def close(self) -> None:
        """End all sessions, before the control plane is closed."""
        for session in self.sessions:
            session.close()
        self._worker.shutdown()

    def _open(
        self,
        prepared: PreparedRequest,
        options: SessionOptions,
        node: RunningNode | None,
        place: Place,
        parent: str | None,
    ) -> Session:
        instance = self._parts.instance()
        check_fits(prepared, instance)
        warnings = check_request(prepared, instance.view) if node is None else ()
        session = self._made(prepared, options, place, parent)
        for message in warnings:
            session.side.events.warning(message)
        try:
            self._begin(session, instance, node, place)
        except BaseException:
            self.forget(session)
            raise
        return session

    def _made(
        self,
        prepared: PreparedRequest,
        options: SessionOptions,
        place: Place,
        parent: str | None,
        *,
        is_suspended: bool = False,
    ) -> Session:
        """Return a session that is counted, and has not begun."""
        with self._lock:
            self._check_new(prepared.request.request_id)
            if not is_suspended:
                self._check_live()
            session = Session(self, prepared, options, place)
            self._sessions[session.session_id] = session
        session.side.may_suspend = self._may_suspend
        session.side.events.emit(
            session_events.SessionCreated,
            card=prepared.card.model_id,
            task=prepared.request.task,
            parameters=prepared.parameters.to_json(),
            parent=parent,
            chunk=place.chunk,
        )
        return session

    def _begin(self, session: Session, instance: ModelInstance, node: RunningNode | None, place: Place) -> None:
        """Start a leg."""
        side = session.side
        side.place, side.parked = place, None if node is None else (node, place)
        run = RequestRun(session.prepared, instance, _unheard, slabs=self._parts.caches.slabs, outside=side)
        leg = Active(run, make_job(session.prepared, self._parts.scheduler.config))
        if node is not None:
            run.restore({side.node_id: node}, instance)
        scheduler = self._parts.scheduler
        side.renew = lambda deadline_at, seconds: scheduler.renew(leg.job, deadline_at, seconds, time.monotonic())
        session.begin(leg, lambda: self.call(lambda: self._accept(session, leg, instance)))

    def _accept(self, session: Session, leg: Active, instance: ModelInstance) -> None:
        """Say what a leg needs, which is the same for all of a session's, and hand it to the scheduler."""
        if session.estimate is None:
            pricing = self._parts.pricing
            session.estimate = estimate_request(session.prepared, instance.view, pricing, leg.run.run_hooks)
        estimate, job, history = session.estimate, leg.job, session.side.marks.num_past
        job.resident_bytes, job.peak_bytes = estimate.resident_bytes, estimate.peak_bytes
        job.cache_blocks = {
            name: count + history * estimate.chunk_blocks.get(name, 0) for name, count in estimate.cache_blocks.items()
        }
        self._parts.control.accept(leg)

    def _mark(self, session: Session, chunk: int | None) -> tuple[Mark, str]:
        """Return the beginning of a chunk, and the loop that it is of.

        Raises:
            ChunkGoneError: It is kept no longer.
        """
        with session.lock:
            parked = session.parked
        if parked is None:
            return self.call(lambda: session.side.marks.find(chunk)), session.node.loop
        if chunk is not None and chunk != parked.place.chunk:
            session.side.marks.find(chunk)
        return Mark(parked.place, self._placed(parked).state), session.node.loop

    def _placed(self, parked: HeldState | FiledState) -> RunningNode:
        """Return the state of a suspended session, from wherever it is, such that it can run."""
        instance = self._parts.instance()
        held = unpack(read_parked(parked.path), instance.card) if isinstance(parked, FiledState) else parked
        return held.placed(instance.device)

    def _check_new(self, session_id: str) -> None:
        if session_id in self._sessions:
            raise InputError("a session of this id is there", field="session_id", value=session_id)
        if len(self._sessions) >= self._limits.max_total:
            raise SessionLimitError(f"{len(self._sessions)} sessions are there; allowed: {self._limits.max_total}")

    def _check_live(self) -> None:
        num_live = sum(one.state is SessionState.EXECUTION for one in self.sessions)
        if num_live >= self._limits.max_live:
            raise SessionLimitError(
                f"{num_live} sessions are in execution; allowed: {self._limits.max_live}; suspend or close one"
            )

    def _may_suspend(self) -> bool:
        num_suspended = sum(one.state is SessionState.SUSPEND for one in self.sessions)
        return num_suspended < self._limits.max_suspended


def makes_streams(spec: LoopSpec) -> bool:
    """Tell whether a loop makes a stream chunk by chunk; see `fastvideo_core.loop.chunks`."""
    return hasattr(resolve_ref(spec.loop), "boundary")


def stream_task(card: ModelCard, *, has_image: bool = False) -> str:
    """Return the task of a card that makes streams: the default one if it does, else the first.

    Raises:
        LoopMismatchError: None does.
    """
    tasks = sorted(card.capabilities.tasks, key=lambda name: name != card.capabilities.default_task)
    for name in tasks:
        program = resolve_ref(card.task(name).program)
        takes_image = any(spec.modality == "image" for spec in card.task(name).inputs.values())
        loops = [node.loop for node in program.nodes if isinstance(node, ModelLoopNode)]
        if any(makes_streams(card.loops[loop]) for loop in loops) and takes_image >= has_image:
            return name
    raise LoopMismatchError("no task of the card makes streams", field="card", value=card.model_id)


def _only_stream(prepared: PreparedRequest) -> PreparedRequest:
    """Return a request with only the node that makes the stream, the last, and those that lead to it.

    Raises:
        LoopMismatchError: It has no such node, or more than one.
    """
    by_name = {node.node_id: node for node in prepared.program.nodes}
    streams = [
        node for node in prepared.program.nodes
        if isinstance(node, ModelLoopNode) and makes_streams(prepared.card.loops[node.loop])
    ]  # fmt: skip
    if len(streams) != 1:
        raise LoopMismatchError(
            f"{len(streams)} loops of the task make a stream; allowed: one",
            field="task",
            value=prepared.request.task,
        )
    needed, todo = {streams[0].node_id}, [streams[0]]
    while todo:
        for edge in todo.pop().inputs.values():
            source = by_name[edge.node] if isinstance(edge, TensorEdge) else None
            if isinstance(source, ModelLoopNode) and source.node_id not in needed:
                needed.add(source.node_id)
                todo.append(source)
    before = tuple(node for node in prepared.nodes if node.node_id in needed and node is not streams[0])
    return replace(prepared, nodes=(*before, streams[0]))


def _renamed(node: RunningNode, scope: CancelScope) -> RunningNode:
    """Return a copy of a stream's state in another request."""

    def rename(old: CancelScope) -> CancelScope:
        return scope if old.parent is None else replace(old, parent=rename(old.parent))

    return replace(node, state=fork_state(node.state, rename=rename))


def _file_of(session: Session) -> Path | None:
    """Return where the state of a session goes while it is suspended; None for host memory."""
    folder = session.options.folder
    return folder / f"{session.session_id}.json" if session.options.offload == "disk" and folder is not None else None


def _remove_file(session: Session) -> None:
    path = _file_of(session)
    if path is not None:
        remove_parked(path)


def _unheard(_: Any) -> None:
    """Take no notice: a session's events go their own way."""
