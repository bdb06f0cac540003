"""How an engine runs requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fastvideo_core.cache.pools import CacheBudget
from fastvideo_core.runtime.compile_cache import CompileOptions
from fastvideo_core.runtime.scheduler.base import SchedulerConfig, WorkerSlot
from fastvideo_core.runtime.scheduler.log import DecisionLog
from fastvideo_core.runtime.sessions.base import SessionLimits

__all__ = ["RuntimeOptions"]


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How an engine runs requests.

    Attributes:
        scheduler: Settings of the scheduler.
        num_workers: Threads that run steps; more than one pays where single steps leave the device idle.
        workers: Which steps each of them takes, in place of their number; empty if all take everything.
        memory_bytes: Bytes for all requests together, besides the weights; None takes what is available at the start,
            less a tenth.
        costs_file: File that the cost model's calibrations are read from and written to; None keeps them in memory.
        log: Where the scheduler's decisions are written for a replay.
        compiling: What is compiled or captured, as far as the card allows it; by default nothing on a CPU.
        sessions: How many sessions there may be.
        caches: Budgets of caches by name, where they differ from the card's.
    """

    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    num_workers: int = 1
    workers: tuple[WorkerSlot, ...] = ()
    memory_bytes: int | None = None
    costs_file: Path | None = None
    log: DecisionLog | None = None
    compiling: CompileOptions = field(default_factory=CompileOptions)
    sessions: SessionLimits = field(default_factory=SessionLimits)
    caches: Mapping[str, CacheBudget] = field(default_factory=dict)
