"""Looks at what the scheduler decides: calls, their sizes, what they took, and whether one does not come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fastvideo_core.runtime.scheduler.base import Job, ReadyStep
from fastvideo_core.runtime.scheduler.log import DecisionLog

__all__ = ["SchedulerWatch"]


class SchedulerWatch(DecisionLog):
    """Takes a scheduler's log and keeps figures of it, not its records.

    Args:
        on_call: Told of each call that has ended: how many steps, what it took, and what a call of one step was
            predicted to take (None for several). On the engine's own thread.

    Attributes:
        on_begin: Told of the jobs of each call that begins, a job for each of its steps, and when, monotonic seconds.
    """

    def __init__(self, on_call: Callable[[int, float, float | None], None]) -> None:
        super().__init__()
        self.on_begin: list[Callable[[tuple[str, ...], float], None]] = []
        self._on_call = on_call
        self._offered: dict[int, tuple[str, float]] = {}
        self._running: dict[int, tuple[float, int, float]] = {}

    def oldest_s(self) -> float:
        """Return for how many seconds the oldest call that has not come back is under way; 0 without one."""
        begun = [at for at, _, _ in tuple(self._running.values())]
        return time.monotonic() - min(begun) if begun else 0.0

    def recording(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Leave the cost model as it is."""
        return function

    def submitted(self, job: Job, now: float) -> None:
        """Take no note."""

    def renewed(self, job: Job, now: float) -> None:
        """Take no note."""

    def offered(self, kind: str, step: ReadyStep, now: float) -> None:
        """Remember what a step is predicted to take."""
        if kind == "offer":
            self._offered[step.step_id] = (step.job.job_id, step.seconds)

    def decided(self, kind: str, now: float, decision: Any) -> None:
        """Note a call that begins."""
        if kind == "batch" and decision is not None:
            worker, steps = decision
            begun = [self._offered.pop(one, ("", 0.0)) for one in steps]
            self._running[worker] = (now, len(steps), sum(seconds for _, seconds in begun))
            for tell in self.on_begin:
                tell(tuple(job_id for job_id, _ in begun), now)

    def ended(self, kind: str, now: float, subject: int, seconds: float) -> None:
        """Note a call that has ended, or a step that is no longer wanted."""
        if kind == "retract":
            self._offered.pop(subject, None)
        elif kind == "finished" and (call := self._running.pop(subject, None)) is not None:
            _, size, predicted_s = call
            if seconds > 0:
                self._on_call(size, seconds, predicted_s if size == 1 and predicted_s > 0 else None)

    def withdrawn(self, job_id: str, now: float) -> None:
        """Forget the steps of a job."""
        for step in [step for step, (owner, _) in self._offered.items() if owner == job_id]:
            del self._offered[step]
