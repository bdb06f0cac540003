"""The loop from noise to patches: each step moves the sample part of the way to what the network takes it for.

Shape letters as in `model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, StepContext
from fastvideo_core.loop.hooks import Prediction, hooks_of, supports_hooks
from fastvideo_core.loop.keys import batch_key
from fastvideo_core.loop.state import LoopState, PluginState
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
from fastvideo_drift.model import PATCH
from fastvideo_drift.words import word_ids

__all__ = ["DenoiseLoop", "DenoiseOutputs", "DenoisePayload", "DenoiseState", "DenoiseValues", "plan_cost", "run_step"]


@dataclass(slots=True)
class DenoiseState(LoopState):
    """All that a request needs from one step to the next."""

    patches_1CTHW: torch.Tensor
    words: tuple[int, ...]
    num_steps: int
    scope: CancelScope
    is_exact: bool
    profile: Profile
    step_index: int = 0
    plugin_state: dict[str, dict[str, PluginState]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DenoisePayload:
    """One step; a step only reads it."""

    patches_1CTHW: torch.Tensor
    words: tuple[int, ...]
    level: float
    next_level: float


@dataclass(frozen=True, slots=True)
class DenoiseValues:
    """The sample after a step."""

    patches_1CTHW: torch.Tensor


@dataclass(frozen=True, slots=True)
class DenoiseOutputs:
    """What the loop hands on."""

    patches: torch.Tensor


def plan_cost(plan: WorkPlan[Any]) -> StepCost:
    """Return the cost that a plan carries."""
    return plan.resources.cost


class DenoiseLoop:
    """Denoises a request; holds nothing that changes."""

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        """Take the card's loop and what may be known of the model."""
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> DenoiseState:
        """Draw the noise from the request's own generator."""
        parameters = request.parameters
        grid = (parameters["num_frames"], parameters["height"] // PATCH, parameters["width"] // PATCH)
        return DenoiseState(
            patches_1CTHW=torch.randn((1, 3 * PATCH**2, *grid), generator=ctx.make_generator(parameters["seed"])),
            words=word_ids(request.inputs["prompt"]),
            num_steps=parameters["num_inference_steps"],
            scope=request.cancel_scope,
            is_exact=request.is_exact,
            profile=request.profile,
        )

    def next(self, state: DenoiseState) -> WorkPlan[DenoisePayload] | Done:
        """Plan the next step."""
        index = state.step_index
        if index == state.num_steps:
            return Done()
        _, _, frames, rows, columns = state.patches_1CTHW.shape
        shape = ShapeSignature.of(frames=frames, rows=rows, columns=columns)
        level, next_level = (1 - step / state.num_steps for step in (index, index + 1))
        return WorkPlan(
            loop_id=self._spec.loop_id,
            instance_id=self._model.instance_id,
            kind=WorkKind.DIFFUSION_STEP,
            shape_sig=shape,
            resources=ResourceRequest(self._cost(frames * rows * columns)),
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
            payload=DenoisePayload(state.patches_1CTHW, state.words, level, next_level),
            step_index=index,
            num_steps=state.num_steps,
            profile=state.profile,
            max_batch=1 if state.is_exact else None,
        )

    def advance(self, state: DenoiseState, result: StepResult[DenoiseValues]) -> DenoiseState:
        """Keep the new sample."""
        state.patches_1CTHW = result.values.patches_1CTHW
        state.step_index += 1
        return state

    def apply(self, state: DenoiseState, event: Any) -> DenoiseState:
        """Refuse: denoising takes no outside event."""
        raise InputError("denoising takes no events", field="event", value=type(event).__name__, allowed="none")

    def finalize(self, state: DenoiseState) -> LoopResult:
        """Hand the patches on."""
        return LoopResult({"patches": state.patches_1CTHW})

    def _cost(self, num_places: int) -> StepCost:
        """Return two operations a weight at every place, the weights once, and a sample read and written a block."""
        config = self._model.config("shifter")
        num_weights = config.num_blocks * 4 * config.width**2 + 2 * 3 * PATCH**2 * config.width
        return StepCost(
            flops=2.0 * num_weights * num_places,
            weight_bytes=4.0 * num_weights,
            activation_bytes=8.0 * config.num_blocks * config.width * num_places,
        )


@supports_hooks("step")
def run_step(
    instance: Any, plans: Sequence[WorkPlan[DenoisePayload]], ctx: StepContext
) -> Sequence[StepResult[DenoiseValues]]:
    """Make one step each of a batch; interceptors may answer for the network."""
    payloads = [plan.payload for plan in plans]
    hooks = hooks_of(ctx)

    def compute(indices: Sequence[int]) -> list[torch.Tensor]:
        clean = _clean(instance.component("shifter"), [payloads[index] for index in indices])
        ctx.tap("clean", clean)
        return list(clean.split(1))

    if hooks is None:
        predictions = compute(range(len(payloads)))
    else:
        wanted = [Prediction("shifter", ("cond",), one.patches_1CTHW, one.level) for one in payloads]
        predictions = hooks.predict(wanted, compute)
    return [StepResult(_moved(one, clean)) for one, clean in zip(payloads, predictions, strict=True)]


def _clean(model: Any, payloads: Sequence[DenoisePayload]) -> torch.Tensor:
    device = model.to_patches.weight.device
    patches = torch.cat([one.patches_1CTHW for one in payloads]).to(device)
    levels = torch.tensor([one.level for one in payloads], device=device)
    return model(patches, levels, torch.cat([model.encode(one.words) for one in payloads]))


def _moved(payload: DenoisePayload, clean_1CTHW: torch.Tensor) -> DenoiseValues:
    """Return the sample at the next noise level: the same noise, and more of what is clean."""
    kept = payload.next_level / payload.level
    return DenoiseValues(kept * payload.patches_1CTHW.to(clean_1CTHW.device) + (1 - kept) * clean_1CTHW)
