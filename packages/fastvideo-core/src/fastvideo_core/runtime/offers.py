"""From what a loop asks for to what the scheduler is offered: its price, its bytes, and with whom it may run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from fastvideo_core.card import ModelCard, resolve_ref
from fastvideo_core.loop.work import BatchKey, ShapeSignature, StepCost, WorkKind, WorkPlan
from fastvideo_core.runtime.pricing import CostSource, Pricing
from fastvideo_core.runtime.run import HostWork
from fastvideo_core.runtime.scheduler.base import Batch, Job, ReadyStep
from fastvideo_core.runtime.steps import CallOutcome

__all__ = ["Offers"]

_LOG = logging.getLogger(__name__)
_NO_SHAPE = ShapeSignature(())
_PREPARATIONS = frozenset({WorkKind.ENCODER_CHUNK, WorkKind.AR_PREFILL})
"""Kinds that lead to steps which requests share: a text that has been read joins the others' next token."""
HOST_S = 1e-3
"""What host work is taken to last: it is short, and nothing is known of it."""


class Offers:
    """Prices plans, and numbers their batch keys.

    Args:
        card: The card whose loops run.
        costs: Predicts seconds.

    Attributes:
        pricing: Prices the plans.
    """

    def __init__(self, card: ModelCard, costs: CostSource) -> None:
        self.pricing = Pricing(costs)
        self._groups: dict[BatchKey, int] = {}
        self._num_groups = 0
        self._last: tuple[BatchKey, StepCost, int, float] | None = None
        self._max_batch = {name: spec.max_batch for name, spec in card.loops.items()}
        self._can_batch: Mapping[str, Callable[[Any, Any], bool]] = {
            name: resolve_ref(spec.can_batch) for name, spec in card.loops.items() if spec.can_batch is not None
        }

    @property
    def has_unequal_groups(self) -> bool:
        """Whether a loop of the card lets unequal steps share a call."""
        return bool(self._can_batch)

    def make(self, job: Job, wish: WorkPlan[Any] | HostWork, task: Any, now: float) -> ReadyStep:
        """Return the offer of a step, or of host work, which is alone in its call."""
        patience_at = now + job.latency_class.patience_s
        if isinstance(wish, HostWork):
            return ReadyStep(job, -1, patience_at, HOST_S, is_preparation=True, handle=(task, wish))
        resources = wish.resources
        most = wish.max_batch or self._max_batch[wish.loop_id]
        group, seconds = self._price(wish)
        return ReadyStep(
            job,
            group,
            patience_at,
            seconds,
            resources.peak_bytes,
            1 << 30 if most is None else most,
            wish.placement.pool,
            wish.placement.affinity,
            resources.transfer_bytes,
            wish.kind in _PREPARATIONS,
            (task, wish),
        )

    def predict(self, step: ReadyStep, num_plans: int) -> float:
        """Return the predicted seconds of one call of a step with others like it."""
        wish = step.handle[1]
        if isinstance(wish, HostWork):
            return HOST_S
        return self.pricing.plan_s(wish, num_plans)

    def can_batch(self, one: ReadyStep, other: ReadyStep) -> bool:
        """Tell whether two steps of one group may share a call."""
        plan = one.handle[1]
        decide = self._can_batch.get(plan.loop_id)
        if decide is None:
            return True
        try:
            return bool(decide(plan, other.handle[1]))
        except Exception:  # noqa: BLE001 - it is told of, and the steps run all the same
            # Alone, both are right; which of the two is to blame, nobody knows.
            _LOG.exception("can_batch of loop %s failed; the steps do not share a call", plan.loop_id)
            return False

    def measured(self, batch: Batch, outcome: CallOutcome) -> None:
        """Let the cost model learn from a call that went as it should."""
        if outcome.is_clean:
            self._last = None
            self.pricing.learn([step.handle[1] for step in batch.steps], outcome.results(), outcome.seconds)

    def _price(self, plan: WorkPlan[Any]) -> tuple[int, float]:
        """Return a plan's group and its predicted seconds; after a call, its requests mostly ask for the same again."""
        last = self._last
        if last is not None and plan.batch_key is last[0] and plan.resources.cost is last[1] and plan.plugins is None:
            return last[2], last[3]
        group, seconds = self._group(plan), self.pricing.plan_s(plan)
        self._last = (plan.batch_key, plan.resources.cost, group, seconds) if plan.plugins is None else None
        return group, seconds

    def _group(self, plan: WorkPlan[Any]) -> int:
        key = plan.batch_key
        if plan.loop_id in self._can_batch:
            key = key._replace(shape_sig=_NO_SHAPE)
        number = self._groups.get(key)
        if number is None:
            number = self._groups[key] = self._num_groups
            self._num_groups += 1
        return number
