"""Which parallel plans a card may run under. Axes are named as in device meshes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from fastvideo_core.card.base import Contract

__all__ = ["Axis", "ParallelConstraint", "ParallelPlanPattern", "ParallelismContract"]

Axis = Literal["dp", "tp", "sp", "cp", "cfgp", "pp_patch", "vae", "ep", "fsdp", "role", "replica"]


class ParallelConstraint(Contract):
    """What a component demands of the degree of an axis.

    Attributes:
        divides: For each axis, a number that its degree must divide (heads for tp and sp).
    """

    divides: dict[Axis, int] = Field(default_factory=dict)


class ParallelPlanPattern(Contract):
    """A family of parallel plans: for each axis that may exceed one, the greatest degree."""

    max_degree: dict[Axis, int] = Field(default_factory=dict)

    @field_validator("max_degree")
    @classmethod
    def _degrees_are_positive(cls, value: dict[Axis, int]) -> dict[Axis, int]:
        if bad := {axis: degree for axis, degree in value.items() if degree < 1}:
            raise ValueError(f"degrees must be at least 1, got {bad}")
        if value.get("cfgp", 1) > 2:
            raise ValueError(f"cfgp splits two branches, so its degree is at most 2, got {value['cfgp']}")
        return value


class ParallelismContract(Contract):
    """The plans that a card allows; the empty pattern is one device.

    Attributes:
        patterns: Allowed families of plans.
        causal: Whether any loop is causal, which rules displaced-patch pipelining (`pp_patch`) out.
    """

    patterns: tuple[ParallelPlanPattern, ...] = (ParallelPlanPattern(),)
    causal: bool = False

    @field_validator("patterns")
    @classmethod
    def _not_empty(cls, value: tuple[ParallelPlanPattern, ...]) -> tuple[ParallelPlanPattern, ...]:
        if not value:
            raise ValueError("a card allows at least one parallel plan: ParallelPlanPattern() is one device")
        return value
