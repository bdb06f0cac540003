"""What a training method is: which samples it wants, and what its loss makes of them.

Symbols: x_t = (1 - t) x0 + t eps, v = eps - x0, x0 = x_t - t v.

Shape letters: 1 one row; B rows; C channels; T, H, W latent frames, rows, columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fastvideo_core.loop.behavior import PredictQuery, StepBehavior
from fastvideo_core.loop.samplers import Schedule
from fastvideo_rl.rollout.records import Group
from fastvideo_rl.train.roles import Roles

__all__ = [
    "Loss",
    "Method",
    "MethodContext",
    "Source",
    "advantages",
    "noised",
    "predict_each",
    "row_mean",
    "rows_like",
]

Source = Literal["rollouts", "data"]
"""Where samples come from: the engine, or a folder."""


@dataclass(slots=True)
class MethodContext:
    """What a method works with in one outer step.

    Attributes:
        roles: Weights, and the loop's prediction with them.
        step: The outer step, from 0.
        num_steps: How many there are.
        seed: Seed of the run.
        generator: All of the step's draws; made anew for each step from seed and step.
        num_train_timesteps: The length of the model's scale of times.
        teacher_inputs: What the teacher's loop is given for prompts, its unconditional branch included; None where
            there is no teacher.
    """

    roles: Roles
    step: int
    num_steps: int
    seed: int
    generator: torch.Generator
    num_train_timesteps: int = 1000
    teacher_inputs: Mapping[str, Mapping[str, Any]] | None = None

    def noise_like(self, sample: Tensor) -> Tensor:
        """Return standard normal noise of a sample's shape, drawn on the CPU."""
        return torch.randn(sample.shape, generator=self.generator).to(sample.device)

    def uniform(self, count: int) -> list[float]:
        """Return numbers between 0 and 1."""
        return [float(one) for one in torch.rand(count, generator=self.generator)]

    def query(
        self,
        sample_1CTHW: Tensor,
        sigma: float,
        inputs: Mapping[str, Any],
        *,
        guidance_scale: float | None = None,
        timestep: float | None = None,
        step_index: int = 0,
    ) -> PredictQuery:
        """Return what to predict at a noise level; its timestep is sigma on the model's scale unless one is given."""
        at = sigma * self.num_train_timesteps if timestep is None else timestep
        return PredictQuery(sample_1CTHW, at, inputs, guidance_scale, step_index)

    def query_step(self, step: StepBehavior, schedule: Schedule, inputs: Mapping[str, Any]) -> PredictQuery:
        """Return what a recorded step predicted: from its own sample, time, guidance and past."""
        return PredictQuery(
            step.sample_1CTHW,
            schedule.timestep_values[step.step_index],
            inputs,
            step.guidance_scale if len(step.branches) > 1 else None,
            step.step_index,
            step.chunk,
            step.past,
        )


@dataclass(slots=True)
class Loss:
    """The loss of a micro-batch.

    Attributes:
        value: Mean over its items, with gradients.
        metrics: Numbers for the log, means over its items.
    """

    value: Tensor
    metrics: dict[str, float] = field(default_factory=dict)


class Method(Protocol):
    """A method; made once a run, called with its options. It keeps nothing that a checkpoint would have to hold.

    Attributes:
        source: Where its samples come from.
        behavior_role: Whose weights the engine rolls out with.
        needs_rewards: Whether samples are scored.
        needs_steps: Whether records keep their steps.
    """

    source: ClassVar[Source]
    behavior_role: ClassVar[str]
    needs_rewards: ClassVar[bool]
    needs_steps: ClassVar[bool]

    def rollout_parameters(self, step: int, seed: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return request parameters of this step's rollouts, over those of the config.

        Args:
            step: The outer step, from 0.
            seed: Seed of the run.
            given: What they are without the method: the config's parameters over the task's defaults.
        """
        ...

    def player(self, step: int) -> str:
        """Return the role that is updated in a step."""
        ...

    def items(self, groups: Sequence[Group], ctx: MethodContext) -> list[Any]:
        """Return what the loss is a mean over."""
        ...

    def loss(self, items: Sequence[Any], ctx: MethodContext) -> Loss:
        """Return the loss of some items."""
        ...

    def ended(self, ctx: MethodContext) -> None:
        """Do what is done once the step's updates are made, for instance blend a role."""
        ...


def predict_each(
    roles: Roles, role: str, queries: Sequence[PredictQuery], *, has_gradient: bool = False
) -> list[Tensor]:
    """Return the prediction of each query, (1, C, T, H, W), in order; those of one shape share a call.

    Args:
        roles: Weights.
        role: Whose.
        queries: What to predict; shapes may differ.
        has_gradient: Whether gradients flow to the role's weights.
    """
    places: dict[tuple[int, ...], list[int]] = {}
    for place, query in enumerate(queries):
        places.setdefault(tuple(query.sample_1CTHW.shape), []).append(place)
    made = {
        shape: roles.predict(role, [queries[place] for place in mine], has_gradient=has_gradient).split(1)
        for shape, mine in places.items()
    }
    by_place = {place: row for shape, mine in places.items() for place, row in zip(mine, made[shape], strict=True)}
    return [by_place[place] for place in range(len(queries))]


def advantages(group: Group, *, clip: float) -> list[float]:
    """Return each sample's reward less the group's mean, over its (population) standard deviation, clipped."""
    rewards = torch.tensor([record.reward for record in group.records], dtype=torch.float64)
    scaled = (rewards - rewards.mean()) / (rewards.std(correction=0) + 1e-4)
    return [float(one) for one in scaled.clamp(-clip, clip)]


def noised(x0: Tensor, noise: Tensor, sigma: float) -> Tensor:
    """Return x_t."""
    return (1 - sigma) * x0 + sigma * noise


def row_mean(values_BCTHW: Tensor) -> Tensor:
    """Return the mean of each row, shape (B,)."""
    return values_BCTHW.flatten(1).mean(dim=1)


def rows_like(values: Sequence[float], like: Tensor) -> Tensor:
    """Return one number a row so that it broadcasts over the rest of `like`."""
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, *(1,) * (like.ndim - 1))
