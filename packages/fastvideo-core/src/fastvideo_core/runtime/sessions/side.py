"""A session as its loop's driver sees it: what happens at step and chunk boundaries. All on the control plane."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastvideo_core.errors import CancelledError, FastVideoError, InputError
from fastvideo_core.loop.chunks import ChunkLoop, Push, fork_state
from fastvideo_core.loop.driver import LoopRun
from fastvideo_core.loop.work import StreamChunk, Wait
from fastvideo_core.request import session_events
from fastvideo_core.request.events import MediaChunk
from fastvideo_core.runtime.durable.base import NodeState, RunningNode
from fastvideo_core.runtime.prepare import PreparedRequest
from fastvideo_core.runtime.progress import EventLog, Progress
from fastvideo_core.runtime.run import NodeContext
from fastvideo_core.runtime.sessions.base import Cut, LoggedPush, SessionOptions, kind_of
from fastvideo_core.runtime.sessions.boxes import Inbox, Outbox
from fastvideo_core.runtime.sessions.marks import Mark, Marks, Place

__all__ = ["Beside", "SessionSide", "StopReason"]

_LOG = logging.getLogger(__name__)

StopReason = Literal["caller", "idle", "horizon", "closed", "moving"]
"""Why a leg ends at a chunk boundary."""

Renew = Callable[[float | None, float], None]
"""Gives the scheduler the deadline of the next chunk, and its predicted seconds."""


class _SessionLog(EventLog):
    """Events of a session over all of its legs; what a leg says of itself as a request is left out."""

    def __init__(self, prepared: PreparedRequest, outbox: Outbox) -> None:
        super().__init__(prepared, lambda make: outbox.put(make()))
        self._lock = threading.Lock()

    def emit(self, event_type: Callable[..., Any], /, **fields: Any) -> None:
        """Hand the next event on, from whatever thread."""
        with self._lock:
            super().emit(event_type, **fields)

    def accepted(self) -> None:
        """A leg begins."""

    def completed(self, artifacts: tuple[str, ...], duration_s: float) -> None:
        """A leg ends with its loop."""

    def failed(self, error: Exception) -> None:
        """A leg ends with an error."""

    def cancelled(self, reason: str) -> None:
        """A leg ends at a boundary."""


class _Media(Progress):
    """Streams the media of committed steps, and nothing else."""

    def __init__(self, prepared: PreparedRequest, log: EventLog, on_media: Callable[[StreamChunk], None]) -> None:
        super().__init__(prepared, log)
        self._on_media = on_media
        self.num_seen = 0
        """Pieces of media that the viewer has from elsewhere."""

    def started(self) -> None:
        """A leg's first step is about to run."""

    def committed(self, node_id: str, step: int, num_steps: int | None, chunks: Sequence[StreamChunk]) -> None:
        """Stream the media of a step."""
        for chunk in chunks:
            if chunk.kind == "preview" or (chunk.kind == "media" and chunk.index >= self.num_seen):
                self._stream(node_id, chunk)
            if chunk.kind == "media":
                self._on_media(chunk)

    def give_again(self, node_id: str, chunks: Sequence[StreamChunk]) -> None:
        """Stream media that had come out before, and that nobody has read."""
        for chunk in chunks:
            if chunk.index >= self.num_seen:
                self._stream(node_id, chunk)


@dataclass(frozen=True, slots=True)
class Beside:
    """What belongs to the state of a session besides itself.

    Attributes:
        pending: Media that have come out before it and that nobody has read.
        waiting: Pushes that it has not seen.
        log: Pushes that it has.
    """

    pending: tuple[MediaChunk, ...]
    waiting: tuple[LoggedPush, ...]
    log: tuple[LoggedPush, ...]


class SessionSide:
    """What the control plane knows of a session, from its first leg to its last.

    Args:
        prepared: The request whose stream it is.
        node_id: The node that makes the stream.
        options: How it runs.
        outbox: Where events go.
        place: Where in the stream it begins.

    Attributes:
        events: Its event log.
        progress: What becomes of committed steps.
        media: The same.
        inbox: Pushes.
        marks: Chunks from which it can be forked.
        log: Pushes that were applied.
        is_paused: Whether the caller holds it.
        stop: Why the leg is to end at the next chunk boundary.
        may_suspend: Tells whether it may be suspended for being idle.
        parked: The state with which the last leg has ended, or a leg that has not started yet begins.
        place: Where in the stream it is.
        renew: See `Renew`; None before the first leg.
    """

    def __init__(
        self, prepared: PreparedRequest, node_id: str, options: SessionOptions, outbox: Outbox, place: Place
    ) -> None:
        self.node_id = node_id
        self.options = options
        self.outbox = outbox
        self.events: EventLog = _SessionLog(prepared, outbox)
        self.media = _Media(prepared, self.events, self._came_out)
        self.progress: Progress = self.media
        self.inbox = Inbox(tuple(options.replay))
        self.marks = Marks(options.history_chunks)
        self.log: list[LoggedPush] = []
        self.is_paused = False
        self.stop: StopReason | None = None
        self.may_suspend: Callable[[], bool] = lambda: True
        self.parked: tuple[RunningNode, Place] | None = None
        self.place = place
        self.renew: Renew | None = None
        self._held: Literal["caller", "viewer"] | None = None
        self._held_since = 0.0
        self._since: list[Push] = []
        """Pushes that were applied since the chunk in progress began."""
        self._num_logged = 0
        """Pushes in the log when it began."""
        self._begun_at = 0.0
        self._playing: tuple[float, float] | None = None
        """When the first chunk was complete, and where in the stream it began."""
        self._chunk_s = 0.0
        self._cost_s = 0.0
        self._chunk_cost_s = 0.0

    def boundary(self, run: LoopRun[Any], context: NodeContext) -> Coroutine[Any, Any, None] | None:
        """Look at a step boundary; see `Outside`."""
        if run.node_id != self.node_id:
            return None
        self.parked = None
        loop: ChunkLoop[Any] = run.loop  # type: ignore[assignment]
        self._apply_pushes(run)
        return None if loop.boundary(run.state) is None else self._at_chunk(run, loop, context)

    async def wait(self, wait: Wait, context: NodeContext) -> bool:
        """Let the loop wait, and suspend the session if that takes too long; see `Outside`."""
        after_s = self.options.suspend_after_s
        if after_s is None or wait.until_s is not None:
            return await context.ask(wait)
        if await context.ask(Wait(wait.reason, time.monotonic() + after_s)) and self.may_suspend():
            self.stop = "idle"
        return False

    def beside(self, place: Place) -> Beside:
        """Return what belongs to a state besides itself; on the control plane, or while no leg runs.

        Media that come out after the state come out again when it goes on; pushes that were applied since wait again.
        """
        newest = self.marks.newest
        num_applied = self._num_logged if newest is not None and place == newest.place else len(self.log)
        return Beside(
            pending=tuple(one for one in self.outbox.pending() if one.index < place.num_media),
            waiting=(*self.log[num_applied:], *self.inbox.waiting()),
            log=tuple(self.log[:num_applied]),
        )

    def ran(self, seconds: float) -> None:
        """Take note of a step's predicted seconds."""
        self._cost_s += seconds

    def park(self, nodes: Mapping[str, NodeState]) -> None:
        """Keep the state with which a leg ends: between two chunks, which is where it began the last one if need be."""
        node, newest = nodes.get(self.node_id), self.marks.newest
        if not isinstance(node, RunningNode):
            return
        if newest is not None and self.place.num_steps != node.num_committed:
            self.parked = RunningNode(node.loop_id, newest.state, newest.place.num_steps), newest.place
        else:
            self.parked = node, self.place

    @property
    def has_enough(self) -> bool:
        """Whether its viewer has as much as may wait for it."""
        return self.outbox.is_full or self._excess_s() > 0

    def wake_wait(self) -> float | None:
        """Return when a held session is to be suspended, or its viewer wants more; None if only an event tells."""
        times = []
        if self.options.suspend_after_s is not None:
            times.append(self._held_since + self.options.suspend_after_s)
        if self._held == "viewer" and self.options.is_paced:
            times.append(time.monotonic() + max(0.0, self._excess_s()))
        return min(times, default=None)

    def _came_out(self, chunk: StreamChunk) -> None:
        """Count media that have come out; what the viewer has from elsewhere, it has seen."""
        if chunk.index < self.media.num_seen:
            self.outbox.begin_at(chunk.end_s)
        self.place = Place(
            self.place.chunk, self.place.num_steps, max(self.place.media_s, chunk.end_s), self.place.num_media + 1
        )

    async def _at_chunk(self, run: LoopRun[Any], loop: ChunkLoop[Any], context: NodeContext) -> None:
        """Between two chunks: end the last one, hold the stream while it is to be held, begin the next."""
        chunk, newest = loop.boundary(run.state), self.marks.newest
        assert chunk is not None, "the caller looks"
        if newest is not None and chunk > newest.place.chunk:
            self._complete(newest)
        self.place = Place(chunk, run.num_committed, self.place.media_s, self.place.num_media)
        while self._must_wait():
            await context.ask(Wait("viewer" if self._held == "viewer" else "input", self.wake_wait()))
            self._apply_pushes(run)
        if self._held is not None:
            self._held = None
            self.events.emit(session_events.SessionResumed)
        self._begin(run)

    def _must_wait(self) -> bool:
        """Tell whether the stream is held, and say so when that begins.

        Raises:
            CancelledError: The leg ends here.
        """
        limit = self.options.num_chunks
        if limit is not None and self.place.chunk >= limit:
            self.stop = "horizon"
        if self.stop is not None:
            raise CancelledError(f"the stream ends before chunk {self.place.chunk}: {self.stop}")
        reason: Literal["caller", "viewer"] | None = None
        if self.is_paused:
            reason = "caller"
        elif self.has_enough:
            reason = "viewer"
        if reason is None:
            return False
        now = time.monotonic()
        if self._held is None:
            self._held_since = now
        if reason != self._held:
            self._held = reason
            self.events.emit(session_events.SessionHeld, reason=reason)
        after_s = self.options.suspend_after_s
        if after_s is not None and now >= self._held_since + after_s:
            self._held_since = now
            if self.may_suspend():
                self.stop = "idle"
                return self._must_wait()
        return True

    def _excess_s(self) -> float:
        """Return by how much the next chunk would be beyond what may wait for the viewer."""
        ahead_s = self.place.media_s - self.outbox.viewer_s(time.monotonic())
        return ahead_s + self._chunk_s - self.options.buffer_s if ahead_s > 0 else 0.0

    def _begin(self, run: LoopRun[Any]) -> None:
        self.marks.add(Mark(self.place, fork_state(run.state)))
        self._since, self._num_logged = [], len(self.log)
        self._begun_at = time.monotonic()
        self._cost_s = 0.0
        if self.renew is not None:
            deadline_s = self.options.chunk_deadline_s
            self.renew(None if deadline_s is None else self._begun_at + deadline_s, self._chunk_cost_s)

    def _complete(self, begun: Mark) -> None:
        """Tell of a chunk that has come out."""
        now = time.monotonic()
        start_s = begun.place.media_s
        self._chunk_s = self.place.media_s - start_s
        self._chunk_cost_s = self._cost_s
        if self._playing is None:
            self._playing = now, start_s
        began_at, first_s = self._playing
        self.events.emit(
            session_events.SessionChunk,
            chunk=begun.place.chunk,
            latency_s=now - self._begun_at,
            lag_s=max(0.0, (now - began_at) - (start_s - first_s)),
            ahead_s=max(0.0, self.place.media_s - self.outbox.viewer_s(now)),
        )

    def _cut(self, run: LoopRun[Any]) -> None:
        """Go back to the beginning of the chunk in progress; what it has reserved is of no use any more."""
        newest = self.marks.newest
        if newest is None or self.place.num_media > newest.place.num_media:
            return  # there is no chunk in progress, or it has come out in part and runs to its end
        run.state = fork_state(newest.state)
        for push in self._since:
            run.apply(push)

    def _apply_pushes(self, run: LoopRun[Any]) -> None:
        if self.inbox.is_empty:
            return
        for push in self.inbox.take(run.num_committed):
            if isinstance(push, Cut):
                self._cut(run)
                self.log.append(LoggedPush(run.num_committed, push))
                continue
            try:
                run.apply(push)
            except InputError as error:
                self._refuse(push, error)
            except Exception as error:  # noqa: BLE001 - a push that breaks its loop's own code is refused, and told of
                _LOG.exception("session: the loop failed at a push")
                self._refuse(push, error)
            else:
                self._note(run, push)

    def _note(self, run: LoopRun[Any], push: Push) -> None:
        self._since.append(push)
        self.log.append(LoggedPush(run.num_committed, push))
        self.events.emit(
            session_events.SessionPushed, kind=kind_of(push), step=run.num_committed, chunk=self.place.chunk
        )

    def _refuse(self, push: Push, error: Exception) -> None:
        name = type(error).__name__ if isinstance(error, FastVideoError) else "ExecutionError"
        self.events.emit(
            session_events.SessionRefused, kind=kind_of(push), error=name, message=" ".join(str(error).split())
        )
