"""ComfyUI's samplers for flow models, with its schedules, as samplers of the runtime.

ComfyUI treats a flow model's sample like one of a variance-exploding model: with D = x - sigma v the estimate of x0,
and t = -ln sigma in place of the half log signal-to-noise ratio. For Euler that is the flow's own step; the multistep
samplers differ from those made for flow models. Model timesteps are 1000 sigma, not cut to integers.

    euler, ddim     x' = x + (sigma' - sigma) v
    lcm             x' = (1 - sigma') D + sigma' eps
    dpmpp_2m        x' = (sigma'/sigma) x - (e^-h - 1) [(1 + 1/2r) D - 1/2r D_old]
    res_multistep   x' = e^-h x + h [(phi1 - phi2/c2) D + (phi2/c2) D_old], Euler on the first and the last step
    uni_pc          UniPC in data prediction with alpha = 1; the final 0 is 0.001, the result is divided by 1 - 0.001

with h = ln(sigma/sigma'). The noise of a request comes from its own generator, on the CPU: the first draw of a seed is
ComfyUI's; the fresh noise of `lcm` continues that stream, where ComfyUI begins another one.

Sources: Karras et al. 2022, arXiv:2206.00364; Lu et al. 2022, arXiv:2211.01095; Zhang et al. 2023, arXiv:2308.02157;
Zhao et al. 2023, arXiv:2302.04867.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fastvideo_comfy.names import SAMPLERS, sampler_name, split_sampler_name
from fastvideo_comfy.sigmas import NUM_TABLE, SCHEDULERS, sampler_levels
from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.samplers import (
    Sampler,
    SamplerState,
    Schedule,
    ScheduleSpec,
    StepCoefficients,
    flow_euler,
    lcm,
    unipc,
)
from fastvideo_core.loop.samplers.base import never_needs_noise, parse_options, past_outputs

__all__ = ["FINAL_SIGMA", "attribute_name", "comfy_sampler", "unipc_stages"]

FINAL_SIGMA = 0.001
"""What UniPC takes for a last level of 0, whose logarithm it could not use."""

_MAX_ORDER = 3
_Rows = tuple[tuple[tuple[float, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class ComfyOptions:
    """These samplers have no options."""


def _euler_rows(levels: Sequence[float]) -> _Rows:
    sigmas = torch.tensor(levels, dtype=torch.float32)
    return tuple(((dt,),) for dt in (sigmas[1:] - sigmas[:-1]).tolist())


def _lcm_rows(levels: Sequence[float]) -> _Rows:
    return tuple(((1.0 - after, after),) for after in levels[1:])


def _dpmpp_rows(levels: Sequence[float]) -> _Rows:
    """Return weights of x, D and D_old for each step."""
    rows = []
    for i, (sigma, after) in enumerate(pairwise(levels)):
        if i == 0 or after == 0:
            rows.append(((after / sigma, 1 - after / sigma, 0.0),))
            continue
        h, h_last = math.log(sigma / after), math.log(levels[i - 1] / sigma)
        half = h / (2 * h_last)
        gain = -math.expm1(-h)
        rows.append(((after / sigma, gain * (1 + half), -gain * half),))
    return tuple(rows)


def _res_rows(levels: Sequence[float]) -> _Rows:
    """Return weights of x, D and D_old for each step."""
    rows = []
    for i, (sigma, after) in enumerate(pairwise(levels)):
        if i == 0 or after == 0:
            rows.append(((after / sigma, 1 - after / sigma, 0.0),))
            continue
        h = math.log(sigma / after)
        c2 = -math.log(levels[i - 1] / sigma) / h
        phi1 = math.expm1(-h) / -h
        phi2 = (phi1 - 1) / -h
        rows.append(((math.exp(-h), h * (phi1 - phi2 / c2), h * phi2 / c2),))
    return tuple(rows)


def unipc_stages(levels: Sequence[float], solver: str) -> _Rows:
    """Return corrector and predictor of each step, as core's UniPC step takes them.

    Args:
        levels: All levels; a last one of 0 is taken for `FINAL_SIGMA`.
        solver: "bh1" or "bh2".
    """
    sigmas = [*levels[:-1], levels[-1] or FINAL_SIGMA]
    num_steps = len(sigmas) - 1
    order = _unipc_order(levels)
    orders = [min(order, k) if k < order else min(order, num_steps + 1 - k) for k in range(1, num_steps + 1)]
    stages = [_transition(sigmas, k, p, solver) for k, p in enumerate(orders, start=1)]
    correctors = [(), *(corrector for _, corrector in stages[:-1])]
    predictors = [predictor for predictor, _ in stages]
    ratio, base, scale, *rest = predictors[-1]
    end = 1 / (1 - sigmas[-1])
    predictors[-1] = (ratio * end, base * end, scale * end, *rest)
    return tuple(zip(correctors, predictors, strict=True))


def _unipc_order(levels: Sequence[float]) -> int:
    return min(_MAX_ORDER, len(levels) - 2)


def _transition(
    sigmas: Sequence[float], k: int, order: int, solver: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return predictor and corrector from level k - 1 to level k: `(ratio, base, scale, r …, rho …)`."""
    start, end = sigmas[k - 1], sigmas[k]
    h = math.log(start / end)
    base = math.expm1(-h)
    scale = -h if solver == "bh1" else base
    r = [math.log(start / sigmas[k - 1 - i]) / h for i in range(1, order)]
    nodes = [*r, 1.0]
    # b_i = i! phi_(i+1)(-h) (-h) / B(h), by the recursion phi_(n+1)(z) = (phi_n(z) - 1/n!) / z.
    b, phi, factorial = [], base / -h - 1, 1
    for i in range(1, order + 1):
        b.append(phi * factorial / scale)
        factorial *= i + 1
        phi = phi / -h - 1 / factorial
    rho_p = [] if order == 1 else [0.5] if order == 2 else _solve(nodes[:-1], b[:-1])
    rho_c = [0.5] if order == 1 else _solve(nodes, b)
    head = (end / start, base, scale)
    return (*head, *r, *rho_p), (*head, *r, *rho_c)


def _solve(nodes: Sequence[float], b: Sequence[float]) -> list[float]:
    matrix = torch.tensor([[node**i for node in nodes] for i in range(len(nodes))], dtype=torch.float64)
    solved: list[float] = torch.linalg.solve(matrix, torch.tensor(b, dtype=torch.float64)).tolist()
    return solved


def _two_step(
    schedule: Schedule,
    state: SamplerState,
    velocity: Tensor,
    sample: Tensor,
    step_index: int,
    *,
    noise: Tensor | None = None,  # noqa: ARG001 - deterministic
) -> tuple[Tensor, SamplerState]:
    """Make one step out of x, D and the D before it; see `StepFunction`."""
    past = past_outputs(schedule, state, step_index, 1)
    ((of_x, of_new, of_old),) = schedule.rows[step_index]
    x0 = sample - schedule.sigma_values[step_index] * velocity.to(sample.dtype)
    moved = of_x * sample + of_new * x0
    return (moved + of_old * past[0] if of_old else moved), SamplerState((x0,))


def _two_step_coefficients(schedule: Schedule, step_index: int) -> StepCoefficients:
    """Return the step as linear combinations of `BASIS`."""
    ((of_x, of_new, of_old),) = schedule.rows[step_index]
    sigma = schedule.sigma_values[step_index]
    sample = (of_x + of_new, -of_new * sigma, 0.0, 0.0, of_old, 0.0, 0.0)
    return StepCoefficients(sample, (1.0, -sigma, 0.0, 0.0, 0.0, 0.0, 0.0), None, 1)


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a sampler makes its rows and its steps."""

    rows: Callable[[Sequence[float]], _Rows]
    step: Any
    coefficients: Callable[[Schedule, int], StepCoefficients]
    order: Callable[[Sequence[float]], int] = lambda levels: 1  # noqa: ARG005 - a field's default
    needs_noise: Callable[[Schedule, int], bool] = never_needs_noise
    final: float = 0.0


_EULER = _Kind(_euler_rows, flow_euler.step, flow_euler.coefficients)
_KINDS = {
    "euler": _EULER,
    "ddim": _EULER,
    "lcm": _Kind(_lcm_rows, lcm.step, lcm.coefficients, needs_noise=lcm.needs_noise),
    "dpmpp_2m": _Kind(_dpmpp_rows, _two_step, _two_step_coefficients),
    "res_multistep": _Kind(_res_rows, _two_step, _two_step_coefficients),
    "uni_pc": _Kind(
        lambda levels: unipc_stages(levels, "bh1"), unipc.step, unipc.coefficients, _unipc_order, final=FINAL_SIGMA
    ),
    "uni_pc_bh2": _Kind(
        lambda levels: unipc_stages(levels, "bh2"), unipc.step, unipc.coefficients, _unipc_order, final=FINAL_SIGMA
    ),
}


def comfy_sampler(name: str) -> Sampler:
    """Return the sampler of a name that `fastvideo_comfy.names.sampler_name` made."""
    kind_name, scheduler, drops = split_sampler_name(name)
    kind = _KINDS[kind_name]

    def make_schedule(spec: ScheduleSpec) -> Schedule:
        _check(spec, name)
        levels = sampler_levels(scheduler, spec.num_steps, spec.shift, drops_last_but_one=drops)
        if kind.final and len(levels) < 3:
            raise ParameterError(
                "UniPC makes no step of one alone", field="num_inference_steps", value=spec.num_steps,
                allowed="at least 2", nearest=2,
            )  # fmt: skip
        sigmas = torch.tensor([*levels[:-1], levels[-1] or kind.final], dtype=torch.float32)
        timesteps = sigmas[:-1] * spec.num_train_timesteps
        return Schedule(
            sampler=name,
            sigmas=sigmas,
            timesteps=timesteps,
            sigma_values=tuple(sigmas.tolist()),
            timestep_values=tuple(timesteps.tolist()),
            num_train_timesteps=spec.num_train_timesteps,
            shift=spec.shift,
            order=kind.order(levels),
            begin=0,
            rows=kind.rows(levels),
        )

    return Sampler(name, make_schedule, flow_euler.init_state, kind.step, kind.needs_noise, kind.coefficients)


def _check(spec: ScheduleSpec, name: str) -> None:
    parse_options(ComfyOptions, spec.options, name)
    given = {"sigmas": (spec.sigmas, None), "begin": (spec.begin, 0)}
    given["num_train_timesteps"] = (spec.num_train_timesteps, NUM_TABLE)
    for field, (value, allowed) in given.items():
        if value != allowed:
            raise ParameterError(
                f"sampler {name} lays out its own schedule", field=field, value=value, allowed=str(allowed)
            )


def attribute_name(name: str) -> str:
    """Return the attribute of this module under which a sampler is found."""
    return name.replace(".", "__").replace("-", "_of_").upper()


_BY_ATTRIBUTE = {
    attribute_name(name): name
    for sampler in SAMPLERS
    for scheduler in SCHEDULERS
    for name in {sampler_name(sampler, scheduler), sampler_name(sampler, scheduler, is_custom=True)}
}


def __getattr__(name: str) -> Sampler:
    """Make a sampler when it is asked for by its attribute name: few of the many are ever used."""
    if name not in _BY_ATTRIBUTE:
        raise AttributeError(name)
    return comfy_sampler(_BY_ATTRIBUTE[name])
