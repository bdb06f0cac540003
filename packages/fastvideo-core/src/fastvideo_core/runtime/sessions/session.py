"""A session as its caller holds it: a long-lived, typed object, used from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, Self

from fastvideo_core.errors import (
    CancelledError,
    FastVideoError,
    InputError,
    PromptError,
    SessionEndedError,
    SessionError,
)
from fastvideo_core.loop.chunks import Push, PushAction, PushImage, PushText
from fastvideo_core.program.base import ModelLoopNode
from fastvideo_core.request import session_events
from fastvideo_core.request.events import MediaChunk, MediaComplete
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_core.runtime.active import Active
from fastvideo_core.runtime.estimate import RequestEstimate
from fastvideo_core.runtime.failures import as_failure
from fastvideo_core.runtime.prepare import PreparedRequest
from fastvideo_core.runtime.run import GenerationResult
from fastvideo_core.runtime.sessions.base import Cut, LoggedPush, SessionOptions, SessionState, kind_of
from fastvideo_core.runtime.sessions.boxes import Outbox
from fastvideo_core.runtime.sessions.marks import Place
from fastvideo_core.runtime.sessions.parked import FiledState, HeldState, ParkedState
from fastvideo_core.runtime.sessions.side import Beside, SessionSide

if TYPE_CHECKING:
    from fastvideo_core.runtime.sessions.host import SessionHost

__all__ = ["Session"]


class Session:
    """A stream in progress. Made by `Engine.session`; closed by `close`, or used as a context manager.

    Attributes:
        session_id: Its name within the engine.
        prepared: Its request.
        options: How it runs.
        node: The node of the request that makes the stream.
        side: What the control plane knows of it.
        outbox: Its events.
        leg: What makes its chunks; None while it is suspended and once it has ended.
        parked: Its state while it is suspended, or the file that it is in.
        estimate: What each leg needs, once the first has begun.
        lock: Held while it changes from one state to another; never while the control plane is waited for.
    """

    def __init__(self, host: SessionHost, prepared: PreparedRequest, options: SessionOptions, place: Place) -> None:
        self.session_id = prepared.request.request_id
        self.prepared = prepared
        self.options = options
        self.parked: HeldState | FiledState | None = None
        self.leg: Active | None = None
        self.estimate: RequestEstimate | None = None
        self.outbox = Outbox(self._was_read, is_paced=options.is_paced)
        self.outbox.begin_at(place.media_s)
        self.node = stream_node(prepared)
        self.side = SessionSide(prepared, self.node.node_id, options, self.outbox, place)
        self.lock = threading.RLock()
        self._host = host
        self._state = SessionState.EXECUTION
        self._settled = threading.Condition(self.lock)
        self._error: Exception | None = None
        self._is_suspended_for_idling = False
        self._is_moving = False

    @property
    def state(self) -> SessionState:
        """Where it is."""
        return self._state

    @property
    def parameters(self) -> ResolvedParameters:
        """What it runs with, with the source of each value."""
        return self.prepared.parameters

    @property
    def chunk(self) -> int:
        """The chunk in progress, or the next one."""
        return self.side.place.chunk

    @property
    def log(self) -> tuple[LoggedPush, ...]:
        """Pushes that were applied; another session that replays them gives the same stream."""
        return tuple(self.side.log)

    @property
    def kept_chunks(self) -> tuple[int, ...]:
        """Chunks at whose beginning it can be forked."""
        with self.lock:
            if self.parked is not None:
                return (self.parked.place.chunk,)
        return self._host.call(lambda: self.side.marks.chunks)

    @property
    def error(self) -> Exception | None:
        """What has ended it, where it has failed."""
        return self._error

    def push_text(self, text: str, *, now: bool = False) -> None:
        """Give it a new prompt.

        Args:
            text: The prompt.
            now: Whether the chunk in progress is cut short and begun anew with it; else it runs to its end.

        Raises:
            SessionEndedError: It has ended.
            SessionError: Too many pushes wait.
            InputError: The card's task takes no text, or not this one.
        """
        if not text.strip():
            raise PromptError("the text is empty", field="prompt", value=text, allowed="at least one word")
        self._push(PushText(text), now=now)

    def push_image(self, image: Any, *, now: bool = False) -> None:
        """Give it an image, a path or uint8 pixels (H, W, 3), to go on from; see `push_text`."""
        import torch

        from fastvideo_core.request.media.images import load_image

        pixels = load_image(image, field="image")
        self._push(PushImage(torch.as_tensor(pixels)), now=now)

    def push_action(self, values: Sequence[Sequence[float]], *, now: bool = False) -> None:
        """Give it actions, one row of numbers a step of the world; see `push_text`."""
        self._push(PushAction(tuple(tuple(float(value) for value in row) for row in values)), now=now)

    def cut(self) -> None:
        """Begin the chunk in progress anew, at the next step boundary; what it has reserved is valid nowhere.

        A chunk that has come out in part runs to its end.
        """
        self._check_open()
        self.side.inbox.put(Cut())
        self._wake()

    def pause(self) -> None:
        """Begin no chunk until `resume`; the one in progress is made to its end."""
        self._check_open()
        self._host.call(lambda: setattr(self.side, "is_paused", True))

    def resume(self) -> None:
        """Go on, from a pause or from suspension.

        Raises:
            SessionEndedError: It has ended.
            SessionLimitError: As many sessions as are allowed are in execution.
            ResourceError: There is no place for it now.
        """
        self._check_open()
        self.side.is_paused = False
        with self.lock:
            self._wait_until(lambda: self.leg is None or self.side.stop is None)
            if self._state is SessionState.SUSPEND:
                self._host.resume(self)
        self._wake()

    def suspend(self) -> None:
        """Take its state off the device after the chunk in progress, and wait for that.

        Raises:
            SessionEndedError: It has ended, or ends before.
            SessionLimitError: As many sessions as are allowed are suspended.
        """
        self._check_open()
        self._host.check_can_suspend(self)
        self.stop_leg("caller")
        self._check_open()

    def viewed(self, seconds: float) -> None:
        """Say how far its viewer has come in the stream; from here on reading alone does not count as seeing."""
        self.outbox.viewed(seconds)

    def fork(
        self, chunk: int | None = None, *, session_id: str | None = None, options: SessionOptions | None = None
    ) -> Session:
        """Return another session that goes on from the beginning of a chunk, sharing what came before.

        Args:
            chunk: The chunk; None takes the one in progress.
            session_id: Its name; None makes one up.
            options: How it runs; None takes those of this session.

        Raises:
            ChunkGoneError: The chunk is kept no longer.
            SessionEndedError: The session has ended.
            SessionLimitError: As many sessions as are allowed are there.
        """
        self._check_open()
        child = self._host.fork(self, chunk, session_id, options)
        self.side.events.emit(session_events.SessionForked, child=child.session_id, chunk=child.side.place.chunk)
        return child

    def snapshot(self, chunk: int | None = None) -> ParkedState:
        """Return the state at the beginning of a chunk that is kept, to be written, or given to `Engine.session`.

        Raises:
            ChunkGoneError: The chunk is kept no longer.
            SessionEndedError: The session has ended.
        """
        self._check_open()
        return self._host.snapshot(self, chunk)

    def events(self, timeout_s: float | None = None) -> Iterator[Any]:
        """Yield the events in order, the last one included; blocks while there is none. Each is given out once.

        Raises:
            TimeoutError: None comes in time.
        """
        while (event := self.outbox.get(timeout_s)) is not None:
            yield event

    def chunks(self, timeout_s: float | None = None) -> Iterator[MediaChunk]:
        """Yield the media alone, and end with the session.

        Raises:
            TimeoutError: None comes in time.
            FastVideoError: What has ended the session.
        """
        for event in self.events(timeout_s):
            if isinstance(event, MediaChunk):
                yield event
        if self._error is not None:
            raise self._error

    def close(self, *, at: Literal["step", "chunk"] = "step") -> None:
        """End it, and wait until nothing of it is held. Again, it does nothing.

        Args:
            at: Whether the chunk in progress is cut short at the next step boundary, or made to its end.
        """
        with self.lock:
            self._wait_until(lambda: self.leg is None or self.side.stop is None)
            leg = self.leg
            if leg is None:
                if self._state is not SessionState.TERMINATE:
                    self.finish("closed")
                return
        if at == "step":
            leg.run.cancel.cancel(leg.run.scope, "closed")
        self.stop_leg("closed")

    def freeze(self) -> None:
        """Take its state off the device after the chunk in progress, and give its reader nothing, until `unfreeze`.

        Raises:
            SessionEndedError: It has ended, or ends before.
            SessionError: It is being moved already.
        """
        self._check_open()
        self._is_moving = True
        self.outbox.freeze()
        try:
            self.stop_leg("moving")
            if self._state is SessionState.TERMINATE:
                raise SessionEndedError(f"session {self.session_id} has ended")
        except BaseException:
            self._is_moving = False
            self.outbox.thaw()
            raise

    def captured(self) -> tuple[ParkedState | None, Beside]:
        """Return the state at the beginning of the chunk in progress, and what belongs to it besides, of one moment.

        The state is None before the first chunk: then all that was pushed waits.

        Raises:
            SessionEndedError: The session has ended.
        """
        if not self._is_moving:
            self._check_open()
        return self._host.captured(self)

    def unfreeze(self) -> None:
        """Go on here."""
        self._is_moving = False
        self.outbox.thaw()
        with self.lock:
            if self._state is SessionState.SUSPEND:
                self._host.resume(self)

    def leave(self) -> None:
        """End here, as it is somewhere else; its reader is told, and given no media any more."""
        self._is_moving = False
        self.outbox.drop_media()
        self.finish("moved")
        self.outbox.thaw()

    def installed(self, parked: HeldState | None) -> None:
        """Begin frozen, with a state that has come from elsewhere."""
        self._is_moving, self.parked, self._state = True, parked, SessionState.SUSPEND
        self.outbox.freeze()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop_leg(self, reason: Literal["caller", "closed", "moving"]) -> None:
        """Let the leg in progress end at the next chunk boundary, and wait for what becomes of it."""
        with self.lock:
            self._wait_until(lambda: self.leg is None or self.side.stop is None)
            if self.leg is None:
                return
            self.side.stop = reason
            self._host.stop(self.leg)
            self._wait_until(lambda: self.leg is None)

    def leg_ended(self, future: Future[GenerationResult]) -> None:
        """Take note of the end of a leg, on the control plane."""
        error = future.exception()
        reason = self.side.stop
        if error is None:
            self.finish("horizon")
        elif not isinstance(error, CancelledError):
            assert isinstance(error, Exception), "requests end with errors"
            self.fail(error)
        elif reason in ("caller", "idle", "moving") and self.side.parked is not None:
            self._host.later(self._park)
        else:
            self.finish("horizon" if reason == "horizon" else "closed")

    def suspended(self, parked: HeldState | FiledState, num_bytes: int) -> None:
        """Take note that its state, so many bytes of it, is elsewhere now."""
        with self.lock:
            reason = self.side.stop
            self.parked, self._state = parked, SessionState.SUSPEND
            self._is_suspended_for_idling = reason == "idle"
            self.side.place = parked.place
            self._leg_is_over()
            if reason != "moving":
                self.side.events.emit(
                    session_events.SessionSuspended,
                    reason="idle" if reason == "idle" else "caller",
                    chunk=parked.place.chunk,
                    num_bytes=num_bytes,
                )
        self._was_read()

    def begin(self, leg: Active, accept: Callable[[], None]) -> None:
        """Begin its next leg; if that is refused, it stays as it was.

        Raises:
            ResourceError: There could never be a place for it.
        """
        with self.lock:
            before = self._state, self.parked, self._is_suspended_for_idling
            self._state, self.parked, self._is_suspended_for_idling = SessionState.EXECUTION, None, False
            self.leg = leg
            try:
                accept()
            except BaseException:
                self._state, self.parked, self._is_suspended_for_idling = before
                self.leg = None
                raise
        leg.future.add_done_callback(self.leg_ended)

    def finish(self, reason: str) -> None:
        """End as it should."""
        emit = self.side.events.emit
        self._end(lambda: emit(session_events.SessionEnded, reason=reason, num_chunks=self.side.place.chunk))

    def fail(self, error: Exception) -> None:
        """End with an error."""
        self._error = error
        message = " ".join(str(error).split())
        emit = self.side.events.emit
        self._end(lambda: emit(session_events.SessionFailed, error=type(error).__name__, message=message))

    def _end(self, tell: Callable[[], None]) -> None:
        with self.lock:
            if self._state is SessionState.TERMINATE:
                return
            self._state, self.parked = SessionState.TERMINATE, None
            for stream, num_chunks in self.side.progress.num_chunks.items():
                self.side.events.emit(MediaComplete, stream=stream, num_chunks=num_chunks)
            tell()
            self.outbox.end()
            self._leg_is_over()
        self._host.forget(self)

    def _leg_is_over(self) -> None:
        self.leg = None
        self.side.stop, self.side.parked = None, None
        self.side.marks.clear()
        self._settled.notify_all()

    def _park(self) -> None:
        try:
            self._host.park(self)
        except Exception as error:  # noqa: BLE001 - whatever it is, the session must not hang
            self.fail(as_failure(error, f"session {self.session_id}: suspending it"))

    def _push(self, push: Push, *, now: bool) -> None:
        self._check_open()
        kind = kind_of(push)
        inputs = self.prepared.card.task(self.prepared.request.task).inputs
        if not any(spec.modality == kind for spec in inputs.values()):
            allowed = ", ".join(dict.fromkeys(spec.modality for spec in inputs.values()))
            raise InputError(f"task {self.prepared.request.task} takes none", field="push", value=kind, allowed=allowed)
        if isinstance(push, PushText):
            self._host.check_text(self, push.text)
        if self.outbox.is_full:
            raise SessionError(f"session {self.session_id}: nobody reads its events; read before more is pushed")
        self.side.inbox.put(*((push, Cut()) if now else (push,)))
        if self._is_suspended_for_idling:
            self._host.later(self._resume_quietly)
        self._wake()

    def _check_open(self) -> None:
        if self._state is SessionState.TERMINATE:
            why = "" if self._error is None else f" with an error: {self._error}"
            raise SessionEndedError(f"session {self.session_id} has ended{why}")
        if self._is_moving:
            raise SessionError(f"session {self.session_id} is being moved; try again when it has arrived")

    def _wake(self) -> None:
        leg = self.leg
        if leg is not None:
            self._host.wake(leg)

    def _was_read(self) -> None:
        """Go on, if it was held or suspended because of its viewer."""
        is_wanted = not (self._is_moving or self.side.is_paused or self.side.has_enough)
        if self._is_suspended_for_idling and is_wanted:
            self._host.later(self._resume_quietly)
        self._wake()

    def _resume_quietly(self) -> None:
        """Resume a session that idled; where there is no place for it, it stays as it is until it is wanted again."""
        with self.lock:
            is_idle = self._is_suspended_for_idling and not self._is_moving
            if is_idle and self._state is SessionState.SUSPEND:
                try:
                    self._host.resume(self)
                except FastVideoError as error:
                    self._host.log(f"session {self.session_id} is not resumed: {error}")

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        if self._host.is_control_thread:
            return
        self._settled.wait_for(is_so)


def stream_node(prepared: PreparedRequest) -> ModelLoopNode:
    """Return the node of a session's request that makes the stream: the last one."""
    node = prepared.nodes[-1]
    assert isinstance(node, ModelLoopNode), "a session's request is cut down to its stream"
    return node
