"""Self-forcing: DMD2 over whole rollouts of a student that makes its samples chunk by chunk.

A rollout goes through the first noise levels up to a drawn one, the same for all chunks, and each chunk is made after
the keys and values that the student's own earlier chunks have left. At the last of these levels the student predicts
again with gradients; none flow through what the chunks attend to. The chunks together are one sample for teacher and
critic, which see all of it at once:

    L = 1/2 mean |x0 - sg(x0 - gradient)|² with x0 the chunks side by side, and the gradient as of `dmd2`

Source: Huang et al. 2025, arXiv:2506.08009, algorithm 1.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastvideo_core.loop.behavior import StepBehavior
from fastvideo_core.loop.samplers import Schedule
from fastvideo_rl.methods.base import MethodContext, predict_each
from fastvideo_rl.methods.dmd2 import DMD2
from fastvideo_rl.rollout.records import Group

__all__ = ["SelfForcing", "SelfForcingItem", "exit_level"]


@dataclass(frozen=True, slots=True)
class SelfForcingItem:
    """A whole rollout: the last step of each chunk, and the level at which the sample is looked at."""

    prompt: str
    x0_1CTHW: Tensor
    steps: tuple[StepBehavior, ...]
    schedule: Schedule
    inputs: Any
    level: float


def exit_level(step: int, seed: int, num_levels: int) -> int:
    """Return the level at which the chunks of a step end: in `num_levels` steps each one once, in drawn order."""
    turn, place = divmod(step, num_levels)
    order = list(range(num_levels))
    random.Random(f"{seed}/exit/{turn}").shuffle(order)
    return order[place]


class SelfForcing(DMD2):
    """Distillation over the rollouts of streams."""

    def rollout_parameters(self, step: int, seed: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return how many noise levels the chunks go through."""
        return {"num_inference_steps": 1 + exit_level(step, seed, int(given["num_inference_steps"]))}

    def items(self, groups: Sequence[Group], ctx: MethodContext) -> list[SelfForcingItem]:
        """Return each sample, with a level of its own."""
        records = [record for group in groups for record in group.records]
        levels = self.levels(len(records), ctx)
        return [
            SelfForcingItem(
                record.prompt, record.latents_1CTHW, _last_steps(record.steps), record.schedule, record.inputs, level
            )
            for record, level in zip(records, levels, strict=True)
        ]

    def student_x0(self, items: Sequence[SelfForcingItem], ctx: MethodContext) -> Tensor:
        """Return what the student takes the chunks for, side by side, with gradients."""
        steps = [(item, step) for item in items for step in item.steps]
        queries = [ctx.query_step(step, item.schedule, item.inputs) for item, step in steps]
        velocities = predict_each(ctx.roles, "student", queries, has_gradient=True)
        chunks = [
            step.sample_1CTHW.to(velocity.device) - item.schedule.sigma_values[step.step_index] * velocity
            for (item, step), velocity in zip(steps, velocities, strict=True)
        ]
        num = len(items[0].steps)
        return torch.cat([torch.cat(chunks[first : first + num], dim=2) for first in range(0, len(chunks), num)])


def _last_steps(steps: Sequence[StepBehavior]) -> tuple[StepBehavior, ...]:
    """Return the last step of each chunk, in order."""
    return tuple({step.chunk: step for step in steps}.values())
