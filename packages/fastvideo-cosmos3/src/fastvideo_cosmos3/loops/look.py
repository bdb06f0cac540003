"""`vision_encode`: an image or a video that the reasoner looks at, as tokens of its text.

Shape letters: P patches; K numbers of a patch; S tokens; C width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastvideo_core.card import LoopSpec
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, StepContext
from fastvideo_core.loop.plans import make_plan
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import Done, Profile, ShapeSignature, StepResult, WorkKind, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_cosmos3.loops.costs import FLOAT_BYTES, vision_cost
from fastvideo_cosmos3.loops.events import refuse_event
from fastvideo_cosmos3.loops.prefill import SeenVisual
from fastvideo_cosmos3.loops.texts import read_visual
from fastvideo_cosmos3.models.vision import Visual

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["LookLoop", "LookOutputs", "LookPayload", "LookState", "LookValues", "check_shown", "run_step"]


@dataclass(slots=True)
class LookState(LoopState):
    """State of looking at something.

    Attributes:
        visual: What is shown; None if nothing is.
        scope: What cancels it.
        profile: Serve, rollout or train.
        is_exact: Whether it has calls of its own.
        seen: The result.
    """

    visual: Visual | None
    scope: CancelScope
    profile: Profile
    is_exact: bool
    seen: SeenVisual | None = None


@dataclass(frozen=True, slots=True)
class LookPayload:
    """What is shown."""

    visual: Visual


@dataclass(frozen=True, slots=True)
class LookValues:
    """Its tokens."""

    seen: SeenVisual


@dataclass(frozen=True, slots=True)
class LookOutputs:
    """What the loop hands on; None if nothing was shown."""

    seen: SeenVisual | None


class LookLoop:
    """Encodes what is shown, in one step; if nothing is, in none.

    Args:
        spec: The card's loop.
        model: The resident model, with `image_processor` and `vision_encoder`.
    """

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> LookState:
        """Cut what is shown into patches."""
        visual = read_visual(self._model.component("image_processor"), request.inputs)
        return LookState(visual, request.cancel_scope, request.profile, request.is_exact)

    def next(self, state: LookState) -> WorkPlan[LookPayload] | Done:
        """Encode it."""
        if state.visual is None or state.seen is not None:
            return Done()
        config, patches = self._model.config("vision_encoder"), len(state.visual.patches_PK)
        return make_plan(
            self._spec,
            self._model,
            state,
            LookPayload(state.visual),
            component="vision_encoder",
            kind=WorkKind.ENCODER_CHUNK,
            shape=ShapeSignature.of(width=state.visual.patches_PK.shape[1]),
            cost=vision_cost(config, patches),
            peak_bytes=FLOAT_BYTES * patches * (4 * config.intermediate_size + 8 * config.hidden_size),
            resident_bytes=FLOAT_BYTES * patches * config.out_hidden_size,
            step_index=0,
            num_steps=1,
        )

    def advance(self, state: LookState, result: StepResult[LookValues]) -> LookState:
        """Keep the tokens."""
        state.seen = result.values.seen
        return state

    def apply(self, state: LookState, event: Any) -> LookState:
        """Refuse: looking takes no outside event."""
        raise refuse_event("looking at something", event)

    def finalize(self, state: LookState) -> LoopResult:
        """Hand the tokens on."""
        return LoopResult({"seen": state.seen})


def check_shown(
    spec: LoopSpec,  # noqa: ARG001 - the protocol's argument
    model: ModelView,
    parameters: ResolvedParameters,  # noqa: ARG001 - the protocol's argument
    inputs: Mapping[str, Any],
) -> Sequence[str]:
    """Refuse what cannot be shown: an image and a video at once, or what is far too narrow.

    Raises:
        InputError: With what is allowed.
    """
    read_visual(model.component("image_processor"), inputs)
    return ()


def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[LookPayload]], ctx: StepContext
) -> Sequence[StepResult[LookValues]]:
    """Encode what is shown in each plan, all patches in one call; none sees those of another."""
    encoder: Any = instance.component("vision_encoder")
    visuals = [plan.payload.visual for plan in plans]
    patches = torch.cat([visual.patches_PK for visual in visuals]).to(instance.device, encoder.dtype)
    grids = torch.tensor([visual.grid for visual in visuals], device=instance.device)
    encoded = encoder(patches, grid_thw=grids, return_dict=True)
    ctx.tap("vision", encoded.pooler_output)
    counts = [visual.grid[0] * visual.tokens_a_group for visual in visuals]
    parts = [encoded.pooler_output.split(counts), *(deep.split(counts) for deep in encoded.deepstack_features)]
    return [_result([column[index].clone() for column in parts]) for index in range(len(visuals))]


def _result(parts: list[Tensor]) -> StepResult[LookValues]:
    embeds, *deep = parts
    return StepResult(LookValues(SeenVisual(embeds, tuple(deep))), is_finite=bool(torch.isfinite(embeds).all()))
