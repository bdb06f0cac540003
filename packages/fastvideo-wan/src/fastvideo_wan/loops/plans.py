"""What the plans of all Wan loops have in common."""

from __future__ import annotations

from typing import Protocol, TypeVar

from fastvideo_core.card import LoopSpec
from fastvideo_core.loop.base import ModelView
from fastvideo_core.loop.work import (
    BatchKey,
    CachePlan,
    EmitSpec,
    PlacementHint,
    Profile,
    ResourceRequest,
    ShapeSignature,
    StepCost,
    WorkKind,
    WorkPlan,
)
from fastvideo_core.request.cancel import CancelScope

__all__ = ["PlannedState", "make_plan"]

PayloadT = TypeVar("PayloadT")


class PlannedState(Protocol):
    """What the state of every loop says about all its steps."""

    scope: CancelScope
    profile: Profile
    is_exact: bool


def make_plan(
    spec: LoopSpec,
    model: ModelView,
    state: PlannedState,
    payload: PayloadT,
    *,
    component: str,
    kind: WorkKind,
    shape: ShapeSignature,
    cost: StepCost,
    step_index: int,
    num_steps: int,
    loop_kind: str = "",
    emits: tuple[EmitSpec, ...] = (),
) -> WorkPlan[PayloadT]:
    """Return the plan of one step.

    Args:
        spec: The card's loop.
        model: The resident model.
        state: The loop's state.
        payload: What the step body gets.
        component: The component that runs.
        kind: Kind of work.
        shape: Shapes; with component, format, profile and exactness they decide who may share a call.
        cost: Cost of the step.
        step_index: Position in the loop, from 0.
        num_steps: Steps that the loop takes.
        loop_kind: Which of the loop's steps it is, where there are several kinds; else the loop.
        emits: Sinks that the result fills.
    """
    return WorkPlan(
        loop_id=spec.loop_id,
        instance_id=model.instance_id,
        kind=kind,
        shape_sig=shape,
        resources=ResourceRequest(cost, sinks=len(emits)),
        cache=CachePlan(),
        placement=PlacementHint(),
        cancel_scope=state.scope,
        emits=emits,
        batch_key=BatchKey(
            instance_id=model.instance_id,
            component=component,
            loop_kind=loop_kind or spec.loop_id,
            shape_sig=shape,
            precision=model.precision,
            weights_version=model.weights_version,
            profile=state.profile,
            variant="exact" if state.is_exact else "fast",
        ),
        payload=payload,
        step_index=step_index,
        num_steps=num_steps,
        profile=state.profile,
    )
