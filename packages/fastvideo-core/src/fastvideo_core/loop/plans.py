"""What the plans of most loops have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

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

__all__ = ["ANY_SHAPE", "PlannedState", "make_plan"]

PayloadT = TypeVar("PayloadT")

ANY_SHAPE = ShapeSignature(())
"""Shapes of steps that are padded to each other's: who shares a call is `LoopSpec.can_batch`'s to say."""


class PlannedState(Protocol):
    """What the state of a loop says about all its steps."""

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
    cost: StepCost,
    step_index: int,
    num_steps: int | None,
    shape: ShapeSignature = ANY_SHAPE,
    peak_bytes: int = 0,
    resident_bytes: int = 0,
    cache_blocks: Mapping[str, int] | None = None,
    loop_kind: str = "",
    emits: tuple[EmitSpec, ...] = (),
    shared_inputs: Mapping[str, Any] | None = None,
) -> WorkPlan[PayloadT]:
    """Return the plan of one step; an exact one is alone in its call.

    Args:
        spec: The card's loop.
        model: The resident model.
        state: The loop's state.
        payload: What the step body gets.
        component: The component that runs.
        kind: Kind of work.
        cost: Cost of the step.
        step_index: Position in the loop, from 0.
        num_steps: Steps that the loop takes; None if it does not know.
        shape: Shapes; with component, format, profile and exactness they decide who may share a call.
        peak_bytes: Most bytes that the step allocates, alone in its call.
        resident_bytes: Bytes of its result that the state keeps.
        cache_blocks: Blocks that it adds to caches.
        loop_kind: Which of the loop's steps it is, where there are several kinds; else the loop.
        emits: Sinks that the result fills.
        shared_inputs: All that decides the result, where requests may share it.
    """
    kind_of_loop, is_exact, profile = loop_kind or spec.loop_id, state.is_exact, state.profile
    key = batch_key(model, component=component, loop_kind=kind_of_loop, shape=shape, is_exact=is_exact, profile=profile)
    return WorkPlan(
        loop_id=spec.loop_id,
        instance_id=model.instance_id,
        kind=kind,
        shape_sig=shape,
        resources=ResourceRequest(cost, resident_bytes, peak_bytes, cache_blocks or {}, sinks=len(emits)),
        cache=NO_CACHE if shared_inputs is None else CachePlan(result_key=result_key(model, key, **shared_inputs)),
        placement=ANYWHERE,
        cancel_scope=state.scope,
        emits=emits,
        batch_key=key,
        payload=payload,
        step_index=step_index,
        num_steps=num_steps,
        profile=profile,
        max_batch=1 if is_exact else None,
    )
