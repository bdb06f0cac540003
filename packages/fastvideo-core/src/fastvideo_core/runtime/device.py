"""The device plane: the workers that run steps, and the one beside them that moves data."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fastvideo_core.runtime.workers import Done, Work, Worker

__all__ = ["DevicePlane"]


class DevicePlane:
    """The workers of a pool. All methods are called on the control plane's thread.

    Args:
        num_workers: Workers that run steps.
        notify: Runs a function on the control plane's thread.
    """

    def __init__(self, num_workers: int, notify: Callable[[Callable[[], None]], None]) -> None:
        self._workers = [Worker(f"fastvideo-device-{index}", notify) for index in range(num_workers)]
        self._link = Worker("fastvideo-link", notify)

    @property
    def is_alive(self) -> bool:
        """Whether all workers live."""
        return all(worker.thread.is_alive() for worker in (*self._workers, self._link))

    def run(self, index: int, work: Work, done: Done) -> None:
        """Do something on a worker, then tell what came of it."""
        self._workers[index].submit(work, done)

    def transfer(self, work: Work, done: Done) -> None:
        """Do something beside the steps, then tell what came of it."""
        self._link.submit(work, done)

    def exclusively(self, work: Work, done: Done) -> None:
        """Do something while no worker runs a step, then tell what came of it."""
        all_here = threading.Barrier(len(self._workers))
        is_over = threading.Event()

        def lead() -> Any:
            all_here.wait()
            try:
                return work()
            finally:
                is_over.set()

        def hold() -> None:
            all_here.wait()
            is_over.wait()

        # To all at once, so that two of these cannot wait for each other.
        self._workers[0].submit(lead, done)
        for worker in self._workers[1:]:
            worker.submit(hold, _ignore)

    def close(self) -> None:
        """Let all workers end after what they are doing, and wait for that; on another thread."""
        for worker in (*self._workers, self._link):
            worker.close()


def _ignore(_: Any) -> None:
    return None
