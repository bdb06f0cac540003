"""The events of one request: kept, numbered, and read by as many as want to, each at its own pace and again."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


@dataclass(slots=True, eq=False)
class _Entry:
    """An event, built when somebody first looks at it.

    Attributes:
        sequence: Its number.
        make: Its class and its fields; None once it is built.
        event: The event; None until it is built.
        num_bytes: What its data takes.
        is_expendable: Whether it may go when there are too many.
    """

    sequence: int
    make: partial[Any] | None
    event: Any
    num_bytes: int
    is_expendable: bool

    def built(self) -> Any:
        """Return the event; two readers may both build it, which gives equal ones."""
        make = self.make
        if self.event is None and make is not None:
            self.event = make()
        self.make = None
        return self.event

    def without_data(self) -> _Entry:
        """Return the same event without its frames."""
        make = None if self.make is None else partial(self.make, data=None)
        event = None if self.event is None else self.event.model_copy(update={"data": None})
        return _Entry(self.sequence, make, event, 0, self.is_expendable)


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
        self._entries: list[_Entry] = []
        self._data_bytes = 0
        self._newest = -1
        self._is_closed = False
        self._changed = threading.Condition()
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
        entry = _Entry(make.keywords["sequence"], make, event, num_bytes, make.func in _EXPENDABLE)
        with self._changed:
            self._entries.append(entry)
            self._newest = entry.sequence
            self._data_bytes += num_bytes
            if len(self._entries) > self._max_events or self._data_bytes > self._max_data_bytes:
                self._shrink()
            self._changed.notify_all()
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
        with self._changed:
            entries = self._entries[self._place(after) :]
        return [entry.built() for entry in entries]

    def follow(self, after: int = -1) -> Iterator[Any]:
        """Yield the events beyond a number, those to come included; blocks while there is none."""
        while entries := self._wait(after):
            for entry in entries:
                yield entry.built()
            after = entries[-1].sequence

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

    def _wait(self, after: int) -> list[_Entry]:
        """Return what is beyond a number, as soon as there is something; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._newest > after)
            return self._entries[self._place(after) :]

    def _place(self, after: int) -> int:
        return bisect_right(self._entries, after, key=lambda entry: entry.sequence)

    def _wake(self) -> None:
        for wake in self._listeners:
            try:
                wake()
            except Exception:  # noqa: BLE001 - who looks on must not harm who works
                _LOG.exception("a listener of events failed")

    def _shrink(self) -> None:
        """Make room, for more than one event at a time so that this seldom happens."""
        if len(self._entries) > self._max_events:
            oldest_kept = self._entries[-(self._max_events // 2)].sequence
            self._entries = [one for one in self._entries if not one.is_expendable or one.sequence >= oldest_kept]
            self._data_bytes = sum(one.num_bytes for one in self._entries)
        for index, entry in enumerate(self._entries):
            if self._data_bytes <= self._max_data_bytes:
                break
            if entry.num_bytes:
                self._data_bytes -= entry.num_bytes
                self._entries[index] = entry.without_data()
