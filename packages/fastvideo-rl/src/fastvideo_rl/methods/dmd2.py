"""DMD2: distillation into few steps by matching the distributions of student and teacher.

The student's few-step rollout is the engine's; at one of its steps, the same for all samples, the student predicts with
gradients. Its x0 is noised anew, and moved along the difference of two scores, one of the teacher's data and one of the
student's own samples, which a critic learns by flow matching:

    real = uncond + g (cond - uncond), gradient = nan_to_num((fake - real) / mean|x0 - real|)
    L = 1/2 mean |x0 - sg(x0 - gradient)|²; critic: mean |v_fake - (eps - x0)|²

Sources: Yin et al. 2024, arXiv:2405.14867; Huang et al. 2025, arXiv:2506.08009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fastvideo_rl.methods.base import Loss, MethodContext, Source, noised, row_mean, rows_like
from fastvideo_rl.rollout.records import Group

__all__ = ["DMD2", "DMD2Item", "DMD2Options", "matching_gradient"]


class DMD2Options(BaseModel):
    """Options.

    Attributes:
        guidance_scale: g of the teacher.
        student_every: The student is updated in every so many steps, the critic in the others.
        shift: Flow shift of the levels at which scores are compared.
        min_level: Lowest such level.
        max_level: Highest such level.
        normalizer: Whether |x0 - real| is averaged over each sample or over the micro-batch.
        steps_per_sample: How many steps of each rollout are trained on, drawn without repeats; None takes all, so that
            nothing that was rolled out is thrown away.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    guidance_scale: float = Field(default=4.0, ge=1)
    student_every: int = Field(default=5, ge=1)
    shift: float = Field(default=5.0, gt=0)
    min_level: float = Field(default=0.02, gt=0, lt=1)
    max_level: float = Field(default=0.98, gt=0, lt=1)
    normalizer: Literal["sample", "batch"] = "sample"
    steps_per_sample: int | None = Field(default=1, ge=1)


@dataclass(frozen=True, slots=True)
class DMD2Item:
    """A step of a student's rollout: what it saw, what it took that for, and the level at which this is looked at."""

    prompt: str
    x0_1CTHW: Tensor
    sample_1CTHW: Tensor
    sigma: float
    timestep: float
    inputs: Any
    level: float


def matching_gradient(x0: Tensor, fake: Tensor, real: Tensor, *, normalizer: str) -> Tensor:
    """Return the direction in which the student's samples are to move away; all are estimates of x0, of one shape."""
    distance = (x0 - real).abs()
    scale = distance.mean() if normalizer == "batch" else rows_like(row_mean(distance).tolist(), x0)
    return torch.nan_to_num((fake - real) / scale)


class DMD2:
    """Distillation into few steps."""

    source: ClassVar[Source] = "rollouts"
    behavior_role: ClassVar[str] = "student"
    needs_rewards: ClassVar[bool] = False
    needs_steps: ClassVar[bool] = True

    def __init__(self, options: DMD2Options) -> None:
        self._options = options

    def rollout_parameters(self, step: int, seed: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return nothing: the student's card pins its steps."""
        return {}

    def player(self, step: int) -> str:
        """Return the student every few steps, and the critic in between."""
        every = self._options.student_every
        return "student" if step % every == every - 1 else "critic"

    def items(self, groups: Sequence[Group], ctx: MethodContext) -> list[Any]:
        """Return steps of each sample's rollout, drawn once for all samples, with a level of their own."""
        records = [record for group in groups for record in group.records]
        if not records:
            return []
        order = torch.randperm(len(records[0].steps), generator=ctx.generator).tolist()
        places = sorted(order[: self._options.steps_per_sample])
        chosen = [(record, record.steps[place]) for place in places for record in records]
        return [
            DMD2Item(
                record.prompt,
                step.sample_1CTHW - record.schedule.sigma_values[step.step_index] * step.prediction_1CTHW,
                step.sample_1CTHW,
                record.schedule.sigma_values[step.step_index],
                record.schedule.timestep_values[step.step_index],
                record.inputs,
                level,
            )
            for (record, step), level in zip(chosen, self.levels(len(chosen), ctx), strict=True)
        ]

    def levels(self, count: int, ctx: MethodContext) -> list[float]:
        """Draw levels at which samples are looked at."""
        options, s = self._options, self._options.shift
        shifted = [s * one / (1 + (s - 1) * one) for one in ctx.uniform(count)]
        return [min(max(one, options.min_level), options.max_level) for one in shifted]

    def student_x0(self, items: Sequence[Any], ctx: MethodContext) -> Tensor:
        """Return what the student takes the items' samples for, with gradients."""
        queries = [ctx.query(item.sample_1CTHW, item.sigma, item.inputs, timestep=item.timestep) for item in items]
        velocity = ctx.roles.predict("student", queries, has_gradient=True)
        samples = torch.cat([item.sample_1CTHW.to(velocity.device) for item in items])
        return samples - rows_like([item.sigma for item in items], samples) * velocity

    def loss(self, items: Sequence[Any], ctx: MethodContext) -> Loss:
        """Return the loss of whose turn it is."""
        if self.player(ctx.step) == "student":
            return self._match(self.student_x0(items, ctx), items, ctx)
        # What the student predicts has been recorded: the gate has shown that training would predict the same.
        return self._learn(torch.cat([item.x0_1CTHW for item in items]), items, ctx)

    def ended(self, ctx: MethodContext) -> None:
        """Do nothing."""

    def _match(self, x0: Tensor, items: Sequence[Any], ctx: MethodContext) -> Loss:
        assert ctx.teacher_inputs is not None, "a run that distils has a teacher"
        scale = self._options.guidance_scale
        fixed = x0.detach()
        noisy = self._noisy(fixed, items, ctx)
        asked = [(row, item.level, ctx.teacher_inputs[item.prompt]) for row, item in zip(noisy, items, strict=True)]
        critics = [ctx.query(*one) for one in asked]
        teachers = [ctx.query(*one, guidance_scale=scale) for one in asked]
        levels, rows = rows_like([item.level for item in items], fixed), torch.cat(noisy)
        fake = rows - levels * ctx.roles.predict("critic", critics)
        real = rows - levels * ctx.roles.predict("teacher", teachers)
        gradient = matching_gradient(fixed, fake, real, normalizer=self._options.normalizer)
        value = 0.5 * row_mean((x0 - (fixed - gradient)).square()).mean()
        metrics = {"loss": value, "student_loss": value, "score_gap": row_mean((fake - real).abs()).mean()}
        return Loss(value, {name: float(one.detach()) for name, one in metrics.items()})

    def _learn(self, x0: Tensor, items: Sequence[Any], ctx: MethodContext) -> Loss:
        assert ctx.teacher_inputs is not None, "a run that distils has a teacher"
        noises = [ctx.noise_like(row) for row in x0.split(1)]
        queries = [
            ctx.query(noised(row, noise, item.level), item.level, ctx.teacher_inputs[item.prompt])
            for row, noise, item in zip(x0.split(1), noises, items, strict=True)
        ]
        velocity = ctx.roles.predict("critic", queries, has_gradient=True)
        value = row_mean((velocity - (torch.cat(noises) - x0)).square()).mean()
        return Loss(value, {"loss": float(value.detach()), "critic_loss": float(value.detach())})

    def _noisy(self, x0: Tensor, items: Sequence[Any], ctx: MethodContext) -> list[Tensor]:
        return [noised(row, ctx.noise_like(row), item.level) for row, item in zip(x0.split(1), items, strict=True)]
