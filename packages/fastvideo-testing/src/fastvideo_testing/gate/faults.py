"""Steps that fail on demand, of any card, and a count of the calls that were made."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from fastvideo_core.loop.base import StepBody, StepContext
from fastvideo_core.loop.work import StepResult, WorkPlan
from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["Calls", "Fault", "FaultKind", "GateError", "request_of", "with_faults"]

FaultKind = Literal["nan", "error", "memory"]
"""A result that is not finite; an exception; no memory. Each after the step was computed, so that its peers, which are
computed again, would show what it has left behind."""


class GateError(AssertionError):
    """A request among others did not give what it gives alone; or the gate could not tell."""


@dataclass(frozen=True, slots=True)
class Fault:
    """How a request fails.

    Attributes:
        kind: In what way.
        loop_id: The loop.
        step_index: The step, from 0.
    """

    kind: FaultKind
    loop_id: str
    step_index: int


@dataclass(slots=True)
class Calls:
    """What was called.

    Attributes:
        sizes: Plans of each call, in order.
        num_switches: Calls whose first plan was of another request than that of the call before.
        batched: Loops of which a call had several plans.
    """

    sizes: list[int] = field(default_factory=list)
    num_switches: int = 0
    batched: set[str] = field(default_factory=set)
    _last: str = ""

    def note(self, plans: Sequence[WorkPlan[Any]]) -> None:
        """Note a call."""
        self.sizes.append(len(plans))
        if len(plans) > 1:
            self.batched.add(plans[0].loop_id)
        first = request_of(plans[0])
        self.num_switches += bool(self._last) and first != self._last
        self._last = first


def request_of(plan: WorkPlan[Any]) -> str:
    """Return the id of the request that a plan is of."""
    scope = plan.cancel_scope
    while scope.kind != "request" and scope.parent is not None:
        scope = scope.parent
    return scope.scope_id


def with_faults(instance: ModelInstance, faults: Mapping[str, Fault]) -> tuple[ModelInstance, Calls]:
    """Return a model with the same components and loops, whose steps fail for some requests; and a count of its calls.

    Args:
        instance: The model.
        faults: By request.
    """
    calls, changed = Calls(), copy.copy(instance)
    changed.steps = {name: _wrapped(body, faults, calls) for name, body in instance.steps.items()}
    return changed, calls


def _wrapped(body: StepBody, faults: Mapping[str, Fault], calls: Calls) -> Callable[..., Sequence[StepResult[Any]]]:
    def call(instance: Any, plans: Sequence[WorkPlan[Any]], ctx: StepContext) -> Sequence[StepResult[Any]]:
        calls.note(plans)
        results = body(instance, plans, ctx)
        kinds = [_due(plan, faults.get(request_of(plan))) for plan in plans]
        if "error" in kinds:
            raise RuntimeError("the gate let this step fail")
        if "memory" in kinds:
            raise torch.OutOfMemoryError("the gate let this step find no memory")
        return [
            replace(result, is_finite=False) if kind == "nan" else result
            for result, kind in zip(results, kinds, strict=True)
        ]

    return call


def _due(plan: WorkPlan[Any], fault: Fault | None) -> FaultKind | None:
    is_due = fault is not None and (plan.loop_id, plan.step_index) == (fault.loop_id, fault.step_index)
    return fault.kind if fault is not None and is_due else None
