"""UniPC in data prediction for flow models: a multistep predictor, and a corrector that needs no further forward.

Each step first corrects the sample that the previous step predicted, with the velocity just evaluated at it, and then
predicts the next sample.

Source: Zhao et al. 2023, arXiv:2302.04867, algorithms 1 and 2 (B(h) version).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.policies.flow_shift import FlowSigmas, ShiftedSigmas
from fastvideo_core.loop.samplers import sigmas as grids
from fastvideo_core.loop.samplers.base import (
    BASIS,
    Sampler,
    SamplerState,
    Schedule,
    ScheduleSpec,
    StepCoefficients,
    never_needs_noise,
    parse_options,
    past_outputs,
)
from fastvideo_core.loop.samplers.unipc_tables import transition_stages

__all__ = ["UNIPC", "UniPCOptions", "coefficients", "init_state", "make_schedule", "step"]

NAME = "unipc"
_Grid = Literal["default", "native", "karras"]
_Final = Literal["zero", "sigma_min", "given"]


@dataclass(frozen=True, slots=True)
class UniPCOptions:
    """Options of UniPC.

    Attributes:
        order: Order of the predictor, 1 to 3; the corrector raises it by one.
        solver_type: B(h): "bh1" or "bh2".
        lower_order_final: Whether the last steps lower the order down to 1.
        disable_corrector: Steps whose result is not corrected.
        grid: "default", "native" (Cosmos3's), or "karras" with the two bounds.
        sigma_min: Smallest noise level of "karras".
        sigma_max: Largest noise level of "karras".
        final_sigma: "zero", "sigma_min" (the last level again), or "given" (the last of the request's own levels).
    """

    order: int = 2
    solver_type: Literal["bh1", "bh2"] = "bh2"
    lower_order_final: bool = True
    disable_corrector: Sequence[int] = ()
    grid: _Grid = "default"
    sigma_min: float | None = None
    sigma_max: float | None = None
    final_sigma: _Final = "zero"

    def __post_init__(self) -> None:
        _check_choice("order", self.order, (1, 2, 3))
        _check_choice("solver_type", self.solver_type, ("bh1", "bh2"))
        _check_choice("grid", self.grid, get_args(_Grid))
        _check_choice("final_sigma", self.final_sigma, get_args(_Final))
        if self.grid == "karras" and (self.sigma_min is None or self.sigma_max is None):
            raise ParameterError(
                "the grid needs bounds", field="grid", value=self.grid, allowed="sigma_min and sigma_max with it"
            )


def _check_choice(field: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        raise ParameterError("not a known value", field=field, value=value, allowed=", ".join(map(str, allowed)))


def make_schedule(spec: ScheduleSpec) -> Schedule:
    """Return the schedule; `options` are those of `UniPCOptions`.

    `rows[i]` holds the stages of the corrector (empty if it does not run) and of the predictor of step i, each
    `(ratio, base, scale, r_1 …, rho_1 …)`: see `unipc_tables`.

    Raises:
        ParameterError: An option or a noise level is out of range.
    """
    options = parse_options(UniPCOptions, spec.options, NAME)
    shifted = grids.resolve_sigmas(spec, _grid(spec, options))
    levels = shifted.values.copy()
    if abs(levels[0] - 1) < grids.FIRST_SIGMA_GAP:
        levels[0] -= grids.FIRST_SIGMA_GAP
    sigmas = grids.with_final(levels, options.final_sigma)
    grids.check_sigmas(sigmas, spec.num_steps, may_repeat_last=options.final_sigma == "sigma_min")
    _check_last_transition(sigmas, options)
    return grids.make_schedule(
        spec,
        sampler=NAME,
        sigmas=sigmas,
        timesteps=grids.integer_timesteps(levels[: spec.num_steps], spec.num_train_timesteps),
        shift=shifted.shift,
        order=options.order,
        rows=_rows(sigmas, spec, options),
    )


def _grid(spec: ScheduleSpec, options: UniPCOptions) -> FlowSigmas | ShiftedSigmas:
    if options.grid == "native":
        return grids.native_grid(spec.num_steps, spec.num_train_timesteps)
    if options.grid == "karras" and options.sigma_min is not None and options.sigma_max is not None:
        return grids.karras_sigmas(spec.num_steps, sigma_min=options.sigma_min, sigma_max=options.sigma_max)
    return grids.noise_grid(spec.num_steps, spec.num_train_timesteps)


def _check_last_transition(sigmas: Tensor, options: UniPCOptions) -> None:
    """Refuse an infinite last step of an order above 1, which has no finite coefficients."""
    if options.order > 1 and not options.lower_order_final and not sigmas[-2] > sigmas[-1] > 0:
        raise ParameterError(
            "a last step to this noise level is of order 1",
            field="lower_order_final",
            value=False,
            allowed="true, or given noise levels that end above 0",
            nearest=True,
        )


def _rows(sigmas: Tensor, spec: ScheduleSpec, options: UniPCOptions) -> tuple[tuple[tuple[float, ...], ...], ...]:
    num_steps, begin = spec.num_steps, spec.begin
    orders = [
        min(options.order, i - begin + 1, num_steps - i if options.lower_order_final else options.order)
        for i in range(begin, num_steps)
    ]
    predictor, corrector = transition_stages(sigmas[begin:], orders, options.solver_type)
    corrects = [i > 0 and begin + i - 1 not in options.disable_corrector for i in range(len(orders))]
    stages = tuple((corrector[i - 1] if corrects[i] else (), predictor[i]) for i in range(len(orders)))
    return ((),) * begin + stages


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
    noise: Tensor | None = None,  # noqa: ARG001 - UniPC is deterministic
) -> tuple[Tensor, SamplerState]:
    """Make one step: correct the current sample, then predict the next one; see `StepFunction`."""
    past = past_outputs(schedule, state, step_index, schedule.order)
    corrector, predictor = schedule.rows[step_index]
    # A zero-dimensional tensor, not a float: with a bfloat16 velocity the two round differently.
    x0 = sample - schedule.sigmas[step_index] * velocity
    if corrector and state.last_sample is not None:
        sample = _update(corrector, state.last_sample, past, new_output=x0)
    outputs = (x0, *past)[: schedule.order]
    return _update(predictor, sample, outputs, new_output=None), SamplerState(outputs, sample)


def _update(stage: tuple[float, ...], x: Tensor, outputs: Sequence[Tensor], new_output: Tensor | None) -> Tensor:
    """Carry x over one transition: `ratio x - base m0 - scale (sum of rho_i D_i)`.

    Args:
        stage: The scalars.
        x: Sample at the start of the transition.
        outputs: Predictions of x0, the one at the start of the transition first.
        new_output: Prediction at its end, for the corrector.
    """
    ratio, base, scale, *rest = stage
    num_past = len(rest) // 2
    rs, rhos = rest[:num_past], rest[num_past:]
    m0 = outputs[0]
    moved = ratio * x - base * m0
    differences = [(m - m0) / r for m, r in zip(outputs[1:], rs, strict=False)]
    if new_output is None:
        return moved - scale * _weighted(rhos, differences) if differences else moved
    newest = rhos[-1] * (new_output - m0)
    return moved - scale * (_weighted(rhos[:-1], differences) + newest if differences else newest)


def _weighted(rhos: Sequence[float], differences: Sequence[Tensor]) -> Tensor:
    if len(differences) == 1:
        return rhos[0] * differences[0]
    # Einsum, because its rounding of a sum of products is the reference's.
    weights = torch.tensor(rhos, dtype=differences[0].dtype, device=differences[0].device)
    return torch.einsum("k,bkc...->bc...", weights, torch.stack(list(differences), dim=1))


def coefficients(schedule: Schedule, step_index: int) -> StepCoefficients:
    """Return the step as linear combinations of `BASIS`."""
    corrector, predictor = schedule.rows[step_index]
    sigma = schedule.sigma_values[step_index]
    corrected = [1.0] + [0.0] * (len(BASIS) - 1)
    if corrector:
        of_x, of_past, of_x0 = _weights(corrector, has_new_output=True)
        corrected = [of_x0, -of_x0 * sigma, 0.0, of_x, *_padded(of_past)]
    of_x, (of_x0, *of_past), _ = _weights(predictor, has_new_output=False)
    own = [of_x0, -of_x0 * sigma, 0.0, 0.0, *_padded(of_past)]
    following = tuple(of_x * a + b for a, b in zip(corrected, own, strict=True))
    x0 = (1.0, -sigma, 0.0, 0.0, 0.0, 0.0, 0.0)
    return StepCoefficients(following, x0, tuple(corrected), schedule.order)


def _weights(stage: tuple[float, ...], *, has_new_output: bool) -> tuple[float, list[float], float]:
    """Return what `_update` weighs x, the outputs m0, m1, … and the new output with."""
    ratio, base, scale, *rest = stage
    num_past = len(rest) // 2
    past = [-scale * rho / r for r, rho in zip(rest[:num_past], rest[num_past : 2 * num_past], strict=True)]
    newest = -scale * rest[-1] if has_new_output else 0.0
    return ratio, [-base - sum(past) - newest, *past], newest


def _padded(weights: list[float]) -> list[float]:
    return weights + [0.0] * (3 - len(weights))


UNIPC = Sampler(NAME, make_schedule, init_state, step, never_needs_noise, coefficients)
