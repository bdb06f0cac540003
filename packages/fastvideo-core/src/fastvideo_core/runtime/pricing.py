"""What steps cost, those included of which interceptors leave something out.

How much an interceptor will leave out is its own affair, and may depend on what the step finds. So it is learned: for
each position in a loop, of requests whose interceptors have the same options, how often which share was computed. A
step is priced by the mean over these shares. Where nothing has been seen yet, all of it is taken to be computed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from fastvideo_core.cost import computed_cost, intercepted_key, mean_cost
from fastvideo_core.loop.base import StepEstimate
from fastvideo_core.loop.hooks import RunHooks
from fastvideo_core.loop.work import BatchKey, StepCost, StepResult, WorkPlan

__all__ = ["CostSource", "Pricing"]

_Place = tuple[object, ...]
_MAX_PLACES = 8192
_WHOLE: Mapping[float, float] = MappingProxyType({1.0: 1.0})
_STEP_WINDOW = 4
_LOOP_WINDOW = 512
"""How many of the last steps count: of one position, and of all positions of a loop."""
_LEAST_WEIGHT = 1e-3


class CostSource(Protocol):
    """Predicts the seconds of calls; `fastvideo_core.cost.CostModel` is one."""

    def predict(self, key: BatchKey, cost: StepCost, num_plans: int = 1) -> float:
        """Return the predicted seconds of one call of `num_plans` equal plans."""
        ...

    def observe(self, key: BatchKey, cost: StepCost, num_plans: int, seconds: float) -> None:
        """Learn from a measured call."""
        ...


class Pricing:
    """Prices steps, and learns from those that were made. It is used from one thread, the control plane's.

    Args:
        costs: Predicts seconds.
    """

    def __init__(self, costs: CostSource) -> None:
        self._costs = costs
        self._seen: OrderedDict[_Place, _Shares] = OrderedDict()

    def plan_s(self, plan: WorkPlan[Any], num_plans: int = 1) -> float:
        """Return the predicted seconds of one call of a plan with others like it."""
        work = plan.plugins
        if work is None:
            return self._costs.predict(plan.batch_key, plan.resources.cost, num_plans)
        weights = self._weights(_step_place(plan))
        return self._mean_s(plan.batch_key, plan.resources.cost, tuple(work.options), weights, num_plans)

    def kind_s(self, step: StepEstimate, hooks: RunHooks | None) -> float:
        """Return the predicted seconds of the mean step of one kind, alone in its call.

        Args:
            step: Steps that a loop will take.
            hooks: What its plans will carry for interceptors; None if nothing.
        """
        if hooks is None:
            return self._costs.predict(step.batch_key, step.cost)
        weights = self._weights(_kind_place(step.batch_key, hooks.signature))
        return self._mean_s(step.batch_key, step.cost, tuple(hooks.options), weights, 1)

    def learn(self, plans: Sequence[WorkPlan[Any]], results: Sequence[StepResult[Any]], seconds: float) -> None:
        """Learn from a call that went as it should.

        Args:
            plans: Its plans.
            results: What they gave.
            seconds: Device-seconds that it took.
        """
        if all(plan.plugins is None for plan in plans):
            cost = mean_cost([plan.resources.cost for plan in plans])
            self._costs.observe(plans[0].batch_key, cost, len(plans), seconds)
            return
        shares = [round(result.computed_share, 3) for result in results]
        names = () if plans[0].plugins is None else tuple(plans[0].plugins.options)
        key = intercepted_key(plans[0].batch_key, names, is_whole=max(shares) == 1)
        cost = computed_cost([plan.resources.cost for plan in plans], shares)
        self._costs.observe(key, cost, len(plans), seconds)
        for plan, share in zip(plans, shares, strict=True):
            if plan.plugins is not None:
                self._note(_step_place(plan), share, _STEP_WINDOW)
                self._note(_kind_place(plan.batch_key, plan.plugins.signature), share, _LOOP_WINDOW)

    def _mean_s(
        self, key: BatchKey, cost: StepCost, names: tuple[str, ...], weights: Mapping[float, float], num_plans: int
    ) -> float:
        seconds = 0.0
        for share, weight in weights.items():
            kind = intercepted_key(key, names, is_whole=share == 1)
            seconds += weight * self._costs.predict(kind, cost.scaled(share), num_plans)
        return seconds

    def _weights(self, place: _Place) -> Mapping[float, float]:
        known = self._seen.get(place)
        return _WHOLE if known is None else known.weights

    def _note(self, place: _Place, share: float, window: int) -> None:
        known = self._seen.get(place)
        if known is None:
            if len(self._seen) >= _MAX_PLACES:
                self._seen.popitem(last=False)
            known = self._seen[place] = _Shares()
        self._seen.move_to_end(place)
        known.add(share, window)


class _Shares:
    """How often which share was computed.

    Attributes:
        num_seen: Steps that were seen.
        weights: Shares with what they weigh, one together.
    """

    __slots__ = ("num_seen", "weights")

    def __init__(self) -> None:
        self.num_seen = 0
        self.weights: dict[float, float] = {}

    def add(self, share: float, window: int) -> None:
        """Take a step in, which weighs as much as each of the last `window` ones."""
        self.num_seen += 1
        kept = 1.0 - 1.0 / min(self.num_seen, window)
        weights = {one: kept * weight for one, weight in self.weights.items() if kept * weight > _LEAST_WEIGHT}
        weights[share] = weights.get(share, 0.0) + 1.0 - sum(weights.values())
        self.weights = weights


def _step_place(plan: WorkPlan[Any]) -> _Place:
    work = plan.plugins
    assert work is not None, "a plan without interceptors has no such place"
    return (*_kind_place(plan.batch_key, work.signature), plan.num_steps, plan.step_index)


def _kind_place(key: BatchKey, signature: str) -> _Place:
    return (key.loop_kind, key.component, signature)
