"""Diffusion-DPO: of two samples of a prompt the better one is to be predicted better than the reference does.

    e = mean |v - (eps - x0)|², L = -log sigmoid(-beta / 2 [(e_w - e_w_ref) - (e_l - e_l_ref)])

with one noise and one level for both. The pair of a group is its best and its worst sample.

Source: Wallace et al. 2023, arXiv:2311.12908.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fastvideo_rl.methods.base import Loss, MethodContext, Source, noised, row_mean
from fastvideo_rl.rollout.records import Group

__all__ = ["DPO", "DPOItem", "DPOOptions", "preference_loss"]


class DPOOptions(BaseModel):
    """Options.

    Attributes:
        beta: How much a difference counts.
        levels_per_pair: Noise levels that are drawn for each pair and step.
        min_gap: Pairs whose rewards differ by less are left out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    beta: float = Field(default=2000.0, gt=0)
    levels_per_pair: int = Field(default=1, ge=1)
    min_gap: float = Field(default=1e-6, ge=0)


@dataclass(frozen=True, slots=True)
class DPOItem:
    """A pair at one noise level."""

    better_1CTHW: Tensor
    worse_1CTHW: Tensor
    sigma: float
    inputs: Any


def preference_loss(student_B: tuple[Tensor, Tensor], reference_B: tuple[Tensor, Tensor], beta: float) -> Tensor:
    """Return the loss of pairs from the errors of the better and the worse sample, a mean over rows."""
    gain_B = (student_B[0] - reference_B[0]) - (student_B[1] - reference_B[1])
    return -F.logsigmoid(-0.5 * beta * gain_B).mean()


class DPO:
    """Preferences between two samples of a prompt."""

    source: ClassVar[Source] = "rollouts"
    behavior_role: ClassVar[str] = "student"
    needs_rewards: ClassVar[bool] = True
    needs_steps: ClassVar[bool] = False

    def __init__(self, options: DPOOptions) -> None:
        self._options = options

    def rollout_parameters(self, step: int, seed: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return nothing: samples are made as the config says."""
        return {}

    def player(self, step: int) -> str:
        """Return the student."""
        return "student"

    def items(self, groups: Sequence[Group], ctx: MethodContext) -> list[DPOItem]:
        """Return the best and the worst sample of each group, where they differ."""
        found = []
        for group in groups:
            ordered = sorted(group.records, key=lambda record: record.reward)
            worse, better = ordered[0], ordered[-1]
            if better.reward - worse.reward >= self._options.min_gap and better is not worse:
                levels = ctx.uniform(self._options.levels_per_pair)
                found += [DPOItem(better.latents_1CTHW, worse.latents_1CTHW, one, better.inputs) for one in levels]
        return found

    def loss(self, items: Sequence[DPOItem], ctx: MethodContext) -> Loss:
        """Return the loss of some pairs."""
        noises = [ctx.noise_like(item.better_1CTHW) for item in items]
        samples = [[item.better_1CTHW for item in items], [item.worse_1CTHW for item in items]]
        queries = [
            ctx.query(noised(x0, noise, item.sigma), item.sigma, item.inputs)
            for some in samples
            for x0, noise, item in zip(some, noises, items, strict=True)
        ]
        targets = torch.cat([noise - x0 for some in samples for x0, noise in zip(some, noises, strict=True)])
        student = row_mean((ctx.roles.predict("student", queries, has_gradient=True) - targets).square())
        reference = row_mean((ctx.roles.predict("reference", queries) - targets).square())
        (better, worse), (better_ref, worse_ref) = student.chunk(2), reference.chunk(2)
        value = preference_loss((better, worse), (better_ref, worse_ref), self._options.beta)
        agreed = ((better - better_ref) < (worse - worse_ref)).float().mean()
        metrics = {"loss": value, "agreement": agreed, "deviation": (student - reference).abs().mean()}
        return Loss(value, {name: float(one.detach()) for name, one in metrics.items()})

    def ended(self, ctx: MethodContext) -> None:
        """Do nothing."""
