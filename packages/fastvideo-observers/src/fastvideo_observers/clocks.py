"""How long a call takes: on the wall, and on its device."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import torch

__all__ = ["Clock", "CpuClock", "CudaClock", "Times", "start_clock"]


@dataclass(frozen=True, slots=True)
class Times:
    """What a call took.

    Attributes:
        began_s: When it began, as `time.perf_counter` tells it.
        wall_s: Seconds until all of it was done, the device's work included.
        device_s: On an accelerator, seconds between two marks in its stream, which do not count the time before it
            began; on a CPU, seconds of its cores, of all threads of the process together.
    """

    began_s: float
    wall_s: float
    device_s: float


class Clock(Protocol):
    """A clock that runs since it was made."""

    def stop(self) -> Times:
        """Wait for the device, and return what has passed."""
        ...


class CpuClock:
    """Counts the wall's seconds and those of the cores."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._cores_s = time.process_time()

    def stop(self) -> Times:
        """Return what has passed; the work of a CPU is done when its call returns."""
        return Times(self._began_s, time.perf_counter() - self._began_s, time.process_time() - self._cores_s)


class CudaClock:
    """Marks the stream of a device, and waits for the second mark."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._first = torch.cuda.Event(enable_timing=True)
        self._last = torch.cuda.Event(enable_timing=True)
        self._began_s = time.perf_counter()
        self._first.record(self._stream)

    def stop(self) -> Times:
        """Wait for the stream, and return what has passed."""
        self._last.record(self._stream)
        self._last.synchronize()
        wall_s = time.perf_counter() - self._began_s
        return Times(self._began_s, wall_s, self._first.elapsed_time(self._last) / 1e3)


def start_clock(device: str) -> Clock:
    """Return a clock for a device, by the name that torch gives it."""
    target = torch.device(device)
    return CudaClock(target) if target.type == "cuda" else CpuClock()
