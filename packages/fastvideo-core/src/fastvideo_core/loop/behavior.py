"""What a generative loop records of its steps in the rollout profile, and how it is asked to predict with gradients.

Rollout is serving plus this record; training runs the loop's own prediction on it, and no other forward.

Shape letters: 1 one row; B rows; C channels; T, H, W latent frames, rows, columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from fastvideo_core.loop.samplers import Schedule

if TYPE_CHECKING:
    from fastvideo_core.card import LoopSpec

__all__ = ["LoopBehavior", "Past", "Predict", "PredictQuery", "StepBehavior", "behavior_bytes"]

Past = dict[str, tuple[tuple[torch.Tensor, torch.Tensor], ...]]
"""What a chunk of a sample attends to besides itself: keys and values of earlier chunks, oldest first, by branch."""


@dataclass(frozen=True, slots=True)
class StepBehavior:
    """One step as it happened: references to the very tensors of the step, no copies.

    Attributes:
        step_index: The sampler's step; of a sample that is made chunk by chunk, the step within its chunk.
        component: What predicted.
        branches: Branches of guidance that ran.
        guidance_scale: Their weight.
        sample_1CTHW: What was predicted from, float32.
        prediction_1CTHW: The guided prediction.
        next_1CTHW: The sample after the step, float32.
        log_prob: Logarithm of the density of that transition, as the sampler counts it; None for a step that draws
            nothing.
        weights_version: The weights that made it.
        chunk: Number of the chunk, of a sample that is made chunk by chunk.
        past: What the chunk attended to besides itself; None where there are no chunks.
    """

    step_index: int
    component: str
    branches: tuple[str, ...]
    guidance_scale: float
    sample_1CTHW: torch.Tensor
    prediction_1CTHW: torch.Tensor
    next_1CTHW: torch.Tensor
    log_prob: float | None
    weights_version: str
    chunk: int = 0
    past: Past | None = None


@dataclass(frozen=True, slots=True)
class LoopBehavior:
    """All steps of one loop of a request.

    Attributes:
        schedule: Noise levels and timesteps.
        steps: Its steps, in order.
    """

    schedule: Schedule
    steps: tuple[StepBehavior, ...] = ()


@dataclass(frozen=True, slots=True)
class PredictQuery:
    """One row to predict.

    Attributes:
        sample_1CTHW: Noisy sample, float32.
        timestep: Noise level on the model's scale of times.
        inputs: What other loops handed the loop, by port, as `LoopRequest.inputs` has it.
        guidance_scale: Weight of the guided branches; None predicts the conditional branch alone.
        step_index: Where in a schedule it is, for guidance and routing that care.
        chunk: Number of the chunk, of a sample that is made chunk by chunk.
        past: What the chunk attends to besides itself, as a rollout recorded it; no gradients flow to it.
    """

    sample_1CTHW: torch.Tensor
    timestep: float
    inputs: Mapping[str, Any] = field(default_factory=dict)
    guidance_scale: float | None = None
    step_index: int = 0
    chunk: int = 0
    past: Past | None = None


class Predict(Protocol):
    """A loop's prediction outside of its steps, by the step body's own code; named by `LoopSpec.predict`."""

    def __call__(
        self,
        spec: LoopSpec,
        modules: Mapping[str, Any],
        queries: Sequence[PredictQuery],
        *,
        blocks_runner: Callable[..., Any] | None = None,
    ) -> torch.Tensor:
        """Return the (guided) prediction of each query, (B, C, T, H, W); differentiable where gradients are on.

        Args:
            spec: The card's loop.
            modules: Components by name, whosoever's weights they have.
            queries: Rows of one shape.
            blocks_runner: What runs the blocks in place of a plain loop, for gradient checkpoints.

        Raises:
            InputError: A query asks for what the loop cannot predict.
        """
        ...


def behavior_bytes(num_steps: int, sample_bytes: int) -> int:
    """Return the bytes that the record of some steps keeps alive: of each step its prediction and its result."""
    return 2 * num_steps * sample_bytes
