"""Consistency sampling in few steps, as distilled models (DMD2, Self-Forcing, FastWan) are run.

Each step predicts x0, and mixes it with fresh noise to the next level: x0 = x - sigma v in float64, then
x' = (1 - sigma') x0 + sigma' eps. The last step returns x0.

Distilled weights know a few times only; `options["steps"]` pins them:

- `warp` true (Self-Forcing): step k stands for entry 1000 - k of the shifted time table; shift 5 turns 1000, 750, 500,
  250 into 1000, 937.5, 833.33, 625.
- `warp` false (FastWan): the steps are the times themselves; sigma is that of the nearest time in the shifted table.

Times are floats: cut to integers they are other times. Without `steps`, the flow Euler scheduler's levels are used.

Source: Luo et al. 2023, arXiv:2310.04378; Yin et al. 2024, arXiv:2405.14867; Huang et al. 2025, arXiv:2506.08009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.policies.flow_shift import check_shift
from fastvideo_core.loop.samplers import sigmas as grids
from fastvideo_core.loop.samplers.base import (
    Sampler,
    SamplerState,
    Schedule,
    ScheduleSpec,
    StepCoefficients,
    parse_options,
    past_outputs,
)
from fastvideo_core.loop.samplers.flow_euler import reference_sigmas

__all__ = ["LCM", "LcmOptions", "coefficients", "init_state", "make_schedule", "needs_noise", "sigma_table", "step"]

NAME = "lcm"


@dataclass(frozen=True, slots=True)
class LcmOptions:
    """Options of few-step sampling.

    Attributes:
        steps: The training steps of the distilled weights, falling, each from 1 to the length of the scale.
        warp: Whether steps are places in the shifted time table, not times.
    """

    steps: Sequence[float] | None = None
    warp: bool = True


def sigma_table(num_train_timesteps: int, shift: float) -> Tensor:
    """Return the shifted noise levels of all training steps, high to low, float32, shape (num_train_timesteps,)."""
    s = check_shift(shift)
    sigmas = torch.linspace(1.0, 0.0, num_train_timesteps + 1)[:-1]
    return s * sigmas / (1 + (s - 1) * sigmas)


def make_schedule(spec: ScheduleSpec) -> Schedule:
    """Return the schedule; `options` are those of `LcmOptions`. `rows[i]` is `((1 - sigma', sigma'),)`.

    Raises:
        ParameterError: An option or a noise level is out of range.
    """
    options = parse_options(LcmOptions, spec.options, NAME)
    if options.steps is None:
        sigmas, shift = reference_sigmas(spec)
        timesteps = grids.float_timesteps(sigmas[:-1], spec.num_train_timesteps)
    else:
        sigmas, timesteps = _few_steps(spec, options.steps, is_warped=options.warp)
        shift = spec.shift
    kept = (1.0 - sigmas[1:]).tolist()
    return grids.make_schedule(
        spec,
        sampler=NAME,
        sigmas=sigmas,
        timesteps=timesteps,
        shift=shift,
        order=1,
        rows=tuple(((a, b),) for a, b in zip(kept, sigmas[1:].tolist(), strict=True)),
    )


def _few_steps(spec: ScheduleSpec, steps: Sequence[float], *, is_warped: bool) -> tuple[Tensor, Tensor]:
    _check_steps(spec, steps, is_warped=is_warped)
    table = sigma_table(spec.num_train_timesteps, spec.shift)
    times = table * spec.num_train_timesteps
    if is_warped:
        places = torch.tensor([spec.num_train_timesteps - int(step) for step in steps])
        timesteps = times[places]
    else:
        timesteps = torch.tensor([float(step) for step in steps])
    distance = (times.double()[None, :] - timesteps.double()[:, None]).abs()
    sigmas = torch.cat([table[distance.argmin(dim=1)], torch.zeros(1)])
    grids.check_sigmas(sigmas, spec.num_steps)
    return sigmas, timesteps


def _check_steps(spec: ScheduleSpec, steps: Sequence[float], *, is_warped: bool) -> None:
    high = spec.num_train_timesteps
    if spec.sigmas is not None:
        raise ParameterError(
            "steps and noise levels exclude each other", field="steps", value=list(steps), allowed="one"
        )
    if len(steps) != spec.num_steps:
        raise ParameterError(
            "the model is distilled to other steps",
            field="num_inference_steps",
            value=spec.num_steps,
            allowed=f"{len(steps)}: {list(steps)}",
            nearest=len(steps),
        )
    is_falling = all(a > b for a, b in pairwise(steps))
    is_whole = not is_warped or all(float(step).is_integer() for step in steps)
    if not is_falling or not is_whole or not all(1 <= step <= high for step in steps):
        kind = "integers" if is_warped else "numbers"
        raise ParameterError(
            "not a list of steps", field="steps", value=list(steps), allowed=f"falling {kind}, 1 to {high}"
        )


def init_state(schedule: Schedule) -> SamplerState:  # noqa: ARG001 - the protocol's argument
    """Return the state before the first step; it stays empty."""
    return SamplerState()


def needs_noise(schedule: Schedule, step_index: int) -> bool:
    """Tell whether a step mixes in fresh noise: all but one that ends at zero."""
    return schedule.sigma_values[step_index + 1] > 0


def step(
    schedule: Schedule,
    state: SamplerState,
    velocity: Tensor,
    sample: Tensor,
    step_index: int,
    *,
    noise: Tensor | None = None,
) -> tuple[Tensor, SamplerState]:
    """Make one step; see `StepFunction`.

    Raises:
        ParameterError: The step needs noise and got none.
    """
    past_outputs(schedule, state, step_index, 0)
    ((kept, mixed),) = schedule.rows[step_index]
    x0 = (sample.double() - schedule.sigma_values[step_index] * velocity.double()).to(sample.dtype)
    if not needs_noise(schedule, step_index):
        return x0, state
    if noise is None:
        raise ParameterError(
            "the step mixes in fresh noise", field="noise", value=None, allowed="a standard normal tensor"
        )
    return kept * x0 + mixed * noise, state


def coefficients(schedule: Schedule, step_index: int) -> StepCoefficients:
    """Return the step as linear combinations of `BASIS`."""
    ((kept, mixed),) = schedule.rows[step_index]
    return StepCoefficients(sample=(kept, -kept * schedule.sigma_values[step_index], mixed, 0.0, 0.0, 0.0, 0.0))


LCM = Sampler(NAME, make_schedule, init_state, step, needs_noise, coefficients)
