"""Profiler: wall and device time of every step, as a Chrome trace, a table, and calibrations of the cost model."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastvideo_core.cost import CostModel, computed_cost, intercepted_key, this_device
from fastvideo_core.errors import StateError
from fastvideo_core.loop.hooks import ResultView, StepView
from fastvideo_observers.clocks import Clock, Times, start_clock
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
        device_s: Device time; see `clocks.Times`.
        thread: The worker that ran it.
    """

    loop_id: str
    component: str
    requests: tuple[str, ...]
    step_indices: tuple[int, ...]
    num_computed: int
    began_s: float
    seconds: float
    device_s: float
    thread: int


@dataclass(slots=True)
class _Total:
    """What calls of one kind took together."""

    num_calls: int = 0
    wall_s: float = 0.0
    device_s: float = 0.0


class Profiler:
    """Times calls. On an accelerator it waits for each of them.

    Args:
        options: What is written, and how much is kept.

    Attributes:
        calls: Calls in the order in which they ended.
        costs: Calibrations of the cost model; None where none are kept, or before the first step.

    Raises:
        StateError: The file of calibrations is there and is none.
    """

    def __init__(self, options: ProfilerOptions) -> None:
        self._options = options
        self._made_at = time.perf_counter()
        self._clocks: dict[int, Clock] = {}
        self._totals: dict[tuple[str, str, int], _Total] = defaultdict(_Total)
        self._lock = threading.Lock()
        self.calls: list[Call] = []
        self.costs = _known_costs(options.costs)

    def step_started(self, steps: Sequence[StepView]) -> None:
        """Start a clock."""
        self._clocks[threading.get_ident()] = start_clock(steps[0].device)

    def tensor(self, name: str, step: StepView, value: torch.Tensor) -> None:
        """Do nothing: the description does not ask for tensors."""

    def step_finished(self, steps: Sequence[StepView], results: Sequence[ResultView], seconds: float) -> None:
        """Note a call."""
        thread = threading.get_ident()
        times = self._clocks.pop(thread).stop()
        with self._lock:
            self._add(steps, results, times, thread)
            if self._options.costs is not None and all(one.is_finite for one in results):
                self._observe(self._options.costs, steps, results, times)

    def table(self) -> str:
        """Return calls, and seconds and milliseconds of wall and device, by loop, component and batch size."""
        head = f"{'loop':<24}{'component':<20}{'batch':>6}{'calls':>8}{'wall s':>10}{'device s':>10}"
        rows = [f"{head}{'ms a call':>11}{'ms a step':>11}{'device ms a step':>18}"]
        for (loop, component, size), total in sorted(self._totals.items()):
            call_ms, device_ms = total.wall_s / total.num_calls * 1e3, total.device_s / total.num_calls * 1e3
            rows.append(
                f"{loop:<24}{component:<20}{size:>6}{total.num_calls:>8}{total.wall_s:>10.3f}{total.device_s:>10.3f}"
                f"{call_ms:>11.3f}{call_ms / size:>11.3f}{device_ms / size:>18.3f}"
            )
        return "\n".join(rows)

    def trace(self) -> dict[str, Any]:
        """Return the calls in the Trace Event Format: one complete event each, times in microseconds."""
        return {"displayTimeUnit": "ms", "traceEvents": [*_names(self.calls), *map(_event, self.calls)]}

    def close(self) -> None:
        """Write what the options ask for."""
        if self._options.trace is not None:
            self._options.trace.write_text(json.dumps(self.trace()), encoding="utf-8")
        if self._options.table is not None:
            self._options.table.write_text(f"{self.table()}\n", encoding="utf-8")
        if self._options.costs is not None and self.costs is not None:
            self.costs.save(self._options.costs)

    def _add(self, steps: Sequence[StepView], results: Sequence[ResultView], times: Times, thread: int) -> None:
        first = steps[0]
        total = self._totals[first.loop_id, first.batch_key.component, len(steps)]
        total.num_calls += 1
        total.wall_s += times.wall_s
        total.device_s += times.device_s
        if len(self.calls) < self._options.max_calls:
            call = Call(
                loop_id=first.loop_id,
                component=first.batch_key.component,
                requests=tuple(step.request_id for step in steps),
                step_indices=tuple(step.step_index for step in steps),
                num_computed=sum(result.is_computed for result in results),
                began_s=times.began_s - self._made_at,
                seconds=times.wall_s,
                device_s=times.device_s,
                thread=thread,
            )
            self.calls.append(call)

    def _observe(self, path: Path, steps: Sequence[StepView], results: Sequence[ResultView], times: Times) -> None:
        """Let the cost model learn from a call: on a CPU from its wall time, for which the others wait."""
        device = this_device(steps[0].device)
        if self.costs is None:
            self.costs = CostModel(device)
        if self.costs.device != device:
            raise StateError(f"{path} has calibrations of {self.costs.device}; this is {device}: give another file")
        seconds = times.wall_s if device.kind == "cpu" else times.device_s
        if seconds > 0:
            shares = [result.computed_share for result in results]
            key = intercepted_key(steps[0].batch_key, steps[0].interceptors, is_whole=max(shares) == 1)
            self.costs.observe(key, computed_cost([step.cost for step in steps], shares), len(steps), seconds)


def _known_costs(path: Path | None) -> CostModel | None:
    return CostModel.load(path) if path is not None and path.exists() else None


def _names(calls: Sequence[Call]) -> Iterator[dict[str, Any]]:
    """Yield what viewers show beside the process and its workers."""
    yield {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "fastvideo"}}
    for index, thread in enumerate(dict.fromkeys(call.thread for call in calls)):
        yield {"name": "thread_name", "ph": "M", "pid": 0, "tid": thread, "args": {"name": f"worker {index}"}}


def _event(call: Call) -> dict[str, Any]:
    return {
        "name": f"{call.loop_id} x{len(call.requests)}",
        "cat": call.component,
        "ph": "X",
        "ts": round(call.began_s * 1e6, 3),
        "dur": round(call.seconds * 1e6, 3),
        "pid": 0,
        "tid": call.thread,
        "args": {
            "requests": list(call.requests),
            "steps": list(call.step_indices),
            "computed": call.num_computed,
            "device_ms": round(call.device_s * 1e3, 6),
        },
    }
