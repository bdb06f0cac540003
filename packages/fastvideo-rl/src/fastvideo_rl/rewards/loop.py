"""Scoring as a loop of one step, so that rewards are scheduled, batched and kept apart like any other work.

Shape letters: F, Y, X pixel frames, rows, columns; 3 RGB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import ExecutionError, InputError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, StepContext
from fastvideo_core.loop.plans import make_plan
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import Done, Profile, ShapeSignature, StepCost, StepResult, WorkKind, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_rl.rewards.base import Sample

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["ScoreLoop", "ScorePayload", "ScoreState", "ScoreValues", "check_scores", "plan_cost", "run_step"]


@dataclass(slots=True)
class ScoreState(LoopState):
    """State of scoring.

    Attributes:
        reward: Name of the reward.
        prompt: What was asked for.
        frames_FYX3: What was made, bytes.
        fps: Frames a second.
        scope: What cancels it.
        profile: Serve, rollout or train.
        is_exact: Whether it has a call of its own.
        score: What came of it.
    """

    reward: str
    prompt: str
    frames_FYX3: torch.Tensor
    fps: float
    scope: CancelScope
    profile: Profile
    is_exact: bool
    score: float | None = None


@dataclass(frozen=True, slots=True)
class ScorePayload:
    """One sample to score; see `ScoreState`."""

    prompt: str
    frames_FYX3: torch.Tensor
    fps: float


@dataclass(frozen=True, slots=True)
class ScoreValues:
    """A score."""

    score: float


class ScoreLoop:
    """Scores one sample by one reward."""

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> ScoreState:
        """Take the sample."""
        clip = request.inputs["video"]
        return ScoreState(
            reward=str(request.inputs["reward"]),
            prompt=str(request.inputs["prompt"]),
            frames_FYX3=torch.from_numpy(np.ascontiguousarray(clip.frames)),
            fps=float(clip.fps),
            scope=request.cancel_scope,
            profile=request.profile,
            is_exact=request.is_exact,
        )

    def next(self, state: ScoreState) -> WorkPlan[ScorePayload] | Done:
        """Score it, unless that has been done."""
        if state.score is not None:
            return Done()
        frames, rows, columns, _ = state.frames_FYX3.shape
        return make_plan(
            self._spec,
            self._model,
            state,
            ScorePayload(state.prompt, state.frames_FYX3, state.fps),
            component=state.reward,
            kind=WorkKind.REWARD_BATCH,
            shape=ShapeSignature.of(frames=frames, rows=rows, columns=columns),
            cost=_cost(state.frames_FYX3.numel()),
            peak_bytes=4 * state.frames_FYX3.numel(),
            step_index=0,
            num_steps=1,
            loop_kind=f"{self._spec.loop_id}.{state.reward}",
        )

    def advance(self, state: ScoreState, result: StepResult[ScoreValues]) -> ScoreState:
        """Keep the score."""
        state.score = result.values.score
        return state

    def apply(self, state: ScoreState, event: Any) -> ScoreState:
        """Refuse: scoring takes no outside event."""
        raise InputError("scoring takes no events", field="event", value=type(event).__name__, allowed="none")

    def finalize(self, state: ScoreState) -> LoopResult:
        """Hand the score on."""
        return LoopResult({"score": state.score})


def plan_cost(plan: WorkPlan[ScorePayload]) -> StepCost:
    """Return the cost of a step, a mere guess at first: rewards are of all kinds, and what they take is learned."""
    return _cost(plan.payload.frames_FYX3.numel())


def _cost(num_values: int) -> StepCost:
    return StepCost(flops=100.0 * num_values, activation_bytes=float(num_values))


def run_step(
    instance: ModelInstance,
    plans: Sequence[WorkPlan[ScorePayload]],
    ctx: StepContext,  # noqa: ARG001 - every step body takes the same
) -> Sequence[StepResult[ScoreValues]]:
    """Score a batch of samples by one reward.

    Raises:
        ExecutionError: It gave no number for each sample.
    """
    name = plans[0].batch_key.component
    samples = [Sample(one.payload.prompt, one.payload.frames_FYX3.numpy(), one.payload.fps) for one in plans]
    scores = check_scores(name, instance.component(name).score(samples), len(samples))
    return [StepResult(ScoreValues(score), is_finite=bool(np.isfinite(score))) for score in scores]


def check_scores(name: str, scores: Any, num_samples: int) -> list[float]:
    """Return what a reward gave as numbers, one a sample.

    Raises:
        ExecutionError: It is something else.
    """
    if isinstance(scores, (torch.Tensor, np.ndarray)):
        if tuple(scores.shape) != (num_samples,):
            raise ExecutionError(f"reward {name} gave shape {tuple(scores.shape)}; allowed: ({num_samples},)")
        return [float(score) for score in scores.tolist()]
    found = list(scores)
    if len(found) != num_samples or not all(isinstance(score, Real) for score in found):
        raise ExecutionError(f"reward {name} gave {len(found)} scores; allowed: {num_samples} numbers, one a sample")
    return [float(score) for score in found]
