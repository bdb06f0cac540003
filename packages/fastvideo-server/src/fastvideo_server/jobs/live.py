"""A job that has not ended: its place in the engine, and its events for whoever looks on."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from fastvideo_core.request.events import RequestCancelled, RequestFailed
from fastvideo_core.runtime.durable import SavedJob
from fastvideo_core.runtime.engine import RequestHandle
from fastvideo_core.runtime.run import GenerationResult
from fastvideo_core.runtime.serving import WeightStack
from fastvideo_server.jobs.pictures import Pictures
from fastvideo_server.jobs.quotas import Caller
from fastvideo_server.jobs.records import JobRecord

__all__ = ["LAST_EVENTS", "LiveJob"]

LAST_EVENTS = ("request.completed", "request.failed", "request.cancelled")


@dataclass(slots=True, eq=False)
class LiveJob:
    """A job in progress. Used on the server's event loop alone.

    Attributes:
        record: What is kept of it.
        saved: What the engine is given.
        caller: Who made it.
        is_durable: Whether it goes on after a crash; a synchronous call does not.
        weights: Changes of weights that it runs under; None runs on the card's own.
        is_followed: Whether somebody may want its events before its end; waking up for each costs a little.
        handle: The engine's request; None while it waits for its turn.
        fraction: How far it is.
        has_started: Whether its first step has run.
        cancelled_at_s: When somebody cancelled it, monotonic seconds.
        is_final: Whether its result, or its failure, is safe.
        is_left: Whether this process has let go of it, so that the next one goes on with it.
        last: What takes the place of the engine's last event; None leaves that.
        result: What a synchronous call waits for.
        error: Why there is none.
        ended: Set when it is final.
        begun_at_s: When it was accepted, monotonic seconds.
        first_chunk_s: Seconds from then to its first frames.
        trace: The span that it belongs to.
        pictures: What it shows while it runs.
    """

    record: JobRecord
    saved: SavedJob
    caller: Caller
    is_durable: bool = True
    weights: WeightStack | None = None
    is_followed: bool = True
    handle: RequestHandle | None = None
    fraction: float = 0.0
    has_started: bool = False
    cancelled_at_s: float | None = None
    is_final: bool = False
    is_left: bool = False
    last: Any = None
    result: GenerationResult | None = None
    error: Exception | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    begun_at_s: float = field(default_factory=time.monotonic)
    first_chunk_s: float | None = None
    trace: Any = None
    pictures: Pictures = field(default_factory=Pictures)
    _seen: int = -1
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def job_id(self) -> str:
        """Its id."""
        return self.record.job_id

    @property
    def progress(self) -> int:
        """Percent; 100 only when the result is safe."""
        if self.is_final and self.error is None:
            return 100
        return min(99, int(100 * self.fraction))

    def look(self) -> None:
        """Take note of the events that have come since the last look, and wake whoever waits for some."""
        if self.handle is not None:
            for event in self.handle.stream.read(self._seen):
                self._seen = event.sequence
                if event.type == "request.started":
                    self.has_started = True
                elif event.type == "request.progress":
                    self.fraction = event.fraction
                elif event.type == "media.chunk" and not event.is_preview and self.first_chunk_s is None:
                    self.first_chunk_s = time.monotonic() - self.begun_at_s
        self.wake()

    def wake(self) -> None:
        """Wake whoever waits for events."""
        self._changed.set()
        self._changed = asyncio.Event()

    def next_change(self) -> asyncio.Event:
        """Return what is set at the next change; taken before `events`, so that nothing falls in between."""
        return self._changed

    def events(self, after: int = -1) -> list[Any]:
        """Return the events beyond a number. The last one of all is there once what it says is true and safe."""
        found = [] if self.handle is None else self.handle.stream.read(after)
        if found and found[-1].type in LAST_EVENTS:
            last = found.pop()
            if self.is_final:
                found.append(self.last or last)
        elif self.handle is None and self.is_final and self.last is not None and after < 0:
            found = [self.last]
        return found

    def close(self, error: Exception | None) -> None:
        """Note that it is final, with the event that says so where the engine's own would not be true."""
        self.error = error
        sequence = 0 if self.handle is None else self.handle.stream.newest
        common: dict[str, Any] = {"request_id": self.job_id, "sequence": max(sequence, 0), "time_s": time.time()}
        if self.cancelled_at_s is not None and error is not None:
            self.last = RequestCancelled(**common, reason=str(error))
        elif error is not None:
            message = " ".join(str(error).split())
            self.last = RequestFailed(**common, error=type(error).__name__, message=message)
        self.is_final = True
        self.ended.set()
        self.wake()

    def leave(self) -> None:
        """Let go of it, unfinished: nothing follows in this process."""
        self.is_left = True
        self.ended.set()
        self.wake()
