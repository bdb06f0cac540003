"""Where the next call runs, and which transfers start beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from fastvideo_core.errors import InputError
from fastvideo_core.runtime.scheduler.base import CostClass, ReadyStep, WorkerSlot

__all__ = ["check_has_worker", "choose_transfers", "choose_worker", "cost_class", "steps_for"]

_ALL: frozenset[CostClass] = frozenset({"small", "jumbo"})


def cost_class(seconds: float, jumbo_s: float) -> CostClass:
    """Return the cost class of a step that is predicted to take that long."""
    return "jumbo" if seconds > jumbo_s else "small"


def steps_for(
    index: int, workers: Sequence[WorkerSlot], ready: Collection[ReadyStep], jumbo_s: float
) -> Collection[ReadyStep]:
    """Return the ready steps that a worker may take: of its pool and cost classes, and not bound to another worker."""
    worker = workers[index]
    if len(workers) == 1 and worker.cost_classes == _ALL:
        return ready
    own = str(index)
    return [
        step
        for step in ready
        if step.pool == worker.pool
        and cost_class(step.seconds, jumbo_s) in worker.cost_classes
        and step.affinity in ("", own)
    ]


def check_has_worker(step: ReadyStep, workers: Sequence[WorkerSlot]) -> None:
    """Refuse a step that no worker would ever take.

    Raises:
        InputError: With what there is.
    """
    if step.pool not in {worker.pool for worker in workers}:
        pools = ", ".join(sorted({worker.pool for worker in workers}))
        raise InputError("no worker of this pool", field="pool", value=step.pool, allowed=pools)
    own = [str(index) for index, worker in enumerate(workers) if worker.pool == step.pool]
    if step.affinity not in ("", *own):
        raise InputError("no such worker in its pool", field="affinity", value=step.affinity, allowed=", ".join(own))


def choose_worker(workers: Sequence[WorkerSlot]) -> list[int]:
    """Return the idle workers, the choosiest first, so that the others stay free for what only they take."""
    if len(workers) == 1:
        return [0] if workers[0].is_idle else []
    idle = [(len(worker.cost_classes), index) for index, worker in enumerate(workers) if worker.is_idle]
    return [index for _, index in sorted(idle)]


def choose_transfers(
    waiting: Iterable[ReadyStep], now: float, in_flight_bytes: int, limit_bytes: int
) -> list[ReadyStep]:
    """Return the transfers that start now; they share the link, not the device.

    First go those that have waited beyond their patience, longest first; then by order. One that is larger than the
    whole limit goes alone. The first that does not fit holds back those behind it: a link that is always given to the
    small ones would never carry a large one.
    """

    def key(step: ReadyStep) -> tuple[int, float, tuple[int, float, int]]:
        return (0, step.patience_at, step.job.order) if step.patience_at <= now else (1, 0.0, step.job.order)

    starts: list[ReadyStep] = []
    for step in sorted(waiting, key=key):
        if in_flight_bytes + step.transfer_bytes > limit_bytes and in_flight_bytes > 0:
            break
        in_flight_bytes += step.transfer_bytes
        starts.append(step)
    return starts
