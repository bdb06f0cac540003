"""Which expert of a mixture runs a denoise step, and with which guidance scale.

Wan 2.2 splits denoising between a high-noise and a low-noise transformer at a timestep; ComfyUI workflows split the
same model at a step index; most models have one expert, which is the trivial case. A route is decided from host
scalars alone, so the control plane can plan a step without touching a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastvideo_core.errors import ParameterError

__all__ = ["Expert", "ExpertPolicy", "SingleExpert", "StepIndexExperts", "TimestepExperts", "resolve_experts"]

TRANSFORMER = "transformer"
TRANSFORMER_2 = "transformer_2"


@dataclass(frozen=True, slots=True)
class Expert:
    """The component that runs a step.

    Attributes:
        component: Its id in the card.
        guidance_scale: The guidance scale of its steps.
    """

    component: str
    guidance_scale: float


@dataclass(frozen=True, slots=True)
class SingleExpert:
    """One component runs all steps."""

    expert: Expert

    @property
    def experts(self) -> tuple[Expert, ...]:
        """All experts, in the order of their steps."""
        return (self.expert,)

    def route(self, timestep: float, step_index: int) -> Expert:
        """Return the expert, whatever the step."""
        return self.expert


@dataclass(frozen=True, slots=True)
class TimestepExperts:
    """Steps at or above a timestep go to the first expert, all others to the second.

    Attributes:
        boundary_timestep: The lowest timestep of the first expert, on the model's scale.
        high_noise: Expert of the first steps.
        low_noise: Expert of the last steps.
    """

    boundary_timestep: float
    high_noise: Expert
    low_noise: Expert

    @property
    def experts(self) -> tuple[Expert, ...]:
        """All experts, in the order of their steps."""
        return (self.high_noise, self.low_noise)

    def route(self, timestep: float, step_index: int) -> Expert:
        """Return the expert of a step.

        The two numbers are compared as float32, as the reference compares its tensors: a boundary that arithmetic left
        a hair above a whole timestep still includes it.

        Args:
            timestep: The step's timestep, as the schedule has it.
            step_index: Not used.
        """
        is_high = np.float32(timestep) >= np.float32(self.boundary_timestep)
        return self.high_noise if is_high else self.low_noise


@dataclass(frozen=True, slots=True)
class StepIndexExperts:
    """Steps go to the experts in turn, by step index.

    Attributes:
        starts: The first step of each expert after the first one, ascending.
        experts: One more than `starts`.
    """

    starts: tuple[int, ...]
    experts: tuple[Expert, ...]

    def __post_init__(self) -> None:
        if len(self.experts) != len(self.starts) + 1:
            raise ParameterError(
                "experts and their first steps do not match",
                field="experts",
                value=len(self.experts),
                allowed=f"{len(self.starts) + 1}, one more than `starts`",
            )
        if list(self.starts) != sorted(set(self.starts)) or any(start < 0 for start in self.starts):
            raise ParameterError(
                "first steps must ascend", field="starts", value=self.starts, allowed="each at least 0, above the last"
            )

    def route(self, timestep: float, step_index: int) -> Expert:
        """Return the expert of a step.

        Args:
            timestep: Not used.
            step_index: Index of the step in its schedule.
        """
        return self.experts[sum(step_index >= start for start in self.starts)]


ExpertPolicy = SingleExpert | TimestepExperts | StepIndexExperts


def resolve_experts(
    guidance_scale: float,
    *,
    guidance_scale_2: float | None = None,
    boundary_ratio: float | None = None,
    num_train_timesteps: int = 1000,
    components: Sequence[str] = (TRANSFORMER, TRANSFORMER_2),
) -> ExpertPolicy:
    """Return the policy of one request.

    Args:
        guidance_scale: Scale of the first, or only, expert.
        guidance_scale_2: Scale of the second expert; None repeats the first one's.
        boundary_ratio: Where the second expert takes over, as a part of the timestep scale; None for one expert.
        num_train_timesteps: Length of the timestep scale.
        components: Component ids, the high-noise one first.

    Raises:
        ParameterError: A second scale without a second expert, or a boundary outside [0, 1].
    """
    if boundary_ratio is None:
        if guidance_scale_2 is not None:
            raise ParameterError(
                "the model has one expert",
                field="guidance_scale_2",
                value=guidance_scale_2,
                allowed="nothing; set guidance_scale",
            )
        return SingleExpert(Expert(components[0], guidance_scale))
    if not 0 <= boundary_ratio <= 1:
        raise ParameterError(
            "not a part of the timestep scale",
            field="boundary_ratio",
            value=boundary_ratio,
            allowed="0 to 1",
            nearest=min(max(boundary_ratio, 0.0), 1.0),
        )
    return TimestepExperts(
        boundary_ratio * num_train_timesteps,
        Expert(components[0], guidance_scale),
        Expert(components[1], guidance_scale if guidance_scale_2 is None else guidance_scale_2),
    )
