"""C2: rollout is serving to the bit, and the train forward agrees with the rollout on what a method's objective uses.

For methods with likelihoods that is the density of every stochastic step, whose ratio before the first update is 1; for
the others the final sample of a seed, and the prediction at every step.

Shape letters: 1 one row; C channels; T, H, W latent frames, rows, columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastvideo_core.card import ParityLevel
from fastvideo_core.errors import ParityError
from fastvideo_core.loop.samplers import Sampler, get_sampler, samplers_of
from fastvideo_core.parity import CheckContext, Measurement, compare_tensors
from fastvideo_core.request.base import new_request_id
from fastvideo_core.runtime.engine import Engine
from fastvideo_rl.methods.base import MethodContext
from fastvideo_rl.program import TrainingProgram
from fastvideo_rl.rollout.records import BehaviorRecord
from fastvideo_rl.rollout.roller import GroupPlan, Roller
from fastvideo_rl.train.roles import Role, Roles

__all__ = [
    "MAX_PREDICTION_ERROR",
    "MAX_RATIO_DEVIATION",
    "BehaviorReport",
    "check_behavior",
    "check_card",
    "require_behavior",
]

MAX_RATIO_DEVIATION = 1e-6
"""How far a ratio of densities may be from 1 before the first update, in float32."""

MAX_PREDICTION_ERROR = 1e-5
"""Largest difference of predictions over their largest value, in float32: kernels with gradients round otherwise."""


@dataclass(frozen=True, slots=True)
class BehaviorReport:
    """What was found.

    Attributes:
        is_served_sample: Whether a rollout gave to the bit what serving the same request gives.
        num_steps: Steps that were compared.
        num_densities: Those of them with a density.
        max_prediction_error: Largest relative difference of a prediction.
        max_ratio_deviation: Largest distance of a ratio of densities from 1; 0 where there are none.
    """

    is_served_sample: bool
    num_steps: int
    num_densities: int
    max_prediction_error: float
    max_ratio_deviation: float

    @property
    def level(self) -> ParityLevel:
        """The rung that is reached: C2, or C1 where only the loop itself agrees with serving, else C0."""
        if not self.is_served_sample:
            return ParityLevel.C0
        agrees = (
            self.num_steps > 0
            and self.max_prediction_error <= MAX_PREDICTION_ERROR
            and self.max_ratio_deviation <= MAX_RATIO_DEVIATION
        )
        return ParityLevel.C2 if agrees else ParityLevel.C1

    def __str__(self) -> str:
        served = "equals serving to the bit" if self.is_served_sample else "differs from serving"
        densities = f", ratio within {self.max_ratio_deviation:.1e} of 1 in {self.num_densities}"
        return (
            f"{self.level.value}: rollout {served}; train forward within {self.max_prediction_error:.1e} in "
            f"{self.num_steps} steps{densities if self.num_densities else ''}"
        )


def check_behavior(
    roller: Roller,
    roles: Roles,
    role: str,
    prompt: str,
    parameters: Mapping[str, Any],
    *,
    seeds: Sequence[int] = (1, 2),
) -> BehaviorReport:
    """Roll out a group and hold it against serving and against the train forward.

    Args:
        roller: Rolls out, with the weights of `role`.
        roles: The weights that training has.
        role: Whose weights roll out.
        prompt: A prompt.
        parameters: Parameters of the rollouts, but for the seed.
        seeds: Seeds of the group.

    Raises:
        ParityError: The rollout failed.
    """
    (group,) = roller.run([GroupPlan(prompt, tuple(seeds), parameters)])
    if group.reason is not None:
        raise ParityError(f"the rollout of the gate failed: {group.reason}")
    is_served = _is_served(roller, prompt, {**parameters, "seed": seeds[0]})
    samplers = samplers_of(roller.engine.instance)
    errors, ratios = [], []
    for record in group.records:
        for step, predicted in zip(record.steps, _predictions(roles, role, record), strict=True):
            errors.append(compare_tensors(predicted, step.prediction_1CTHW).max_relative)
            if step.log_prob is not None:
                sampler = get_sampler(record.schedule.sampler, samplers)
                ratios.append(_ratio_deviation(sampler, record, step, predicted))
    return BehaviorReport(is_served, len(errors), len(ratios), max(errors, default=math.inf), max(ratios, default=0.0))


def _is_served(roller: Roller, prompt: str, parameters: Mapping[str, Any]) -> bool:
    """Make one sample as a rollout and as a served request, each alone, and compare their bits."""
    (alone,) = roller.run([GroupPlan(prompt, (int(parameters["seed"]),), _without_seed(parameters))])
    program = roller.program
    request = roller.engine.make_request(
        prompt, task=program.task, outputs=("latents",), parameters=parameters, request_id=new_request_id()
    )
    served = roller.engine.submit(request).result()
    rolled: Tensor | None = alone.records[0].latents_1CTHW if alone.records else None
    return rolled is not None and torch.equal(rolled[0].cpu(), torch.from_numpy(served.latents.latents))


def _without_seed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name != "seed"}


def _predictions(roles: Roles, role: str, record: BehaviorRecord) -> list[Tensor]:
    """Return the train forward's prediction at every step of a record, each (1, C, T, H, W)."""
    context = MethodContext(roles, 0, 1, 0, torch.Generator())
    queries = [context.query_step(step, record.schedule, record.inputs) for step in record.steps]
    # One by one: experts may differ from step to step, and gradients are on, as in training.
    return [roles.predict(role, [query], has_gradient=roles.roles[role].is_trained).detach() for query in queries]


def _ratio_deviation(sampler: Sampler, record: BehaviorRecord, step: Any, predicted: Tensor) -> float:
    assert sampler.log_prob is not None
    found = sampler.log_prob(
        record.schedule, predicted, step.sample_1CTHW.to(predicted.device), step.next_1CTHW.to(predicted.device),
        step.step_index,
    )  # fmt: skip
    assert found is not None, "a step with a density had one"
    return abs(math.expm1(float(found) - step.log_prob))


def require_behavior(report: BehaviorReport, required: ParityLevel) -> None:
    """Refuse to train below the level that is needed.

    Raises:
        ParityError: With what was found.
    """
    if required in (ParityLevel.C0, ParityLevel.C1):
        ok = report.is_served_sample or required is ParityLevel.C0
    else:
        ok = report.level is ParityLevel.C2
    if not ok:
        raise ParityError(f"training needs {required.value} between rollout and training, and there is {report}")


def check_card(context: CheckContext) -> Sequence[Measurement]:
    """C2 of a card, for `fastvideo parity`: rollouts of its default loop against serving and the train forward."""
    with Engine(context.instance) as engine:
        program = TrainingProgram.of(engine.card)
        modules = {name: context.instance.component(name) for name in program.trained}
        roles = Roles(engine.card.loops[program.generator.loop], {"student": Role(modules, is_trained=False)})
        task = engine.card.task(program.task)
        sizes = {name: value for name, value in context.parameters.items() if name in task.parameters}
        roller = Roller(engine, program)
        (group,) = roller.run([GroupPlan("a red circle", (1,), sizes)])
        if group.reason is not None:
            raise ParityError(group.reason)
        record = group.records[0]
        predicted = _predictions(roles, "student", record)
        return [
            Measurement(f"step {step.step_index}", "default", compare_tensors(one, step.prediction_1CTHW))
            for step, one in zip(record.steps, predicted, strict=True)
        ]
