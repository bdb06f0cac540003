"""What the plans of all loops have in common."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import ModelView
from fastvideo_core.loop.keys import batch_key
from fastvideo_core.loop.work import (
    ANYWHERE,
    NO_CACHE,
    EmitSpec,
    Profile,
    ResourceRequest,
    ShapeSignature,
    StepCost,
    WorkKind,
    WorkPlan,
)
from fastvideo_core.request.cancel import CancelScope

__all__ = ["ANY_SHAPE", "PlannedState", "make_plan", "refuse_event"]

PayloadT = TypeVar("PayloadT")

ANY_SHAPE = ShapeSignature(())
"""Shapes of steps that are padded to each other's: who shares a call is `LoopSpec.can_batch`'s to say."""


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
    cost: StepCost,
    step_index: int,
    num_steps: int | None,
    shape: ShapeSignature = ANY_SHAPE,
    loop_kind: str = "",
    peak_bytes: int = 0,
    resident_bytes: int = 0,
    cache_blocks: dict[str, int] | None = None,
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
        cost: Cost of the step.
        step_index: Position in the loop, from 0.
        num_steps: Steps that the loop takes; None if that depends on content.
        shape: Shapes, which decide with all else in the batch key who may share a call.
        loop_kind: Which of the loop's steps it is; else the loop.
        peak_bytes: Most bytes that the step allocates, alone in its call.
        resident_bytes: Bytes of its result that the state keeps.
        cache_blocks: Blocks that it adds to caches.
        emits: Sinks that it fills.
    """
    key = batch_key(
        model, component=component, loop_kind=loop_kind or spec.loop_id, shape=shape, is_exact=state.is_exact,
        profile=state.profile,
    )  # fmt: skip
    resources = ResourceRequest(cost, resident_bytes, peak_bytes, cache_blocks or {}, sinks=len(emits))
    return WorkPlan(
        loop_id=spec.loop_id,
        instance_id=model.instance_id,
        kind=kind,
        shape_sig=shape,
        resources=resources,
        cache=NO_CACHE,
        placement=ANYWHERE,
        cancel_scope=state.scope,
        emits=emits,
        batch_key=key,
        payload=payload,
        step_index=step_index,
        num_steps=num_steps,
        profile=state.profile,
        max_batch=1 if state.is_exact else None,  # exact means a batch of one
    )


def refuse_event(loop: str, event: Any) -> InputError:
    """Return the error of a loop that takes no outside event."""
    return InputError(f"{loop} takes no events", field="event", value=type(event).__name__, allowed="none")
