"""DPM-Solver++ (2M): a multistep method of order 2 in data prediction, for flow models.

Source: Lu et al. 2022, arXiv:2211.01095, algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.samplers import sigmas as grids
from fastvideo_core.loop.samplers.base import (
    Sampler,
    SamplerState,
    Schedule,
    ScheduleSpec,
    StepCoefficients,
    never_needs_noise,
    parse_options,
    past_outputs,
)

__all__ = ["DPMPP_2M", "DpmOptions", "coefficients", "init_state", "make_schedule", "step"]

NAME = "dpmpp_2m"


@dataclass(frozen=True, slots=True)
class DpmOptions:
    """Options of DPM-Solver++.

    Attributes:
        order: 2, or 1 for the single-step method (DDIM in flow form).
    """

    order: int = 2

    def __post_init__(self) -> None:
        if self.order not in (1, 2):
            raise ParameterError("not an order", field="order", value=self.order, allowed="1 or 2", nearest=2)


def make_schedule(spec: ScheduleSpec) -> Schedule:
    """Return the schedule; `options` are those of `DpmOptions`.

    `rows[i]` is `((ratio, base, 1 / r, half_base),)`; the last two are missing in steps of order 1. The first step and
    the last one, which ends at zero, are of order 1.

    Raises:
        ParameterError: An option or a noise level is out of range.
    """
    options = parse_options(DpmOptions, spec.options, NAME)
    shifted = grids.resolve_sigmas(spec, grids.data_grid(spec.num_steps, spec.num_train_timesteps))
    sigmas = grids.with_final(shifted.values, "zero")
    grids.check_sigmas(sigmas, spec.num_steps)
    return grids.make_schedule(
        spec,
        sampler=NAME,
        sigmas=sigmas,
        timesteps=grids.integer_timesteps(shifted.values, spec.num_train_timesteps),
        shift=shifted.shift,
        order=options.order,
        rows=_rows(sigmas, spec, options),
    )


def _rows(sigmas: Tensor, spec: ScheduleSpec, options: DpmOptions) -> tuple[tuple[tuple[float, ...], ...], ...]:
    alphas = 1 - sigmas
    # Logarithms of single numbers: vectors may round them differently, and the reference takes single ones.
    lambdas = torch.stack([torch.log(a) - torch.log(s) for a, s in zip(alphas, sigmas, strict=True)])
    h = lambdas[1:] - lambdas[:-1]
    base = alphas[1:] * (torch.stack([torch.exp(-value) for value in h]) - 1.0)
    ratio, inverse_r, half_base = sigmas[1:] / sigmas[:-1], 1.0 / (h[:-1] / h[1:]), 0.5 * base
    scalars = zip(ratio.tolist(), base.tolist(), [0.0, *inverse_r.tolist()], half_base.tolist(), strict=True)
    first, last = spec.begin, spec.num_steps - 1
    return tuple((row if options.order == 2 and first < i < last else row[:2],) for i, row in enumerate(scalars))


def init_state(schedule: Schedule) -> SamplerState:  # noqa: ARG001 - the protocol's argument
    """Return the state before the first step."""
    return SamplerState()


def step(
    schedule: Schedule,
    state: SamplerState,
    velocity: Tensor,
    sample: Tensor,
    step_index: int,
    *,
    noise: Tensor | None = None,  # noqa: ARG001 - the method is deterministic
) -> tuple[Tensor, SamplerState]:
    """Make one step; see `StepFunction`."""
    past = past_outputs(schedule, state, step_index, schedule.order - 1)
    ((ratio, base, *second),) = schedule.rows[step_index]
    # A zero-dimensional tensor, not a float: with a bfloat16 velocity the two round differently.
    x0 = sample - schedule.sigmas[step_index] * velocity
    following = ratio * sample - base * x0
    if second:
        inverse_r, half_base = second
        following = following - half_base * (inverse_r * (x0 - past[0]))
    return following, SamplerState((x0,)[: schedule.order - 1])


def coefficients(schedule: Schedule, step_index: int) -> StepCoefficients:
    """Return the step as linear combinations of `BASIS`."""
    ((ratio, base, *second),) = schedule.rows[step_index]
    of_past = second[0] * second[1] if second else 0.0
    of_x0 = -base - of_past
    sigma = schedule.sigma_values[step_index]
    following = (ratio + of_x0, -sigma * of_x0, 0.0, 0.0, of_past, 0.0, 0.0)
    x0 = (1.0, -sigma, 0.0, 0.0, 0.0, 0.0, 0.0)
    return StepCoefficients(following, x0 if schedule.order == 2 else None, None, schedule.order - 1)


DPMPP_2M = Sampler(NAME, make_schedule, init_state, step, never_needs_noise, coefficients)
