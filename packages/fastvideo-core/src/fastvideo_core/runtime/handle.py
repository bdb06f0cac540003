"""What whoever submits a request holds of it: its result to come, its events, and the way to cancel it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from fastvideo_core.runtime.event_stream import EventStream
from fastvideo_core.runtime.run import GenerationResult, RequestRun

__all__ = ["Publisher", "RequestHandle"]

_LOG = logging.getLogger(__name__)


class RequestHandle:
    """A request that an engine has accepted. It holds on to its result and events, not to the model."""

    def __init__(self, run: RequestRun, future: Future[GenerationResult], events: EventStream) -> None:
        self._scope = run.scope
        self._cancel = run.cancel
        self._future = future
        self._events = events

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self._scope.scope_id

    @property
    def is_done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._future.done()

    def cancel(self, reason: str = "cancelled by the caller") -> None:
        """Cancel it at its next step boundary, at once while it waits; does nothing once it has ended."""
        self._cancel.cancel(self._scope, reason)

    def result(self, timeout_s: float | None = None) -> GenerationResult:
        """Wait for the result; never in an event's callback, which would wait for itself.

        Raises:
            TimeoutError: It takes longer; the request goes on.
            FastVideoError: Why the request ended without one.
        """
        return self._future.result(timeout_s)

    def events(self, after: int = -1) -> Iterator[Any]:
        """Yield the events in order, the last one included; blocks while there is none.

        Any number of readers may do this at a time, and again: the events are kept. Of a great many the oldest progress
        reports are dropped, see `EventStream`.

        Args:
            after: Number of the event after which to begin; by default that is the first.
        """
        return self._events.follow(after)

    @property
    def stream(self) -> EventStream:
        """The events, for readers that do not want to block."""
        return self._events

    def __await__(self) -> Generator[Any, None, GenerationResult]:
        """Wait for the result in a coroutine; if that is cancelled, so is the request."""
        return self._wait().__await__()

    async def _wait(self) -> GenerationResult:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def tell(_: Future[GenerationResult]) -> None:
            with suppress(RuntimeError):  # the caller's loop is closed, so nobody waits
                loop.call_soon_threadsafe(ended.set)

        self._future.add_done_callback(tell)
        try:
            await ended.wait()
        except asyncio.CancelledError:
            self.cancel("whoever awaited it was cancelled")
            raise
        return self._future.result()


class Publisher:
    """Puts a request's events into its stream, and calls the caller back, which can do no harm to the engine."""

    def __init__(self, events: EventStream, on_event: Callable[[Any], None] | None) -> None:
        self._events = events
        self._on_event = on_event

    def __call__(self, make: partial[Any]) -> None:
        """Take the next event, which is built when somebody looks at it."""
        if self._on_event is None:
            self._events.put(make)
            return
        event = make()
        self._events.put(make, event)
        try:
            self._on_event(event)
        except BaseException:  # noqa: BLE001 - whatever it raises, an exit included, must not end the control plane
            # The request is not to blame for who looks on.
            _LOG.exception("request:%s: the event callback failed and is not called again", event.request_id)
            self._on_event = None
