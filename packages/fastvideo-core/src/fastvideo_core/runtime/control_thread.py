"""The thread that the control plane lives on, and how other threads have something done there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from fastvideo_core.parallel.threads import release_team

__all__ = ["ControlThread"]

_T = TypeVar("_T")


class ControlThread:
    """An event loop on a thread of its own.

    Args:
        on_fault: Given the event loop and what went wrong where nobody else was there to be told.
    """

    def __init__(self, on_fault: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(on_fault)
        self._thread = threading.Thread(target=self._loop.run_forever, name="fastvideo-control", daemon=True)
        self._thread.start()

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is on this thread."""
        return threading.current_thread() is self._thread

    def responds(self, timeout_s: float) -> bool:
        """Say whether the thread gets round to something within a time; from any other thread."""
        answered = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # it has stopped
            return False
        return answered.wait(timeout_s)

    def call(self, function: Callable[[], _T]) -> _T:
        """Run a function on the thread, and return what it returns; from any thread."""
        if self.is_own_thread:
            return function()
        answer: Future[_T] = Future()

        def run() -> None:
            try:
                answer.set_result(function())
            except BaseException as error:  # noqa: BLE001 - whoever called gets it
                answer.set_exception(error)
            release_team()  # what a request shows may have been made smaller, to tell what it costs

        release_team()  # whatever the caller has computed before, the steps are to have the cores
        self._loop.call_soon_threadsafe(run)
        return answer.result()

    def notify(self, function: Callable[[], None]) -> None:
        """Run a function on the thread, soon; from any thread. Once it has stopped, nothing is done."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Let the thread end, and wait for that."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
