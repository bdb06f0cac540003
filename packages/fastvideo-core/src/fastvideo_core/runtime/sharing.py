"""Results that requests share: a step whose result follows from its key alone is run once for all who ask for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastvideo_core.cache import CachePools, Claim, FeatureHandle, held_bytes
from fastvideo_core.cache.features import ClaimState
from fastvideo_core.loop.work import StepResult, WorkPlan

__all__ = ["SharedResults"]


class SharedResults:
    """Answers steps from the card's feature caches, for one request after the other.

    Args:
        pools: The card's caches.
    """

    def __init__(self, pools: CachePools) -> None:
        self._pools = pools

    def ask(
        self,
        plan: WorkPlan[Any],
        *,
        answer: Callable[[StepResult[Any], FeatureHandle], None],
        compute: Callable[[], None],
    ) -> Claim | None:
        """Find out who makes a step's result, and tell it now or when it shows.

        Args:
            plan: The step.
            answer: Told the result, if it is there or another request makes it, with the handle that keeps it.
            compute: Told if this request has to make it.

        Returns:
            The claim, which is to be filled or abandoned; None if the step's result is the request's own, in which case
            neither is told.
        """
        key = plan.cache.result_key
        cache = None if key is None else self._pools.feature_cache(key)
        if key is None or cache is None:
            return None
        claim = cache.claim(key)

        def tell() -> None:
            if claim.state is ClaimState.HIT:
                handle = claim.take()
                answer(StepResult(handle.value), handle)
            elif claim.state is ClaimState.COMPUTE:
                compute()
            else:
                claim.on_change = tell

        tell()
        return claim

    @staticmethod
    def fill(claim: Claim, result: StepResult[Any]) -> FeatureHandle:
        """Give a result that was made to all who wait for it."""
        return claim.fill(result.values, held_bytes(result.values))
