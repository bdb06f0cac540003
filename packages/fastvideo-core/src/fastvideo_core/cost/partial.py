"""Calls of which interceptors leave something out: what kind of work they are, and what of it was computed."""

from __future__ import annotations

from collections.abc import Sequence

from fastvideo_core.cost.line import mean_cost
from fastvideo_core.loop.work import BatchKey, StepCost

__all__ = ["computed_cost", "intercepted_key"]


def intercepted_key(key: BatchKey, interceptors: Sequence[str], *, is_whole: bool) -> BatchKey:
    """Return the key under which calls are predicted and observed at which interceptors stand.

    They are kinds of work of their own: an interceptor takes time itself, and may run blocks in another way than the
    model does; where the model is not asked at all, the time says nothing of steps of which it is.

    Args:
        key: Batch key of the plans.
        interceptors: Names of the interceptors; without any, the key stays what it is.
        is_whole: Whether the model computes all of at least one of the plans.
    """
    if not interceptors:
        return key
    return key._replace(variant=f"{key.variant}+{'+'.join(interceptors)}{'' if is_whole else '/part'}")


def computed_cost(costs: Sequence[StepCost], shares: Sequence[float]) -> StepCost:
    """Return the mean cost a plan of what was computed.

    Args:
        costs: What each plan states.
        shares: How much of that was computed, from 0 to 1.
    """
    return mean_cost([cost.scaled(share) for cost, share in zip(costs, shares, strict=True)])
