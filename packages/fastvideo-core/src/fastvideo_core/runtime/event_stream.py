"""The events of one request: kept, numbered, and read by as many as want to, each at its own pace and again."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fastvideo_core.request.events import MediaChunk, RequestProgress

__all__ = ["MAX_DATA_BYTES", "MAX_EVENTS", "EventStream"]

_LOG = logging.getLogger(__name__)

MAX_EVENTS = 16_384
"""Events that a stream keeps."""
MAX_DATA_BYTES = 256 << 20
"""Bytes of frames that its events refer to."""

_EXPENDABLE = (RequestProgress, MediaChunk)
"""Events of which only the newest matter once there are too many."""


class EventStream:
    """Takes events in order and keeps them. All methods may be called from any thread.

    It is bounded. Of too many events the oldest progress reports and media chunks go: who reads sees it by the gap in
    the numbers. Of too many bytes the oldest chunks lose their data. All other events stay.

    Args:
        max_events: Most events that are kept.
        max_data_bytes: Most bytes of frames.
    """

    def __init__(self, *, max_events: int = MAX_EVENTS, max_data_bytes: int = MAX_DATA_BYTES) -> None:
        self._max_events = max_events
        self._max_data_bytes = max_data_bytes
        self._entries: list[Any] = []  # events, or what builds them when somebody looks
        self._data_bytes = 0
        self._newest = -1
        self._is_closed = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._num_waiting = 0
        self._listeners: tuple[Callable[[], object], ...] = ()

    @property
    def newest(self) -> int:
        """Number of the newest event; -1 while there is none."""
        return self._newest

    @property
    def is_closed(self) -> bool:
        """Whether nothing follows."""
        return self._is_closed

    def put(self, make: partial[Any], event: Any = None) -> None:
        """Take the next event.

        Args:
            make: Its class and its fields.
            event: What that gives, where somebody has built it already.
        """
        num_bytes = getattr(make.keywords.get("data"), "nbytes", 0)
        with self._lock:
            self._entries.append(make if event is None else event)
            self._newest = make.keywords["sequence"]
            self._data_bytes += num_bytes
            if len(self._entries) > self._max_events or self._data_bytes > self._max_data_bytes:
                self._shrink()
            if self._num_waiting:  # seldom; to notify nobody would cost more than all the rest
                self._changed.notify_all()
        if self._listeners:
            self._wake()

    def close(self) -> None:
        """Say that nothing follows."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._wake()
        self._listeners = ()

    def read(self, after: int = -1) -> list[Any]:
        """Return the events that there are beyond a number, without waiting."""
        with self._lock:
            entries = self._entries[self._place(after) :]
        return [_built(entry) for entry in entries]

    def follow(self, after: int = -1) -> Iterator[Any]:
        """Yield the events beyond a number, those to come included; blocks while there is none."""
        while entries := self._wait(after):
            for entry in entries:
                yield _built(entry)
            after = _sequence(entries[-1])

    def listen(self, wake: Callable[[], object]) -> Callable[[], None]:
        """Call `wake` after each new event and at the end, on whatever thread brings it: it must not block.

        Returns:
            What ends that.
        """
        with self._changed:
            self._listeners = (*self._listeners, wake)

        def stop() -> None:
            with self._changed:
                self._listeners = tuple(one for one in self._listeners if one is not wake)

        return stop

    def _wait(self, after: int) -> list[Any]:
        """Return what is beyond a number, as soon as there is something; nothing at the end."""
        with self._changed:
            self._num_waiting += 1
            try:
                self._changed.wait_for(lambda: self._is_closed or self._newest > after)
            finally:
                self._num_waiting -= 1
            return self._entries[self._place(after) :]

    def _place(self, after: int) -> int:
        return bisect_right(self._entries, after, key=_sequence)

    def _wake(self) -> None:
        for wake in self._listeners:
            try:
                wake()
            except Exception:  # noqa: BLE001 - who looks on must not harm who works
                _LOG.exception("a listener of events failed")

    def _shrink(self) -> None:
        """Make room, for more than one event at a time so that this seldom happens."""
        if len(self._entries) > self._max_events:
            oldest_kept = _sequence(self._entries[-(self._max_events // 2)])
            self._entries = [one for one in self._entries if not _is_expendable(one) or _sequence(one) >= oldest_kept]
            self._data_bytes = sum(map(_num_bytes, self._entries))
        for index, entry in enumerate(self._entries):
            if self._data_bytes <= self._max_data_bytes:
                break
            if num_bytes := _num_bytes(entry):
                self._data_bytes -= num_bytes
                self._entries[index] = _without_data(entry)


def _built(entry: Any) -> Any:
    """Return the event of an entry; each reader builds its own, and they are equal."""
    return entry() if isinstance(entry, partial) else entry


def _field(entry: Any, name: str) -> Any:
    return entry.keywords.get(name) if isinstance(entry, partial) else getattr(entry, name, None)


def _sequence(entry: Any) -> int:
    number: int = _field(entry, "sequence")
    return number


def _num_bytes(entry: Any) -> int:
    return getattr(_field(entry, "data"), "nbytes", 0)


def _is_expendable(entry: Any) -> bool:
    return entry.func in _EXPENDABLE if isinstance(entry, partial) else isinstance(entry, _EXPENDABLE)


def _without_data(entry: Any) -> Any:
    """Return the same event without its frames."""
    return partial(entry, data=None) if isinstance(entry, partial) else entry.model_copy(update={"data": None})
