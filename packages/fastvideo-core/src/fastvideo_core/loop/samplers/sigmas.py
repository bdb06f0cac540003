"""Grids of noise levels, and the schedules made of them.

Each grid is computed in the number format and the order of operations of the reference scheduler that it belongs to
(diffusers 0.42), since float32 levels that differ by one bit give other videos.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.policies.flow_shift import FlowSigmas, ShiftedSigmas, check_shift, shift_sigmas
from fastvideo_core.loop.samplers.base import Schedule, ScheduleSpec

__all__ = [
    "FIRST_SIGMA_GAP",
    "check_sigmas",
    "data_grid",
    "float_timesteps",
    "integer_timesteps",
    "karras_sigmas",
    "make_schedule",
    "native_grid",
    "noise_grid",
    "reshifted_grid",
    "resolve_sigmas",
    "with_final",
]

FIRST_SIGMA_GAP = 1e-6
"""What is taken off a first level of 1, whose lambda would be infinite."""

_ROUNDING = 1e-5  # of the shift in float32: a first level of 1 may come out a little larger
_Levels = NDArray[np.floating[Any]]


def noise_grid(num_steps: int, num_train_timesteps: int) -> FlowSigmas:
    """Return UniPC's grid: from 1 evenly down to, and without, the smallest noise level of training."""
    return FlowSigmas(np.linspace(1, 1 / num_train_timesteps, num_steps + 1)[:-1])


def native_grid(num_steps: int, num_train_timesteps: int) -> FlowSigmas:
    """Return Cosmos3's native grid: from one training step below 1 evenly down to, and without, 0."""
    return FlowSigmas(np.linspace(1.0 - 1.0 / num_train_timesteps, 0.0, num_steps + 1)[:-1])


def data_grid(num_steps: int, num_train_timesteps: int) -> FlowSigmas:
    """Return the grid of multistep DPM-Solver++: even in alpha, from the smallest training alpha, without alpha 1."""
    alphas = np.linspace(1, 1 / num_train_timesteps, num_steps + 1)
    return FlowSigmas(np.flip(1.0 - alphas)[:-1])


def reshifted_grid(num_steps: int, num_train_timesteps: int, shift: float) -> FlowSigmas:
    """Return the grid of the flow Euler scheduler, whose last level is the *shifted* smallest level of training.

    Shifting this grid moves its tail a second time. That is how the reference computes it, and what models were tuned
    with.
    """
    s = check_shift(shift)
    # Float32 tensors, as in the reference: numpy's own float32 arithmetic could differ in the last bit.
    ends = torch.tensor([1.0, num_train_timesteps], dtype=torch.float32) / num_train_timesteps
    shifted = s * ends / (1 + (s - 1) * ends)
    low, high = shifted.tolist()
    times = np.linspace(high * num_train_timesteps, low * num_train_timesteps, num_steps)
    return FlowSigmas(times / num_train_timesteps)


def karras_sigmas(num_steps: int, *, sigma_min: float, sigma_max: float, rho: float = 7.0) -> ShiftedSigmas:
    """Return Karras levels turned into flow levels by sigma / (1 + sigma); no flow shift applies to them.

    Args:
        num_steps: Denoising steps.
        sigma_min: Smallest level of the variance-exploding form, above 0.
        sigma_max: Largest level, above `sigma_min`.
        rho: Curvature of the schedule.

    Raises:
        ParameterError: The bounds are not 0 < sigma_min < sigma_max.

    Source: Karras et al. 2022, arXiv:2206.00364, eq. 5.
    """
    if not 0 < sigma_min < sigma_max:
        raise ParameterError(
            "not an interval of noise levels",
            field="sigma_min, sigma_max",
            value=(sigma_min, sigma_max),
            allowed="0 < sigma_min < sigma_max",
        )
    low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
    sigmas = (high + np.linspace(0, 1, num_steps) * (low - high)) ** rho
    return ShiftedSigmas(sigmas / (sigmas + 1))


def resolve_sigmas(spec: ScheduleSpec, grid: FlowSigmas | ShiftedSigmas) -> ShiftedSigmas:
    """Return the levels of a schedule: the request's own or the sampler's grid, shifted exactly once.

    Args:
        spec: The request.
        grid: The sampler's grid; used where `spec.sigmas` is None.
    """
    sigmas = grid if spec.sigmas is None else spec.sigmas
    return sigmas if isinstance(sigmas, ShiftedSigmas) else shift_sigmas(sigmas, spec.shift)


def with_final(levels: _Levels, final: str) -> torch.Tensor:
    """Append the last level and round to float32.

    Args:
        levels: Shifted levels, one a step; all of them where `final` is "given".
        final: "zero", "sigma_min" (the last level again) or "given".
    """
    if final == "given":
        return torch.from_numpy(levels.astype(np.float32))
    last = 0.0 if final == "zero" else levels[-1]
    return torch.from_numpy(np.concatenate([levels, [last]]).astype(np.float32))


def integer_timesteps(levels: _Levels, num_train_timesteps: int) -> torch.Tensor:
    """Return sigma times the scale, cut off to int64, as UniPC and DPM-Solver++ do."""
    return torch.from_numpy(levels * num_train_timesteps).to(torch.int64)


def float_timesteps(sigmas: torch.Tensor, num_train_timesteps: int) -> torch.Tensor:
    """Return sigma times the scale in float32, as the flow Euler scheduler does."""
    return sigmas * num_train_timesteps


def check_sigmas(sigmas: torch.Tensor, num_steps: int, *, may_repeat_last: bool = False) -> None:
    """Refuse levels that are no schedule of `num_steps` steps.

    Args:
        sigmas: All levels, float32, the last one included.
        num_steps: Denoising steps.
        may_repeat_last: Whether the last two levels may be equal.

    Raises:
        ParameterError: Another number of levels, a level outside [0, 1], or levels that do not fall.
    """
    if sigmas.numel() != num_steps + 1:
        raise ParameterError(
            "steps and noise levels do not match",
            field="num_inference_steps",
            value=num_steps,
            allowed=f"{sigmas.numel() - 1}, as there are noise levels",
            nearest=sigmas.numel() - 1,
        )
    values = sigmas.tolist()
    must_fall = values[:-1] if may_repeat_last and values[-1] == values[-2] else values
    if not all(a > b for a, b in pairwise(must_fall)) or values[0] > 1 + _ROUNDING or values[-1] < 0:
        raise ParameterError(
            "not a schedule",
            field="sigmas",
            value=[round(value, 6) for value in values],
            allowed="levels in [0, 1], each below the one before (in float32)",
        )


def make_schedule(
    spec: ScheduleSpec,
    *,
    sampler: str,
    sigmas: torch.Tensor,
    timesteps: torch.Tensor,
    shift: float,
    order: int,
    rows: tuple[tuple[tuple[float, ...], ...], ...],
) -> Schedule:
    """Put a schedule together; the arguments are its fields."""
    return Schedule(
        sampler=sampler,
        sigmas=sigmas,
        timesteps=timesteps,
        sigma_values=tuple(sigmas.tolist()),
        timestep_values=tuple(float(t) for t in timesteps.tolist()),
        num_train_timesteps=spec.num_train_timesteps,
        shift=shift,
        order=order,
        begin=spec.begin,
        rows=rows,
    )
