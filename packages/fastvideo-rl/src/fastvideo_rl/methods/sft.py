"""Supervised flow matching: mean |v - (eps - x0)|² on samples with prompts.

Source: Lipman et al. 2022, arXiv:2210.02747; the times' density of Esser et al. 2024, arXiv:2403.03206.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fastvideo_rl.methods.base import Loss, MethodContext, Source, noised, row_mean
from fastvideo_rl.rollout.records import Group

__all__ = ["FlowMatching", "FlowMatchingOptions", "SftItem"]


class FlowMatchingOptions(BaseModel):
    """Options.

    Attributes:
        times: Density of the noise levels before the shift.
        shift: Flow shift of the levels; above 1 trains more on high noise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    times: Literal["logit_normal", "uniform"] = "logit_normal"
    shift: float = Field(default=1.0, gt=0, le=100)


@dataclass(frozen=True, slots=True)
class SftItem:
    """One sample with its noise level."""

    x0_1CTHW: Tensor
    sigma: float
    inputs: Any


class FlowMatching:
    """Supervised flow matching."""

    source: ClassVar[Source] = "data"
    behavior_role: ClassVar[str] = "student"
    needs_rewards: ClassVar[bool] = False
    needs_steps: ClassVar[bool] = False

    def __init__(self, options: FlowMatchingOptions) -> None:
        self._options = options

    def rollout_parameters(self, step: int, seed: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return nothing: it trains on data."""
        return {}

    def player(self, step: int) -> str:
        """Return the student."""
        return "student"

    def items(self, groups: Sequence[Group], ctx: MethodContext) -> list[SftItem]:
        """Return each sample with a noise level of its own."""
        records = [record for group in groups for record in group.records]
        levels = self._levels(len(records), ctx)
        return [
            SftItem(record.latents_1CTHW, sigma, record.inputs) for record, sigma in zip(records, levels, strict=True)
        ]

    def loss(self, items: Sequence[SftItem], ctx: MethodContext) -> Loss:
        """Return the mean squared distance of the velocities."""
        noises = [ctx.noise_like(item.x0_1CTHW) for item in items]
        queries = [
            ctx.query(noised(item.x0_1CTHW, noise, item.sigma), item.sigma, item.inputs)
            for item, noise in zip(items, noises, strict=True)
        ]
        velocity = ctx.roles.predict("student", queries, has_gradient=True)
        target = torch.cat([noise - item.x0_1CTHW for item, noise in zip(items, noises, strict=True)])
        value = row_mean((velocity - target).square()).mean()
        return Loss(value, {"loss": float(value.detach())})

    def ended(self, ctx: MethodContext) -> None:
        """Do nothing."""

    def _levels(self, count: int, ctx: MethodContext) -> list[float]:
        if self._options.times == "uniform":
            times = ctx.uniform(count)
        else:
            drawn = torch.randn(count, generator=ctx.generator).tolist()
            times = [1 / (1 + math.exp(-one)) for one in drawn]
        s = self._options.shift
        return [s * time / (1 + (s - 1) * time) for time in times]
