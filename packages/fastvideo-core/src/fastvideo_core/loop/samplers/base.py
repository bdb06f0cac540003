"""What a sampler is: its schedule, its state, its step.

Symbols, for flow matching: x_sigma = (1 - sigma) x0 + sigma eps, velocity v = eps - x0, x0 = x - sigma v,
alpha = 1 - sigma, lambda = log(alpha / sigma).

Samples may have any shape; rows of a batch come first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from fastvideo_core.errors import ParameterError, StateError
from fastvideo_core.loop.policies.flow_shift import FlowSigmas, ShiftedSigmas

__all__ = [
    "BASIS",
    "LogProb",
    "Sampler",
    "SamplerState",
    "Schedule",
    "ScheduleSpec",
    "StepCoefficients",
    "StepFunction",
    "never_needs_noise",
    "parse_options",
    "past_outputs",
]

_OptionsT = TypeVar("_OptionsT")


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """What a request says about its schedule.

    Attributes:
        num_steps: Denoising steps, at least 1.
        shift: Flow shift. Not applied to `sigmas` of type `ShiftedSigmas`.
        num_train_timesteps: Length of the model's timestep scale.
        begin: The first step that is made; steps before it are left out (video to video).
        sigmas: Noise levels to use in place of the sampler's own grid, one a step.
        options: The sampler's own settings; its module lists them.
    """

    num_steps: int
    shift: float = 1.0
    num_train_timesteps: int = 1000
    begin: int = 0
    sigmas: FlowSigmas | ShiftedSigmas | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ParameterError(
                "too few steps",
                field="num_inference_steps",
                value=self.num_steps,
                allowed="an integer of at least 1",
                nearest=1,
            )
        if not 0 <= self.begin < self.num_steps:
            raise ParameterError(
                "no such step",
                field="begin",
                value=self.begin,
                allowed=f"0 to {self.num_steps - 1}",
                nearest=min(max(self.begin, 0), self.num_steps - 1),
            )


@dataclass(frozen=True, slots=True)
class Schedule:
    """Noise levels, timesteps and all scalars of the steps, computed once a request.

    Steps are numbered from `begin` to `num_steps - 1`; step i goes from `sigmas[i]` to `sigmas[i + 1]`. Tensors stay
    on the CPU: a step reads host numbers, or zero-dimensional CPU tensors, and so never waits for a device.

    Attributes:
        sampler: Name of the sampler that made it.
        sigmas: Float32, shape (num_steps + 1,), strictly falling.
        timesteps: What the model is given, shape (num_steps,); int64 or float32, as the reference has it.
        sigma_values: `sigmas` as host numbers.
        timestep_values: `timesteps` as host numbers.
        num_train_timesteps: Length of the model's timestep scale.
        shift: The flow shift that was applied.
        order: The sampler's order.
        begin: The first step that is made.
        rows: Scalars of each step, in stages; their meaning is the sampler's own.
    """

    sampler: str
    sigmas: torch.Tensor
    timesteps: torch.Tensor
    sigma_values: tuple[float, ...]
    timestep_values: tuple[float, ...]
    num_train_timesteps: int
    shift: float
    order: int
    begin: int
    rows: tuple[tuple[tuple[float, ...], ...], ...]

    @property
    def num_steps(self) -> int:
        """Number of steps from the first noise level, left-out ones included."""
        return len(self.timestep_values)


@dataclass(frozen=True, slots=True)
class SamplerState:
    """What a sampler remembers between two steps; a step returns a new one.

    Attributes:
        outputs: Predictions of x0 at earlier steps, newest first.
        last_sample: The sample from which the previous step was predicted.
    """

    outputs: tuple[torch.Tensor, ...] = ()
    last_sample: torch.Tensor | None = None


BASIS = ("sample", "velocity", "noise", "last_sample", "output_0", "output_1", "output_2")
"""What a linear step combines: its arguments, and what the state holds before it."""


@dataclass(frozen=True, slots=True)
class StepCoefficients:
    """A step as linear combinations of `BASIS`: see `linear_step`.

    Attributes:
        sample: Weights of the next sample.
        output: Weights of the new entry of `SamplerState.outputs`; None if none is kept.
        last_sample: Weights of the new `SamplerState.last_sample`; None if none is kept.
        num_outputs: How many outputs the state keeps.
    """

    sample: tuple[float, ...]
    output: tuple[float, ...] | None = None
    last_sample: tuple[float, ...] | None = None
    num_outputs: int = 0


class StepFunction(Protocol):
    """One step. Differentiable; changes none of its arguments."""

    def __call__(
        self,
        schedule: Schedule,
        state: SamplerState,
        velocity: Tensor,
        sample: Tensor,
        step_index: int,
        *,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, SamplerState]:
        """Return the sample at the next noise level, and the state after the step.

        Args:
            schedule: What `make_schedule` gave.
            state: State before the step.
            velocity: The model's (guided) output at `sample`.
            sample: Sample at noise level `sigmas[step_index]`, float32.
            step_index: Which step.
            noise: Standard normal, in the sample's shape, drawn from the request's own generator; for steps that
                `needs_noise` names.
        """
        ...


class LogProb(Protocol):
    """The density of a step that draws noise. Differentiable; changes none of its arguments."""

    def __call__(
        self, schedule: Schedule, velocity: Tensor, sample: Tensor, next_sample: Tensor, step_index: int
    ) -> Tensor | None:
        """Return the logarithm of the density of a transition, one number a row; None for a step that draws nothing.

        Args:
            schedule: What `make_schedule` gave.
            velocity: The model's (guided) output at `sample`, rows first.
            sample: Sample before the step.
            next_sample: Sample after it.
            step_index: Which step.
        """
        ...


@dataclass(frozen=True, slots=True)
class Sampler:
    """A sampler: a record of pure functions.

    Attributes:
        name: Key in the registry.
        make_schedule: From settings to a schedule.
        init_state: State before the first step.
        step: One step, in the reference's order of operations.
        needs_noise: Whether a step takes fresh noise, so that it is drawn in the request's state beforehand.
        coefficients: A step as linear combinations; None for samplers whose step is not linear.
        log_prob: The density of a step; None for samplers that training does not look into.
        parameters: Options that requests set, each with the name of the request's parameter.
    """

    name: str
    make_schedule: Callable[[ScheduleSpec], Schedule]
    init_state: Callable[[Schedule], SamplerState]
    step: StepFunction
    needs_noise: Callable[[Schedule, int], bool]
    coefficients: Callable[[Schedule, int], StepCoefficients] | None = None
    log_prob: LogProb | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)

    def options_of(self, given: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sampler's options: the card's, and those that a request's parameters set.

        Args:
            given: What the card says.
            parameters: The request's resolved parameters; those that it does not have are left out.
        """
        own = {option: parameters[name] for option, name in self.parameters.items() if name in parameters}
        return {**given, **own}


def never_needs_noise(schedule: Schedule, step_index: int) -> bool:  # noqa: ARG001 - the protocol's arguments
    """Return False: `Sampler.needs_noise` of deterministic samplers."""
    return False


def past_outputs(schedule: Schedule, state: SamplerState, step_index: int, max_outputs: int) -> tuple[Tensor, ...]:
    """Return the state's outputs, after a check that they are those of the steps before `step_index`.

    Raises:
        StateError: The step does not follow the steps that the state has seen, or is not in the schedule.
    """
    if not schedule.begin <= step_index < schedule.num_steps:
        raise StateError(
            f"step {step_index} is not in the {schedule.sampler} schedule: {schedule.begin} to {schedule.num_steps - 1}"
        )
    expected = min(step_index - schedule.begin, max_outputs)
    if len(state.outputs) != expected:
        raise StateError(
            f"the {schedule.sampler} state holds {len(state.outputs)} earlier outputs, "
            f"step {step_index} needs {expected}"
        )
    return state.outputs


def parse_options(options_class: type[_OptionsT], options: Mapping[str, Any], sampler: str) -> _OptionsT:
    """Return a sampler's options from a mapping.

    Args:
        options_class: A dataclass, which checks its values itself.
        options: Values by field name.
        sampler: Name of the sampler, for the error.

    Raises:
        ParameterError: There is no such option; names the nearest one.
    """
    known = [f.name for f in dataclasses.fields(options_class)]  # type: ignore[arg-type]
    for name, value in options.items():
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.0)
            raise ParameterError(
                f"the sampler {sampler} has no such option",
                field=name,
                value=value,
                allowed=", ".join(known) or "none",
                nearest=near[0] if near else None,
            )
    return options_class(**options)
