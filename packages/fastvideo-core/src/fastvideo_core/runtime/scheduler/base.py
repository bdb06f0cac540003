"""What the layers of the scheduler speak of: jobs, ready steps, limits, and decisions. Times are monotonic seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from fastvideo_core.errors import InputError

__all__ = [
    "DEFAULT_CLASSES",
    "Batch",
    "CostClass",
    "Job",
    "LatencyClass",
    "Limits",
    "ReadyStep",
    "SchedulerConfig",
    "WorkerSlot",
]

CostClass = Literal["small", "jumbo"]
"""Steps are indivisible: a jumbo one keeps whatever waits behind it waiting, so that it may have workers of its own."""

Dispatch = Literal["step", "request_fifo", "request_edf"]
"""`step` decides anew at every step; the others run one request to its end before the next, in order of acceptance or
of deadline. They are what step-level scheduling is measured against."""

_NO_BLOCKS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LatencyClass:
    """How urgent the requests of a class are.

    Attributes:
        name: As `Request.latency_class` has it.
        rank: Lower goes first.
        patience_s: A step, or a request in the queue, that has waited longer goes before all ranks.
        deadline_s: Seconds after acceptance by which a request of this class is due, unless it says so itself.
    """

    name: str
    rank: int
    patience_s: float
    deadline_s: float | None = None


DEFAULT_CLASSES: Mapping[str, LatencyClass] = MappingProxyType(
    {
        "interactive": LatencyClass("interactive", 0, patience_s=2.0),
        "standard": LatencyClass("standard", 1, patience_s=5.0),
        "batch": LatencyClass("batch", 2, patience_s=20.0),
    }
)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Settings of a scheduler.

    Attributes:
        max_running: Most requests that have started and not ended.
        max_queued: Most requests that wait for their start; more are refused.
        max_batch: Most steps in one call, whatever the loops allow.
        dispatch: At which boundaries decisions are made.
        jumbo_s: Steps that are predicted to take longer are of the jumbo cost class.
        classes: Latency classes by name.
    """

    max_running: int = 16
    max_queued: int = 1024
    max_batch: int = 32
    dispatch: Dispatch = "step"
    jumbo_s: float = 1.0
    classes: Mapping[str, LatencyClass] = field(default_factory=lambda: DEFAULT_CLASSES)

    def __post_init__(self) -> None:
        for name in ("max_running", "max_queued", "max_batch"):
            if getattr(self, name) < 1:
                raise InputError("too few", field=name, value=getattr(self, name), allowed="1 or more", nearest=1)
        if self.jumbo_s <= 0:
            raise InputError("not a time", field="jumbo_s", value=self.jumbo_s, allowed="above 0")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a pool has for all requests together.

    Attributes:
        memory_bytes: Bytes for states, results and activations, the weights not among them; None sets no limit.
        cache_blocks: Blocks of each cache.
        transfer_bytes: Bytes in flight between devices or hosts at a time.
        num_workers: Workers that share the memory; each may be in a step at the same time.
    """

    memory_bytes: int | None = None
    cache_blocks: Mapping[str, int] = field(default_factory=lambda: _NO_BLOCKS)
    transfer_bytes: int = 1 << 30
    num_workers: int = 1


@dataclass(slots=True, eq=False)
class Job:
    """A request as the scheduler sees it.

    Attributes:
        job_id: The request.
        latency_class: How urgent it is.
        accepted_at: When it was accepted.
        sequence: Its place in the order of acceptance.
        deadline_at: When it is due; None if never.
        resident_bytes: Most bytes that it holds between steps, over all its loops.
        peak_bytes: Most bytes that one of its steps, alone in its call, takes on top.
        cache_blocks: Most blocks that it holds of each cache.
        remaining_s: Predicted seconds of the steps that it has still to make, alone on the device.
        is_given_up: Whether its deadline cannot be kept, or only at the cost of more deadlines of others.
        order: Its place among the jobs: rank, then the time when it is due.
    """

    job_id: str
    latency_class: LatencyClass
    accepted_at: float
    sequence: int = 0
    deadline_at: float | None = None
    resident_bytes: int = 0
    peak_bytes: int = 0
    cache_blocks: Mapping[str, int] = field(default_factory=lambda: _NO_BLOCKS)
    remaining_s: float = 0.0
    is_given_up: bool = False
    order: tuple[int, float, int] = (0, 0.0, 0)


@dataclass(slots=True, eq=False)
class ReadyStep:
    """A step that can run now.

    Attributes:
        job: Whose it is.
        group: Number of its batch key; steps of one group may share a call. Below zero, it is short and shares none.
        patience_at: When it will have waited too long.
        seconds: Predicted seconds, alone in its call.
        peak_bytes: Bytes that it takes while it runs.
        max_batch: Most steps in its call.
        pool: Role pool that it runs in.
        affinity: Index of the worker that holds what it needs; "" if any will do.
        transfer_bytes: Bytes that it moves, where it is a transfer.
        is_preparation: Whether it leads to steps that others may share: it goes before those of its rank, and what is
            short and alone before all, so that requests which have started come to share calls soon.
        handle: Whatever the engine wants back with the decision.
        step_id: Its number, in the order in which steps became ready.
    """

    job: Job
    group: int
    patience_at: float
    seconds: float = 0.0
    peak_bytes: int = 0
    max_batch: int = 1
    pool: str = "main"
    affinity: str = ""
    transfer_bytes: int = 0
    is_preparation: bool = False
    handle: Any = None
    step_id: int = 0
    urgency: int = field(init=False)
    """Lower goes first: by rank, and within a rank preparation."""

    def __post_init__(self) -> None:
        stage = 2 if not self.is_preparation else int(self.group >= 0)
        self.urgency = 3 * self.job.latency_class.rank + stage


@dataclass(slots=True)
class Batch:
    """A decision: these steps run in one call.

    Attributes:
        steps: The steps, most urgent first.
        seconds: Predicted seconds of the call.
        peak_bytes: Bytes that it takes while it runs.
        worker: Index of the worker.
    """

    steps: tuple[ReadyStep, ...]
    seconds: float
    peak_bytes: int
    worker: int = 0


@dataclass(slots=True)
class WorkerSlot:
    """A worker as the scheduler sees it.

    Attributes:
        pool: Role pool that it belongs to.
        cost_classes: Steps that it takes.
        is_idle: Whether it can take a step now.
    """

    pool: str = "main"
    cost_classes: frozenset[CostClass] = frozenset({"small", "jumbo"})
    is_idle: bool = True
