"""DiffusionNFT: reinforcement learning on the forward process, without likelihoods.

Samples come from an old copy of the policy. The student's prediction is pulled towards good samples, and a mirrored
one, v- = (1 + beta) v_old - beta v, towards bad ones:

    A = (r - mean) / (std + 1e-4), p = clip(clip(A, ±5) / 5 / 2 + 1/2, 0, 1)
    v+ = beta v + (1 - beta) v_old, x0± = x_t - t v±, loss± = mean((x0± - x0)² / sg(max(mean|x0± - x0|, 1e-5)))
    L = 5 mean[(p loss+ + (1 - p) loss-) / beta] + 1e-4 |v - v_ref|²

Source: Zheng et al. 2025, arXiv:2509.16117, and its public implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fastvideo_rl.methods.base import Loss, MethodContext, Source, advantages, noised, row_mean, rows_like
from fastvideo_rl.rollout.records import Group

__all__ = ["DiffusionNFT", "NFTItem", "NFTOptions", "nft_losses", "old_decay"]

_LEAST_WEIGHT = 1e-5


class NFTOptions(BaseModel):
    """Options; defaults are those of the published runs.

    Attributes:
        beta: How far v+ and v- stand apart.
        advantage_clip: Advantages are clipped at this.
        loss_scale: Factor of the loss; the published one equals the clip.
        reference_weight: Weight of the distance from the reference's prediction; 0 does not ask the reference.
        timestep_share: Share of the schedule's steps, from the first on, that is trained on.
        timesteps_per_sample: How many of them for each sample and step, drawn without repeats; None takes all.
        old_decay: How the old copy follows the student: 0 at once; 1 slower up to half; 2 at once for 75 steps, then
            slower and slower.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    beta: float = Field(default=0.1, gt=0)
    advantage_clip: float = Field(default=5.0, gt=0)
    loss_scale: float = Field(default=5.0, gt=0)
    reference_weight: float = Field(default=1e-4, ge=0)
    timestep_share: float = Field(default=0.99, gt=0, le=1)
    timesteps_per_sample: int | None = Field(default=None, ge=1)
    old_decay: Literal[0, 1, 2] = 1


@dataclass(frozen=True, slots=True)
class NFTItem:
    """One sample at one noise level; `goodness` is p."""

    x0_1CTHW: Tensor
    sigma: float
    timestep: float
    inputs: Any
    goodness: float


def old_decay(kind: int, step: int) -> float:
    """Return the share of itself that the old copy keeps after an outer step."""
    if kind == 0:
        return 0.0
    if kind == 1:
        return min(0.001 * step, 0.5)
    return 0.0 if step < 75 else min(0.0075 * (step - 75), 0.999)


def nft_losses(
    x0: Tensor, noisy: Tensor, sigmas: Tensor, student: Tensor, old: Tensor, *, beta: float
) -> tuple[Tensor, Tensor]:
    """Return loss+ and loss- of each row, shape (B,); the tensors are of one shape, `sigmas` broadcasts."""
    positive = beta * student + (1 - beta) * old
    negative = (1 + beta) * old - beta * student
    return _weighted(noisy - sigmas * positive, x0), _weighted(noisy - sigmas * negative, x0)


def _weighted(predicted: Tensor, x0: Tensor) -> Tensor:
    weight_B = row_mean((predicted - x0).abs()).detach().clamp_min(_LEAST_WEIGHT)
    return row_mean((predicted - x0).square()) / weight_B


class DiffusionNFT:
    """Likelihood-free reinforcement learning in prediction space."""

    source: ClassVar[Source] = "rollouts"
    behavior_role: ClassVar[str] = "old"
    needs_rewards: ClassVar[bool] = True
    needs_steps: ClassVar[bool] = False

    def __init__(self, options: NFTOptions) -> None:
        self._options = options

    def rollout_parameters(self, step: int, seed: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return Euler's method, and no guidance: the conditional branch alone is trained."""
        return {"sampler": "flow_euler", "guidance_scale": 1.0}

    def player(self, step: int) -> str:
        """Return the student."""
        return "student"

    def items(self, groups: Sequence[Group], ctx: MethodContext) -> list[NFTItem]:
        """Return each sample at each trained noise level."""
        clip = self._options.advantage_clip
        found = []
        for group in groups:
            for record, advantage in zip(group.records, advantages(group, clip=clip), strict=True):
                goodness = min(max(advantage / clip / 2 + 0.5, 0.0), 1.0)
                schedule = record.schedule
                found += [
                    NFTItem(
                        record.latents_1CTHW,
                        schedule.sigma_values[index],
                        schedule.timestep_values[index],
                        record.inputs,
                        goodness,
                    )
                    for index in self._indices(len(schedule.timestep_values), ctx)
                ]
        return found

    def loss(self, items: Sequence[NFTItem], ctx: MethodContext) -> Loss:
        """Return the loss of some samples at their noise levels, with fresh noise."""
        options = self._options
        x0 = torch.cat([item.x0_1CTHW for item in items])
        noisy_1 = [noised(item.x0_1CTHW, ctx.noise_like(item.x0_1CTHW), item.sigma) for item in items]
        queries = [
            ctx.query(noisy, item.sigma, item.inputs, timestep=item.timestep)
            for item, noisy in zip(items, noisy_1, strict=True)
        ]
        student = ctx.roles.predict("student", queries, has_gradient=True)
        old = ctx.roles.predict("old", queries)
        sigmas = rows_like([item.sigma for item in items], x0)
        plus_B, minus_B = nft_losses(x0, torch.cat(noisy_1), sigmas, student, old, beta=options.beta)
        good_B = torch.tensor([item.goodness for item in items], device=x0.device)
        policy = options.loss_scale * ((good_B * plus_B + (1 - good_B) * minus_B) / options.beta).mean()
        old_distance = row_mean((student - old).square()).mean()
        value, metrics = policy, {"policy_loss": policy, "old_deviation": old_distance}
        if options.reference_weight:
            distance = row_mean((student - ctx.roles.predict("reference", queries)).square()).mean()
            value, metrics = policy + options.reference_weight * distance, {**metrics, "deviation": distance}
        metrics["loss"] = value
        return Loss(value, {name: float(one.detach()) for name, one in metrics.items()})

    def ended(self, ctx: MethodContext) -> None:
        """Let the old copy follow the student."""
        ctx.roles.blend("old", "student", old_decay(self._options.old_decay, ctx.step))

    def _indices(self, num_steps: int, ctx: MethodContext) -> list[int]:
        count = max(1, int(num_steps * self._options.timestep_share))
        wanted = self._options.timesteps_per_sample
        if wanted is None or wanted >= count:
            return list(range(count))
        return sorted(torch.randperm(count, generator=ctx.generator)[:wanted].tolist())
