"""How the control plane is held: for a moment, between steps, or until no request is half-way."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from fastvideo_core.runtime.active import Active
from fastvideo_core.runtime.control_thread import ControlThread
from fastvideo_core.runtime.device import DevicePlane
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.scheduler.core import Scheduler

__all__ = ["PausableControl"]

_T = TypeVar("_T")


class PausableControl(ControlThread):
    """The part of the control plane that is held, and let go on, from other threads."""

    _device: DevicePlane
    _scheduler: Scheduler
    _instance: ModelInstance | None
    _actives: dict[str, Active]

    def __init__(self, failed: Callable[[Any, dict[str, Any]], None]) -> None:
        self._num_pauses = 0
        self._num_freezes = 0
        self._anew: list[Active] = []
        self._drained: list[Callable[[], None]] = []
        super().__init__(failed)

    @abstractmethod
    def _pump(self) -> None: ...

    @abstractmethod
    def _start_nodes(self, active: Active) -> None: ...

    @abstractmethod
    def _close_tasks(self, active: Active) -> None: ...

    def exclusively(self, function: Callable[[], _T]) -> _T:
        """Run a function on the device plane while no step runs, and return what it returns; from any other thread.

        Raises:
            FastVideoError: The function's own error.
        """
        answer: Future[_T] = Future()
        self.call(lambda: self._device.exclusively(function, partial(_settle_future, answer)))
        return answer.result()

    def pause(self) -> None:
        """Begin no further step, and wait until those in progress have ended; from any other thread."""

        def begin() -> None:
            self._num_pauses += 1

        self.call(begin)
        self.exclusively(lambda: None)

    def go_on(self) -> None:
        """End one pause."""

        def end() -> None:
            self._num_pauses -= 1
            self._pump()

        self.call(end)

    def freeze(self, *, restart: bool) -> None:
        """Start no further request, and wait until none is half-way; from any other thread, until `thaw`.

        Args:
            restart: Whether requests that have started go back to their beginning at their next step boundary, and
                are run anew after the thaw; else they are waited for. Sessions are waited for in any case.
        """
        empty = threading.Event()

        def begin() -> None:
            self._num_freezes += 1
            for active in self._half_way() if restart else ():
                if active.run.outside is None and active.error is None:
                    self._close_tasks(active)
                    self._anew.append(active)
            self._drained.append(empty.set)
            self._tell_drained()

        self.call(begin)
        empty.wait()

    def thaw(self) -> None:
        """End one freeze."""

        def end() -> None:
            self._num_freezes -= 1
            anew, self._anew = ([], self._anew) if self._num_freezes else (self._anew, [])
            for active in anew:
                if active.run.request_id in self._actives and self._instance is not None:
                    active.run.restore({}, self._instance)
                    self._start_nodes(active)
            self._pump()

        self.call(end)

    def _half_way(self) -> list[Active]:
        """Return the requests that have started, but for those that begin anew."""
        started = [self._actives[name] for name in self._scheduler.running if name in self._actives]
        return [active for active in started if active not in self._anew]

    def _tell_drained(self) -> None:
        """Tell those who wait for it that no request is half-way."""
        if self._drained and not self._half_way():
            for tell in self._drained:
                tell()
            self._drained.clear()


def _settle_future(future: Future[Any], outcome: Any) -> None:
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
