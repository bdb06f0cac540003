"""Workers: the threads on which steps and host work run; the control plane hears of their end on its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from fastvideo_core.errors import FastVideoError, WorkerLostError
from fastvideo_core.parallel.threads import release_team

__all__ = ["IDLE_S", "Done", "Work", "Worker"]

IDLE_S = 0.02
"""A worker that has had nothing to do for so long gives back the threads that shared its operations."""

Work = Callable[[], Any]
"""What a worker does."""

Done = Callable[[Any], None]
"""Told on the control plane what came of it: what it returned, or its error."""


class Worker:
    """One thread that does one thing at a time.

    Args:
        name: Name of the thread.
        notify: Runs a function on the control plane's thread.

    Attributes:
        thread: The thread.
    """

    def __init__(self, name: str, notify: Callable[[Callable[[], None]], None]) -> None:
        self._queue: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        self._notify = notify
        self.thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self.thread.start()

    def submit(self, work: Work, done: Done) -> None:
        """Do something, then call `done` on the control plane with what it returned, or with its error."""
        self._queue.put((work, done))

    def close(self) -> None:
        """Let it end after what it is doing, and wait for that."""
        self._queue.put(None)
        self.thread.join()

    def _loop(self) -> None:
        while (item := self._next()) is not None:
            work, done = item
            outcome = _outcome_of(work)
            del item, work
            self._notify(_Report(done, outcome))
            del done, outcome  # until the next one comes, nothing of this one may live on here

    def _next(self) -> tuple[Work, Done] | None:
        try:
            return self._queue.get(timeout=IDLE_S)
        except Empty:
            release_team()
            return self._queue.get()


class _Report:
    """Hands an outcome over, and holds it no longer than that."""

    __slots__ = ("_done", "_outcome")

    def __init__(self, done: Done, outcome: Any) -> None:
        self._done: Done | None = done
        self._outcome = outcome

    def __call__(self) -> None:
        done, outcome = self._done, self._outcome
        self._done = self._outcome = None
        assert done is not None, "an outcome is reported once"
        done(outcome)


def _outcome_of(work: Work) -> Any:
    try:
        return work()
    except FastVideoError as error:
        return error
    except BaseException as error:  # noqa: BLE001 - what is not caught below is the end of the worker
        lost = WorkerLostError(f"the worker stopped: {type(error).__name__}: {error}")
        lost.__cause__ = error
        return lost
