"""The Euler method on the flow: x' = x + (sigma' - sigma) v."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastvideo_core.loop.policies.flow_shift import FlowSigmas, ShiftedSigmas, shift_sigmas
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

__all__ = ["FLOW_EULER", "coefficients", "init_state", "make_schedule", "reference_sigmas", "step"]

NAME = "flow_euler"


@dataclass(frozen=True, slots=True)
class FlowEulerOptions:
    """The Euler sampler has no options."""


def reference_sigmas(spec: ScheduleSpec) -> tuple[Tensor, float]:
    """Return all noise levels of the flow Euler scheduler, float32, and the shift applied to them.

    Raises:
        ParameterError: A noise level or the shift is out of range.
    """
    grid = grids.reshifted_grid(spec.num_steps, spec.num_train_timesteps, spec.shift)
    own = spec.sigmas
    if isinstance(own, FlowSigmas):
        # The reference rounds levels that it is given before it shifts them.
        grid = FlowSigmas(own.values.astype(np.float32))
    shifted = own if isinstance(own, ShiftedSigmas) else shift_sigmas(grid, spec.shift)
    sigmas = grids.with_final(shifted.values, "zero")
    grids.check_sigmas(sigmas, spec.num_steps)
    return sigmas, shifted.shift


def make_schedule(spec: ScheduleSpec) -> Schedule:
    """Return the schedule. `rows[i]` is `((sigma' - sigma,),)`.

    Raises:
        ParameterError: An option or a noise level is out of range.
    """
    parse_options(FlowEulerOptions, spec.options, NAME)
    sigmas, shift = reference_sigmas(spec)
    return grids.make_schedule(
        spec,
        sampler=NAME,
        sigmas=sigmas,
        timesteps=grids.float_timesteps(sigmas[:-1], spec.num_train_timesteps),
        shift=shift,
        order=1,
        rows=tuple(((dt,),) for dt in (sigmas[1:] - sigmas[:-1]).tolist()),
    )


def init_state(schedule: Schedule) -> SamplerState:  # noqa: ARG001 - the protocol's argument
    """Return the state before the first step; it stays empty."""
    return SamplerState()


def step(
    schedule: Schedule,
    state: SamplerState,
    velocity: Tensor,
    sample: Tensor,
    step_index: int,
    *,
    noise: Tensor | None = None,  # noqa: ARG001 - Euler is deterministic
) -> tuple[Tensor, SamplerState]:
    """Make one step; see `StepFunction`."""
    past_outputs(schedule, state, step_index, 0)
    ((dt,),) = schedule.rows[step_index]
    return sample + dt * velocity.to(torch.promote_types(velocity.dtype, sample.dtype)), state


def coefficients(schedule: Schedule, step_index: int) -> StepCoefficients:
    """Return the step as linear combinations of `BASIS`."""
    ((dt,),) = schedule.rows[step_index]
    return StepCoefficients(sample=(1.0, dt, 0.0, 0.0, 0.0, 0.0, 0.0))


FLOW_EULER = Sampler(NAME, make_schedule, init_state, step, never_needs_noise, coefficients)
