"""Profiler: what every call takes, as a Chrome trace and as a table by loop, component and batch size."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastvideo_core.loop.hooks import ResultView, StepView
from fastvideo_observers.options import ProfilerOptions

__all__ = ["Call", "Profiler"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a step body.

    Attributes:
        loop_id: The loop.
        component: The component that computed.
        requests: The requests whose steps shared it.
        step_indices: Their positions.
        num_computed: Steps that the model computed; interceptors answered for the others.
        began_s: When it began, seconds since the profiler was made.
        seconds: Wall time, the device's work included.
        thread: The worker that ran it.
    """

    loop_id: str
    component: str
    requests: tuple[str, ...]
    step_indices: tuple[int, ...]
    num_computed: int
    began_s: float
    seconds: float
    thread: int


class Profiler:
    """Times calls. On an accelerator it waits for each of them, so that the times are the device's.

    Attributes:
        calls: Calls in the order in which they ended.
    """

    def __init__(self, options: ProfilerOptions) -> None:
        self._options = options
        self._made_at = time.perf_counter()
        self._began: dict[int, float] = {}
        self._totals: dict[tuple[str, str, int], list[float]] = defaultdict(lambda: [0, 0.0])
        self.calls: list[Call] = []

    def step_started(self, steps: Sequence[StepView]) -> None:
        """Note the time."""
        self._began[threading.get_ident()] = _now()

    def tensor(self, name: str, step: StepView, value: torch.Tensor) -> None:
        """Do nothing: the description does not ask for tensors."""

    def step_finished(self, steps: Sequence[StepView], results: Sequence[ResultView], seconds: float) -> None:
        """Note a call."""
        thread = threading.get_ident()
        ended = _now()
        began = self._began.pop(thread, ended - seconds)
        first = steps[0]
        total = self._totals[first.loop_id, first.batch_key.component, len(steps)]
        total[0] += 1
        total[1] += ended - began
        if len(self.calls) < self._options.max_calls:
            call = Call(
                loop_id=first.loop_id,
                component=first.batch_key.component,
                requests=tuple(step.request_id for step in steps),
                step_indices=tuple(step.step_index for step in steps),
                num_computed=sum(result.is_computed for result in results),
                began_s=began - self._made_at,
                seconds=ended - began,
                thread=thread,
            )
            self.calls.append(call)

    def table(self) -> str:
        """Return calls, seconds and milliseconds a call by loop, component and batch size."""
        rows = [f"{'loop':<24}{'component':<20}{'batch':>6}{'calls':>8}{'seconds':>10}{'ms a call':>11}"]
        for (loop, component, size), (count, seconds) in sorted(self._totals.items()):
            per_call = seconds / count * 1e3
            rows.append(f"{loop:<24}{component:<20}{size:>6}{count:>8.0f}{seconds:>10.3f}{per_call:>11.3f}")
        return "\n".join(rows)

    def trace(self) -> dict[str, Any]:
        """Return the calls in the Trace Event Format: one complete event each, times in microseconds."""
        return {"displayTimeUnit": "ms", "traceEvents": [_event(call) for call in self.calls]}

    def close(self) -> None:
        """Write what the options ask for."""
        if self._options.trace is not None:
            self._options.trace.write_text(json.dumps(self.trace()), encoding="utf-8")
        if self._options.table is not None:
            self._options.table.write_text(f"{self.table()}\n", encoding="utf-8")


def _event(call: Call) -> dict[str, Any]:
    return {
        "name": f"{call.loop_id} x{len(call.requests)}",
        "cat": call.component,
        "ph": "X",
        "ts": round(call.began_s * 1e6, 3),
        "dur": round(call.seconds * 1e6, 3),
        "pid": 0,
        "tid": call.thread,
        "args": {"requests": list(call.requests), "steps": list(call.step_indices), "computed": call.num_computed},
    }


def _now() -> float:
    """Return the time, once the device has done what it was given."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()
