"""Which device figures belong to, and a quick measurement of one that nothing is known of."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from fastvideo_core.cost.line import CostLine
from fastvideo_core.parallel.threads import release_team

__all__ = ["DeviceIdentity", "probe_device", "this_device"]

_PART_S = 0.006
"""Time given to each of the three parts of the quick measurement."""


class DeviceIdentity(NamedTuple):
    """What figures hold for. Calibrations of one device say nothing of another.

    Attributes:
        kind: Processor or accelerator.
        name: Its product name.
        num_threads: Threads that one operation uses; 1 for an accelerator.
    """

    kind: Literal["cpu", "cuda"]
    name: str
    num_threads: int = 1

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.num_threads} threads)" if self.kind == "cpu" else self.name


def this_device(device: str = "cpu") -> DeviceIdentity:
    """Return the identity of a device of this machine, by the name that torch gives it; imports torch."""
    import torch

    if torch.device(device).type == "cuda":
        return DeviceIdentity("cuda", torch.cuda.get_device_name(device))
    return DeviceIdentity("cpu", _cpu_name(), torch.get_num_threads())


def probe_device(device: str = "cpu") -> CostLine:
    """Measure a device for about 20 ms: a product of matrices, a copy, and calls of small operations.

    The figures are of single kernels at their best, for a first guess only; imports torch.
    """
    import torch

    target = torch.device(device)
    is_cuda = target.type == "cuda"
    edge, copied = (2048, 1 << 26) if is_cuda else (256, 1 << 22)
    # Formed from fixed values: the random state of the process is not this function's to touch.
    matrix = torch.full((edge, edge), 0.5, dtype=torch.bfloat16 if is_cuda else torch.float32, device=target)
    product = torch.empty_like(matrix)
    source = torch.zeros(copied, dtype=torch.uint8, device=target)
    copy = torch.empty_like(source)
    small = torch.zeros(16, device=target)

    def best(function: Callable[[], object]) -> float:
        return _best_s(function, torch.cuda.synchronize if is_cuda else _nothing)

    with torch.no_grad():
        flop_s = best(lambda: torch.mm(matrix, matrix, out=product)) / (2.0 * edge**3)
        byte_s = best(lambda: copy.copy_(source)) / (2.0 * copied)
        operation_s = best(lambda: small.add_(1.0))
    release_team()  # the scheduler asks for this on its own thread, which computes nothing else
    # A step is some hundred operations, and about ten more for each plan (stacking, the sampler's update).
    return CostLine(call_s=200 * operation_s, plan_s=10 * operation_s, flop_s=flop_s, byte_s=byte_s)


def _best_s(function: Callable[[], object], wait: Callable[[], object]) -> float:
    function()
    wait()
    best_s = float("inf")
    end = time.perf_counter() + _PART_S
    while (start := time.perf_counter()) < end:
        function()
        wait()
        best_s = min(best_s, time.perf_counter() - start)
    return best_s if best_s < float("inf") else _PART_S


def _nothing() -> None:
    return None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
