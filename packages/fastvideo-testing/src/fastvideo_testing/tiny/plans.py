"""What all plans of the tiny family have in common."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

from fastvideo_core.card import LoopSpec
from fastvideo_core.loop.base import ModelView
from fastvideo_core.loop.keys import batch_key
from fastvideo_core.loop.sharing import result_key
from fastvideo_core.loop.work import (
    ANYWHERE,
    NO_CACHE,
    CachePlan,
    EmitSpec,
    Profile,
    ResourceRequest,
    ShapeSignature,
    StepCost,
    WorkKind,
    WorkPlan,
)
from fastvideo_core.request.cancel import CancelScope

__all__ = ["make_plan", "plan_cost"]

PayloadT = TypeVar("PayloadT")


def plan_cost(plan: WorkPlan[Any]) -> StepCost:
    """Return the cost that a plan carries; the `step_cost_model` of all loops of the family."""
    return plan.resources.cost


def make_plan(
    spec: LoopSpec,
    model: ModelView,
    payload: PayloadT,
    *,
    component: str,
    kind: WorkKind,
    shape: ShapeSignature,
    flops: float,
    scope: CancelScope,
    step_index: int,
    num_steps: int,
    is_exact: bool = False,
    profile: Profile = "serve",
    emits: tuple[EmitSpec, ...] = (),
    shared_inputs: Mapping[str, Any] | None = None,
) -> WorkPlan[PayloadT]:
    """Return the plan of one step; `shape` and the variant decide with which others it may share a call.

    A step whose result follows from `shared_inputs` alone is run once for all requests that ask for it.
    """
    key = batch_key(model, component=component, loop_kind=spec.loop_id, shape=shape, is_exact=is_exact, profile=profile)
    return WorkPlan(
        loop_id=spec.loop_id,
        instance_id=model.instance_id,
        kind=kind,
        shape_sig=shape,
        resources=_resources(flops, len(emits)),
        cache=NO_CACHE if shared_inputs is None else CachePlan(result_key=result_key(model, key, **shared_inputs)),
        placement=ANYWHERE,
        cancel_scope=scope,
        emits=emits,
        batch_key=key,
        payload=payload,
        step_index=step_index,
        num_steps=num_steps,
        profile=profile,
        max_batch=1 if is_exact else None,
    )


@lru_cache(maxsize=256)
def _resources(flops: float, num_sinks: int) -> ResourceRequest:
    return ResourceRequest(StepCost(flops=flops, activation_bytes=4.0 * flops), sinks=num_sinks)
