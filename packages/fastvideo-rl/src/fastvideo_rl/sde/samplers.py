"""Stochastic steps along the flow, with the density of each: sde, dance_sde, cps.

Symbols: x_sigma = (1 - sigma) x0 + sigma eps, v = eps - x0, x0 = x - sigma v, dt = sigma' - sigma < 0; `a` is the
level of noise. A step is x' = mu + std eps' with mu linear in x and v:

- `sde`: s = a sqrt(sigma / (1 - sigma)), the second level in place of the first one where that is 1;
  mu = x (1 + s² dt / 2 sigma) + v (1 + s² (1 - sigma) / 2 sigma) dt; std = s sqrt(-dt).
- `dance_sde`: mu = x + v dt + a² (x - (1 - sigma) x0) dt / 2 sigma²; std = a sqrt(-dt).
- `cps`: std = sigma' sin(a pi / 2); mu = (1 - sigma') x0 + (x + (1 - sigma) v) sqrt(sigma'² - std²).

Outside a window of steps, and in the step to level 0, nothing is drawn: there a step is Euler's.

Sources: Liu et al. 2025, arXiv:2505.05470; Xue et al. 2025, arXiv:2505.07818; Wang and Yu 2025, arXiv:2509.05952.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.samplers import Sampler, SamplerState, Schedule, ScheduleSpec, StepCoefficients
from fastvideo_core.loop.samplers import sigmas as grids
from fastvideo_core.loop.samplers.base import parse_options
from fastvideo_core.loop.samplers.flow_euler import reference_sigmas

__all__ = ["CPS", "DANCE_SDE", "SDE", "Kind", "SdeOptions", "transition"]

Kind = Literal["sde", "dance_sde", "cps"]


@dataclass(frozen=True, slots=True)
class SdeOptions:
    """Options of a stochastic sampler.

    Attributes:
        noise_level: `a`, from 0 to 1.
        first_step: The first step that draws noise.
        num_steps: How many do; None stands for all from the first on.
    """

    noise_level: float = 0.7
    first_step: int = 0
    num_steps: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.noise_level <= 1.0:
            raise ParameterError("not a level", field="noise_level", value=self.noise_level, allowed="0 to 1")
        if self.first_step < 0 or (self.num_steps is not None and self.num_steps < 1):
            window = (self.first_step, self.num_steps)
            raise ParameterError(
                "not a window", field="first_step, num_steps", value=window, allowed="0 or more, 1 or more"
            )

    def has(self, step_index: int) -> bool:
        """Whether a step is in the window."""
        return self.first_step <= step_index and (
            self.num_steps is None or step_index < self.first_step + self.num_steps
        )


def transition(kind: Kind, sigma: float, sigma_next: float, *, noise_level: float, second: float) -> tuple[float, ...]:
    """Return the weights of x, v and of fresh noise in a step.

    Args:
        kind: Which equation.
        sigma: Level before the step, above `sigma_next`.
        sigma_next: Level after it, above 0.
        noise_level: `a`.
        second: The schedule's second level.
    """
    dt = sigma_next - sigma
    if kind == "sde":
        s = noise_level * math.sqrt(sigma / (1 - (second if sigma >= 1 else sigma)))
        half = s * s / (2 * sigma)
        return 1 + half * dt, (1 + half * (1 - sigma)) * dt, s * math.sqrt(-dt)
    if kind == "dance_sde":
        half = noise_level * noise_level / (2 * sigma)
        return 1 + half * dt, (1 + half * (1 - sigma)) * dt, noise_level * math.sqrt(-dt)
    std = sigma_next * math.sin(noise_level * math.pi / 2)
    kept = math.sqrt(max(sigma_next * sigma_next - std * std, 0.0))
    return 1 - sigma_next + kept, kept * (1 - sigma) - sigma * (1 - sigma_next), std


def _make_schedule(kind: Kind, spec: ScheduleSpec) -> Schedule:
    """Return the schedule: `rows[i]` holds the weights of x, v and noise; the levels are the flow Euler scheduler's.

    Raises:
        ParameterError: An option or a noise level is out of range, or the window lies behind the last step.
    """
    options = parse_options(SdeOptions, spec.options, kind)
    if options.first_step >= spec.num_steps:
        raise ParameterError(
            "the window lies behind the last step", field="first_step", value=options.first_step,
            allowed=f"0 to {spec.num_steps - 1}", nearest=spec.num_steps - 1,
        )  # fmt: skip
    sigmas, shift = reference_sigmas(spec)
    levels = sigmas.tolist()
    return grids.make_schedule(
        spec,
        sampler=kind,
        sigmas=sigmas,
        timesteps=grids.float_timesteps(sigmas[:-1], spec.num_train_timesteps),
        shift=shift,
        order=1,
        rows=tuple((_row(kind, options, levels, index),) for index in range(spec.num_steps)),
    )


def _row(kind: Kind, options: SdeOptions, levels: list[float], index: int) -> tuple[float, ...]:
    sigma, sigma_next = levels[index], levels[index + 1]
    if not options.has(index) or sigma_next <= 0 or options.noise_level == 0:
        return 1.0, sigma_next - sigma, 0.0
    return transition(kind, sigma, sigma_next, noise_level=options.noise_level, second=levels[1])


def _init_state(schedule: Schedule) -> SamplerState:  # noqa: ARG001 - the protocol's argument
    return SamplerState()


def _needs_noise(schedule: Schedule, step_index: int) -> bool:
    return schedule.rows[step_index][0][2] > 0


def _mean(schedule: Schedule, velocity: Tensor, sample: Tensor, step_index: int) -> Tensor:
    kept, moved, _ = schedule.rows[step_index][0]
    return kept * sample + moved * velocity.to(sample.dtype)


def _take(
    schedule: Schedule,
    state: SamplerState,
    velocity: Tensor,
    sample: Tensor,
    step_index: int,
    *,
    noise: Tensor | None = None,
) -> tuple[Tensor, SamplerState]:
    """Make one step; see `fastvideo_core.loop.samplers.base.StepFunction`."""
    mean = _mean(schedule, velocity, sample, step_index)
    if not _needs_noise(schedule, step_index):
        return mean, state
    if noise is None:
        raise ParameterError("the step draws noise", field="noise", value=None, allowed="a standard normal tensor")
    return mean + schedule.rows[step_index][0][2] * noise, state


def _log_prob(
    kind: Kind, schedule: Schedule, velocity: Tensor, sample: Tensor, next_sample: Tensor, step_index: int
) -> Tensor | None:
    """Return the mean over all numbers of a row of the logarithm of each one's density; of `cps` not normalized."""
    std = schedule.rows[step_index][0][2]
    if std == 0:
        return None
    squares = (next_sample - _mean(schedule, velocity, sample, step_index)).square()
    if kind == "cps":
        return -squares.flatten(1).mean(dim=1)
    constant = math.log(std) + 0.5 * math.log(2 * math.pi)
    return (-squares / (2 * std * std) - constant).flatten(1).mean(dim=1)


def _coefficients(schedule: Schedule, step_index: int) -> StepCoefficients:
    kept, moved, std = schedule.rows[step_index][0]
    return StepCoefficients(sample=(kept, moved, std, 0.0, 0.0, 0.0, 0.0))


def _sampler(kind: Kind) -> Sampler:
    return Sampler(
        kind,
        partial(_make_schedule, kind),
        _init_state,
        _take,
        _needs_noise,
        _coefficients,
        partial(_log_prob, kind),
        parameters={
            "noise_level": "sde_noise_level",
            "first_step": "sde_first_step",
            "num_steps": "sde_num_steps",
        },
    )


SDE = _sampler("sde")
DANCE_SDE = _sampler("dance_sde")
CPS = _sampler("cps")
