"""Which ready steps share the next call."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from fastvideo_core.runtime.scheduler.base import Batch, ReadyStep
from fastvideo_core.runtime.scheduler.ordering import most_urgent

__all__ = ["CanBatch", "Predict", "choose_batch"]

Predict = Callable[[ReadyStep, int], float]
"""Predicted seconds of one call of a step with others like it, from the step and the size of the batch."""

CanBatch = Callable[[ReadyStep, ReadyStep], bool]
"""Whether two steps of one group, unequal ones, may share a call."""


def choose_batch(
    ready: Collection[ReadyStep],
    now: float,
    *,
    predict: Predict,
    free_bytes: int | None = None,
    max_batch: int = 32,
    can_batch: CanBatch | None = None,
    max_s: float = math.inf,
) -> Batch:
    """Return the most urgent step with all that may and should share its call.

    Args:
        ready: At least one step.
        now: The time.
        predict: Predicted seconds of a call.
        free_bytes: Bytes that a call may take; None sets no limit. A single step always runs: its job was admitted
            with it.
        max_batch: Most steps in a call.
        can_batch: Whether unequal steps of a group go together; asked of every two in a call.
        max_s: Predicted seconds that a call of more than one step may take.
    """
    head = most_urgent(ready, now)
    group, size = head.group, min(head.max_batch, max_batch)
    if size == 1 or len(ready) == 1:
        return Batch((head,), head.seconds, head.peak_bytes)
    mates = [step for step in ready if step.group == group and step is not head]
    if len(mates) >= size:
        mates.sort(key=lambda step: step.job.order)
    chosen = _tolerated(head, mates, size, can_batch)
    size = _affordable(head, chosen, now, predict, free_bytes, max_s)
    steps = (head, *chosen[: size - 1])
    return Batch(steps, predict(head, size), sum([step.peak_bytes for step in steps]))


def _tolerated(
    head: ReadyStep, mates: Sequence[ReadyStep], size: int, can_batch: CanBatch | None
) -> Sequence[ReadyStep]:
    """Return the first mates that make up a batch in which each step takes the number, and the kind, of the others."""
    if can_batch is None:
        wanted = min(size, 1 + len(mates))
        for mate in mates:
            if mate.max_batch < wanted:
                break
        else:
            return mates[: size - 1]
    steps = [head]
    for mate in mates:
        if len(steps) >= size:
            break
        if mate.max_batch > len(steps) and (can_batch is None or all(can_batch(step, mate) for step in steps)):
            steps.append(mate)
            size = min(size, mate.max_batch)
    return steps[1:]


def _affordable(
    head: ReadyStep, mates: Sequence[ReadyStep], now: float, predict: Predict, free_bytes: int | None, max_s: float
) -> int:
    """Return how many may share the call, within memory, time, and the slack of the most urgent one's deadline."""
    size = 1 + len(mates)
    if free_bytes is not None:
        used, size = head.peak_bytes, 1
        for mate in mates:
            used += mate.peak_bytes
            if used > free_bytes:
                break
            size += 1
    job = head.job
    if job.deadline_at is not None and not job.is_given_up and job.remaining_s > 0:
        # As if all its steps were stretched as this one: it must still be there in time.
        max_s = min(max_s, predict(head, 1) * (job.deadline_at - now) / job.remaining_s)
    while size > 1 and max_s < math.inf and predict(head, size) > max_s:
        size = size // 2 if size > 8 else size - 1
    return size
