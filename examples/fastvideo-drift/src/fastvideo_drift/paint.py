"""The loop from patches to frames, a few at a time, so that a long video stalls nobody.

Shape letters as in `model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, StepContext
from fastvideo_core.loop.keys import batch_key
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import (
    ANYWHERE,
    NO_CACHE,
    Done,
    Profile,
    ResourceRequest,
    ShapeSignature,
    StepCost,
    StepResult,
    WorkKind,
    WorkPlan,
)
from fastvideo_core.request.cancel import CancelScope
from fastvideo_drift.model import to_pixels

__all__ = ["PaintLoop", "PaintOutputs", "PaintPayload", "PaintState", "PaintValues", "run_step"]

_FRAMES_A_STEP = 4


@dataclass(slots=True)
class PaintState(LoopState):
    """What is to be painted, and what has been."""

    patches_1CTHW: torch.Tensor
    scope: CancelScope
    is_exact: bool
    profile: Profile
    frames: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class PaintPayload:
    """Patches of a few frames; a step only reads them."""

    patches_1CTHW: torch.Tensor


@dataclass(frozen=True, slots=True)
class PaintValues:
    """Their pixels, uint8 (frames, rows, columns, 3)."""

    frames: torch.Tensor


@dataclass(frozen=True, slots=True)
class PaintOutputs:
    """What the loop hands on."""

    frames: tuple[torch.Tensor, ...]


class PaintLoop:
    """Paints a request; holds nothing that changes."""

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        """Take the card's loop and what may be known of the model."""
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> PaintState:
        """Take the patches."""
        return PaintState(request.inputs["patches"], request.cancel_scope, request.is_exact, request.profile)

    def next(self, state: PaintState) -> WorkPlan[PaintPayload] | Done:
        """Plan the next few frames."""
        num_frames = state.patches_1CTHW.shape[2]
        index, begin = len(state.frames), len(state.frames) * _FRAMES_A_STEP
        if begin >= num_frames:
            return Done()
        part = state.patches_1CTHW[:, :, begin : begin + _FRAMES_A_STEP]
        _, channels, frames, rows, columns = part.shape
        shape = ShapeSignature.of(frames=frames, rows=rows, columns=columns)
        num_values = float(channels * frames * rows * columns)
        return WorkPlan(
            loop_id=self._spec.loop_id,
            instance_id=self._model.instance_id,
            kind=WorkKind.VAE_TILE,
            shape_sig=shape,
            resources=ResourceRequest(StepCost(flops=4 * num_values, activation_bytes=5 * num_values)),
            cache=NO_CACHE,
            placement=ANYWHERE,
            cancel_scope=state.scope,
            emits=(),
            batch_key=batch_key(
                self._model,
                component="shifter",
                loop_kind=self._spec.loop_id,
                shape=shape,
                is_exact=state.is_exact,
                profile=state.profile,
            ),
            payload=PaintPayload(part),
            step_index=index,
            num_steps=-(-num_frames // _FRAMES_A_STEP),
            profile=state.profile,
            max_batch=1 if state.is_exact else None,
        )

    def advance(self, state: PaintState, result: StepResult[PaintValues]) -> PaintState:
        """Keep the new frames."""
        state.frames = (*state.frames, result.values.frames)
        return state

    def apply(self, state: PaintState, event: Any) -> PaintState:
        """Refuse: painting takes no outside event."""
        raise InputError("painting takes no events", field="event", value=type(event).__name__, allowed="none")

    def finalize(self, state: PaintState) -> LoopResult:
        """Hand the frames on."""
        return LoopResult({"frames": state.frames})


def run_step(
    instance: Any, plans: Sequence[WorkPlan[PaintPayload]], ctx: StepContext
) -> Sequence[StepResult[PaintValues]]:
    """Paint the frames of each plan."""
    return [StepResult(PaintValues(to_pixels(plan.payload.patches_1CTHW))) for plan in plans]
