"""What a card's options and a request's parameters make of guidance: one place for all loops that need to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastvideo_core.errors import CardError
from fastvideo_core.loop.policies.cfg import COND, GuidancePolicy, resolve_guidance
from fastvideo_core.loop.policies.experts import ExpertPolicy, StepIndexExperts, resolve_experts

__all__ = ["Guidance", "guidance_of"]

_KINDS = "none, sequential, batched, rescale, cfg_zero"


@dataclass(frozen=True, slots=True)
class Guidance:
    """Guidance of one request.

    Attributes:
        policy: Branches and their combination.
        experts: Which component runs a step, and with which scale.
        branches: Branches of every step.
    """

    policy: GuidancePolicy
    experts: ExpertPolicy
    branches: tuple[str, ...]

    @property
    def is_guided(self) -> bool:
        """Whether there is more than the conditional branch."""
        return self.branches != (COND,)


def guidance_of(options: Mapping[str, Any], parameters: Mapping[str, Any], *, is_exact: bool = False) -> Guidance:
    """Resolve the guidance of a request.

    Args:
        options: Of the card's loop: `guidance` (kind), `guidance_rescale`, `boundary_ratio`, `num_train_timesteps`.
        parameters: Of the request: `guidance_scale`, `guidance_scale_2`, `expert_switch_step`.
        is_exact: Whether branches run one after the other, as the reference runs them.

    Raises:
        CardError: The card asks for embedded guidance, for which Wan's transformers have no input.
        ParameterError: A scale that the card cannot use.
    """
    kind = str(options.get("guidance", "batched"))
    if kind == "embedded":
        raise CardError("Wan's transformers take no guidance", field="guidance", value=kind, allowed=_KINDS)
    scale = parameters.get("guidance_scale")
    policy = resolve_guidance(
        "sequential" if is_exact and kind == "batched" else kind,
        scale,
        dispatch="sequential" if is_exact else "batched",
        rescale=float(options.get("guidance_rescale", 0.0)),
        zero_init_steps=int(options.get("zero_init_steps", 0)),
    )
    experts = resolve_experts(
        1.0 if scale is None else scale,
        guidance_scale_2=parameters.get("guidance_scale_2"),
        boundary_ratio=options.get("boundary_ratio"),
        num_train_timesteps=int(options.get("num_train_timesteps", 1000)),
    )
    switch_step = parameters.get("expert_switch_step")
    if switch_step is not None:
        experts = StepIndexExperts((int(switch_step),), experts.experts)
    return Guidance(policy, experts, policy.branches(1.0 if scale is None else scale))
