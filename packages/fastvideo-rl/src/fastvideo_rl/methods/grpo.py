"""Flow-GRPO: policy gradients on the densities of the stochastic steps of a rollout.

    r = exp(log p(x' | x) - log p_old(x' | x)), L = mean max(-A r, -A clip(r, 1 ± c)) + w KL

with the divergence of two normal densities of one spread, |mu - mu_ref|² / 2 std².

Sources: Liu et al. 2025, arXiv:2505.05470; Shao et al. 2024, arXiv:2402.03300.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fastvideo_core.loop.samplers import Sampler, Schedule
from fastvideo_rl.methods.base import Loss, MethodContext, Source, advantages, row_mean
from fastvideo_rl.rollout.records import Group
from fastvideo_rl.sde.samplers import CPS, DANCE_SDE, SDE

__all__ = [
    "SAMPLERS",
    "FlowGRPO",
    "GRPOItem",
    "GRPOOptions",
    "clipped_policy_loss",
    "log_prob_of",
]

SAMPLERS: dict[str, Sampler] = {sampler.name: sampler for sampler in (SDE, DANCE_SDE, CPS)}


class GRPOOptions(BaseModel):
    """Options.

    Attributes:
        kind: The stochastic equation.
        noise_level: How much noise its steps draw.
        clip: How far a ratio may be from 1 before it is clipped.
        advantage_clip: Advantages are clipped at this.
        reference_weight: Weight of the divergence from the reference.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["sde", "dance_sde", "cps"] = "sde"
    noise_level: float = Field(default=0.7, gt=0, le=1)
    clip: float = Field(default=1e-4, gt=0)
    advantage_clip: float = Field(default=5.0, gt=0)
    reference_weight: float = Field(default=0.0, ge=0)


@dataclass(frozen=True, slots=True)
class GRPOItem:
    """One transition of a rollout."""

    sample_1CTHW: Tensor
    next_1CTHW: Tensor
    schedule: Schedule
    step_index: int
    log_prob: float
    guidance_scale: float | None
    inputs: Any
    advantage: float


def log_prob_of(item: GRPOItem, velocity_1CTHW: Tensor) -> Tensor:
    """Return the logarithm of the density of a transition under a prediction, shape (1,), by the sampler's own code."""
    density = SAMPLERS[item.schedule.sampler].log_prob
    assert density is not None
    device = velocity_1CTHW.device
    found = density(
        item.schedule, velocity_1CTHW, item.sample_1CTHW.to(device), item.next_1CTHW.to(device), item.step_index
    )
    assert found is not None, "only steps that drew noise are trained on"
    return found


def clipped_policy_loss(ratios_B: Tensor, advantages_B: Tensor, clip: float) -> Tensor:
    """Return the clipped loss, a mean over rows."""
    clipped = ratios_B.clamp(1 - clip, 1 + clip)
    return torch.maximum(-advantages_B * ratios_B, -advantages_B * clipped).mean()


class FlowGRPO:
    """Policy gradients on stochastic steps."""

    source: ClassVar[Source] = "rollouts"
    behavior_role: ClassVar[str] = "student"
    needs_rewards: ClassVar[bool] = True
    needs_steps: ClassVar[bool] = True

    def __init__(self, options: GRPOOptions) -> None:
        self._options = options

    def rollout_parameters(self, step: int, seed: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stochastic sampler; all steps draw noise."""
        return {"sampler": self._options.kind, "sde_noise_level": self._options.noise_level}

    def player(self, step: int) -> str:
        """Return the student."""
        return "student"

    def items(self, groups: Sequence[Group], ctx: MethodContext) -> list[GRPOItem]:
        """Return the transitions that drew noise, with the advantages of their samples."""
        found = []
        for group in groups:
            gains = advantages(group, clip=self._options.advantage_clip)
            for record, advantage in zip(group.records, gains, strict=True):
                found += [
                    GRPOItem(
                        step.sample_1CTHW, step.next_1CTHW, record.schedule, step.step_index, step.log_prob,
                        step.guidance_scale if len(step.branches) > 1 else None, record.inputs, advantage,
                    )
                    for step in record.steps
                    if step.log_prob is not None
                ]  # fmt: skip
        return found

    def loss(self, items: Sequence[GRPOItem], ctx: MethodContext) -> Loss:
        """Return the clipped loss of some transitions."""
        queries = _transition_queries(items, ctx)
        velocity = ctx.roles.predict("student", queries, has_gradient=True)
        now_B = torch.cat([log_prob_of(item, velocity[i : i + 1]) for i, item in enumerate(items)])
        then_B = torch.tensor([item.log_prob for item in items], device=velocity.device)
        gains_B = torch.tensor([item.advantage for item in items], device=velocity.device)
        ratios_B = (now_B - then_B).exp()
        value = policy = clipped_policy_loss(ratios_B, gains_B, self._options.clip)
        metrics = {
            "policy_loss": policy,
            "ratio_deviation": (ratios_B - 1).abs().max(),
            "kl": 0.5 * (now_B - then_B).square().mean(),
            "clipped": ((ratios_B - 1).abs() > self._options.clip).float().mean(),
        }
        if self._options.reference_weight:
            metrics["reference_kl"] = divergence = self._divergence(items, velocity, queries, ctx)
            value = policy + self._options.reference_weight * divergence
        metrics["loss"] = value
        return Loss(value, {name: float(one.detach()) for name, one in metrics.items()})

    def ended(self, ctx: MethodContext) -> None:
        """Do nothing: the student itself rolls out."""

    def _divergence(
        self, items: Sequence[GRPOItem], velocity: Tensor, queries: Sequence[Any], ctx: MethodContext
    ) -> Tensor:
        """Return the mean divergence from the reference: means differ by the weight of v times the velocities'."""
        reference = ctx.roles.predict("reference", queries)
        rows = [item.schedule.rows[item.step_index][0] for item in items]
        factors_B = torch.tensor([moved * moved / (2 * std * std) for _, moved, std in rows], device=velocity.device)
        return (factors_B * row_mean((velocity - reference).square())).mean()


def _transition_queries(items: Sequence[GRPOItem], ctx: MethodContext) -> list[Any]:
    """Return what a prediction needs to be asked at transitions: stored samples, and the rollout's own times."""
    return [
        ctx.query(
            item.sample_1CTHW,
            item.schedule.sigma_values[item.step_index],
            item.inputs,
            guidance_scale=item.guidance_scale,
            timestep=item.schedule.timestep_values[item.step_index],
            step_index=item.step_index,
        )
        for item in items
    ]
