"""What goes into a session and what comes out of it, between its caller's threads and the control plane; bounded."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from fastvideo_core.errors import SessionError
from fastvideo_core.loop.chunks import Push
from fastvideo_core.request.events import MediaChunk
from fastvideo_core.runtime.sessions.base import Cut, LoggedPush

__all__ = ["MAX_EVENTS", "MAX_PUSHES", "Inbox", "Outbox"]

MAX_PUSHES = 64
"""Pushes that may wait for a step boundary."""

MAX_EVENTS = 4096
"""Events that may wait for their reader; from there on no push is taken. Media stop long before, by the buffer."""


class Inbox:
    """Pushes on their way to the loop. May be used from any thread.

    Args:
        replay: Pushes that wait for their step.
    """

    def __init__(self, replay: tuple[LoggedPush, ...] = ()) -> None:
        self._waiting: deque[LoggedPush] = deque(replay)
        self._lock = threading.Lock()

    def put(self, *pushes: Push | Cut) -> None:
        """Take pushes that belong together.

        Raises:
            SessionError: Too many wait.
        """
        with self._lock:
            if len(self._waiting) + len(pushes) > MAX_PUSHES:
                raise SessionError(f"{len(self._waiting)} pushes wait; allowed: {MAX_PUSHES}; wait for the next chunk")
            self._waiting.extend(LoggedPush(None, push) for push in pushes)

    def take(self, step: int) -> list[Push | Cut]:
        """Return what is to be applied now, in order.

        Args:
            step: Steps that have been committed.
        """
        if not self._waiting:
            return []
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
            due = []
            for one in waiting:
                if one.step is None or one.step <= step:
                    due.append(one.push)
                else:
                    self._waiting.append(one)
        return due

    def waiting(self) -> tuple[LoggedPush, ...]:
        """Return what waits."""
        return tuple(self._waiting)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting


class Outbox:
    """Events on their way to the reader, and how far its viewer has come. May be used from any thread.

    Args:
        on_read: Called when the viewer has come further.
        is_paced: Whether the viewer watches in real time from the first chunk that is read on.
    """

    def __init__(self, on_read: Callable[[], None], *, is_paced: bool = False) -> None:
        self._on_read = on_read
        self._is_paced = is_paced
        self._events: deque[Any] = deque()
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._is_over = False
        self._is_frozen = False
        self._read_s = 0.0
        self._told_s: float | None = None
        self._began: tuple[float, float] | None = None
        """When the first chunk was read, and its place in the stream."""

    def put(self, event: Any) -> None:
        """Take an event."""
        with self._changed:
            self._events.append(event)
            self._tell()

    def end(self) -> None:
        """Say that nothing follows."""
        with self._changed:
            self._is_over = True
            self._tell()

    def take(self) -> tuple[bool, Any]:
        """Return whether there is an event, or the end, and the event; None stands for the end. Waits for nothing."""
        with self._changed:
            return self._take()

    def get(self, timeout_s: float | None = None) -> Any:
        """Return the next event, when there is one; None when nothing follows.

        Raises:
            TimeoutError: None comes in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._can_take, timeout_s):
                raise TimeoutError(f"no event for {timeout_s} s")
            return self._take()[1]

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call something, in whatever thread, when there is something to take; returns what ends that."""
        with self._changed:
            self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def viewed(self, seconds: float) -> None:
        """Take note that the viewer has come to a place in the stream; from here on it says so itself."""
        with self._changed:
            self._told_s = max(seconds, self._told_s or 0.0)
        self._on_read()

    def freeze(self) -> None:
        """Give nothing out until `thaw`."""
        with self._changed:
            self._is_frozen = True

    def thaw(self) -> None:
        """Give out again what there is."""
        with self._changed:
            self._is_frozen = False
            self._tell()

    def pending(self) -> tuple[MediaChunk, ...]:
        """Return the media that nobody has read."""
        with self._changed:
            return tuple(event for event in self._events if isinstance(event, MediaChunk))

    def drop_media(self) -> None:
        """Forget the media that nobody has read: they are given out elsewhere."""
        with self._changed:
            self._events = deque(event for event in self._events if not isinstance(event, MediaChunk))

    def begin_at(self, seconds: float) -> None:
        """Say where in the stream the viewer is at least, before it has read anything here."""
        self._read_s = max(self._read_s, seconds)

    def viewer_s(self, now: float) -> float:
        """Return how far the viewer has come in the stream, in seconds."""
        seen_s = self._read_s if self._told_s is None else min(self._read_s, self._told_s)
        if self._is_paced and self._began is not None:
            began_at, start_s = self._began
            seen_s = min(seen_s, start_s + now - began_at)
        return seen_s

    @property
    def is_full(self) -> bool:
        """Whether so much waits for the reader that no more should be asked for."""
        return len(self._events) >= MAX_EVENTS

    @property
    def _can_take(self) -> bool:
        return not self._is_frozen and bool(self._events or self._is_over)

    def _take(self) -> tuple[bool, Any]:
        if not self._can_take:
            return False, None
        if not self._events:
            return True, None
        event = self._events.popleft()
        if isinstance(event, MediaChunk) and not event.is_preview:
            self._read_s = max(self._read_s, event.end_s)
            if self._began is None:
                self._began = (time.monotonic(), event.start_s)
            self._on_read()
        return True, event

    def _tell(self) -> None:
        self._changed.notify_all()
        for listener in tuple(self._listeners):
            listener()
