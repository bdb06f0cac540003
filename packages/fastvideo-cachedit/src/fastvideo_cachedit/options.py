"""Options of both interceptors, as the deploy config and requests give them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fastvideo_core.errors import ParameterError

__all__ = [
    "PRESETS",
    "BlockOptions",
    "Forecast",
    "Mask",
    "StepOptions",
    "kept_by_blocks",
    "kept_by_steps",
]

Forecast = Literal["none", "taylor", "foca"]
"""How what is used again is carried on to the step where it is used: not at all, by TaylorSeer, or by FoCa."""

PRESETS = ("slow", "medium", "fast", "ultra")
"""The library's masks, those that compute most first."""

Mask = str | tuple[int, ...] | None
"""A preset's name, or a number for each step: 1 computes it, 0 uses again."""

Count = Annotated[int, Field(ge=1)]


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    forecast: Forecast = Field(default="taylor", description="how what is used again is carried on to the step")
    taylor_order: int = Field(default=1, ge=1, le=3, description="derivatives that `taylor` keeps")
    warmup_steps: Count = Field(default=4, description="steps at the start that are computed")
    mask: Mask = Field(default=None, description="which steps are computed: a preset, or 1 and 0 for each step")

    @field_validator("mask", mode="before")
    @classmethod
    def _is_a_mask(cls, value: Any) -> Any:
        if value is None or (isinstance(value, str) and value in PRESETS):
            return value
        if isinstance(value, str):
            near = get_close_matches(value, PRESETS, n=1, cutoff=0.3)
            hint = f"; nearest: {near[0]}" if near else ""
            raise ValueError(f"no such mask; allowed: {', '.join(PRESETS)}, or a list of 1 and 0 for each step{hint}")
        if not isinstance(value, (list, tuple)) or not value or any(type(one) is not int for one in value):
            raise ValueError(f"not a mask; allowed: {', '.join(PRESETS)}, or a list of 1 and 0 for each step")
        if set(value) - {0, 1}:
            raise ValueError("a mask's numbers are 1, which computes a step, and 0, which uses again")
        if value[0] != 1:
            raise ValueError("the first step must be computed: a mask begins with 1")
        return tuple(value)

    def check_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Refuse a list of another length than the request's steps.

        Raises:
            ParameterError: With both numbers.
        """
        num_steps = parameters.get("num_inference_steps")
        if isinstance(self.mask, tuple) and isinstance(num_steps, int) and len(self.mask) != num_steps:
            raise ParameterError(
                f"{len(self.mask)} numbers for {num_steps} steps",
                field="mask",
                value=list(self.mask),
                allowed=f"{num_steps} numbers, or one of {', '.join(PRESETS)}",
            )


class BlockOptions(_Options):
    """Options of the block cache.

    Attributes:
        first_blocks: Blocks at the start that always run; what they add decides whether the others have to.
        last_blocks: Blocks at the end that always run.
        threshold: How much what the first blocks add may have changed since the last computed step, relative; 1 and
            more lets everything pass.
        warmup_steps: Steps at the start of a request, and of each of its experts, that are computed.
        max_cached_steps: Most steps that are not computed; None sets no limit.
        max_continuous_cached_steps: Most of them in a row; None sets no limit.
        mask_policy: Whether steps that a mask does not compute use again in any case, or only below the threshold.
    """

    first_blocks: Count = Field(default=1, description="blocks at the start that always run")
    last_blocks: int = Field(default=0, ge=0, description="blocks at the end that always run")
    threshold: float = Field(default=0.2, gt=0, le=1, description="relative change below which a step is not computed")
    max_cached_steps: Count | None = Field(default=None, description="most steps that are not computed")
    max_continuous_cached_steps: Count | None = Field(default=3, description="most such steps in a row")
    mask_policy: Literal["static", "dynamic"] = Field(
        default="static", description="whether a mask alone decides, or the threshold as well"
    )


class StepOptions(_Options):
    """Options of the step cache, which goes by its mask alone."""

    mask: Mask = Field(default="medium", description="which steps are computed: a preset, or 1 and 0 for each step")

    @field_validator("mask")
    @classmethod
    def _is_there(cls, value: Mask) -> Mask:
        if value is None:
            raise ValueError(f"a step cache needs a mask; allowed: {', '.join(PRESETS)}, or a list of 1 and 0")
        return value


def kept_by_steps(options: _Options) -> int:
    """Return how many tensors the step cache keeps of a branch: predictions, or what a forecast remembers of them."""
    return {"none": 1, "taylor": options.taylor_order + 1, "foca": 4}[options.forecast]


def kept_by_blocks(options: _Options) -> int:
    """Return how many tensors the block cache keeps of a branch: those of its blocks, and what the first ones add."""
    return 1 + kept_by_steps(options)
