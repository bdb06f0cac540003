"""One thread that brings checkpoints to the disk while the steps go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Queue

__all__ = ["BackgroundWriter"]


class BackgroundWriter:
    """Runs tasks one after the other on a thread of its own, which starts with the first of them.

    A task must not raise.
    """

    def __init__(self) -> None:
        self._tasks: Queue[Callable[[], None] | None] = Queue()
        self._thread: threading.Thread | None = None

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task soon."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="fastvideo-state", daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def flush(self) -> None:
        """Wait until all tasks are done that were submitted before."""
        self._tasks.join()

    def close(self) -> None:
        """Finish all tasks and end the thread."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                if task is None:
                    return
                task()
            finally:
                self._tasks.task_done()
                del task  # holds the tensors of a checkpoint
