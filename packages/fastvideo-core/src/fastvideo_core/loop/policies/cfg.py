"""Guidance: which branches a denoise step evaluates, and how their outputs become one.

Shape letters: B rows (one a request), R branch rows of one call; `...` stands for whatever follows the rows.

A policy names the branches and does the algebra; the step body chooses the space in which it is done (velocity for
Wan). Whether the branches run as two calls or as rows of one is `dispatch`, a detail of a policy: the combination is
the same. `outputs` maps a branch name to its output, rows first; guidance scales and step indices may differ by row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from fastvideo_core.errors import ParameterError

__all__ = [
    "COND",
    "GUIDANCE_KINDS",
    "UNCOND",
    "ActiveWhen",
    "BranchRow",
    "ClassifierFreeGuidance",
    "Dispatch",
    "EmbeddedGuidance",
    "GuidancePolicy",
    "NoGuidance",
    "RescaledGuidance",
    "ZeroStarGuidance",
    "combine_rows",
    "is_guided",
    "plan_rows",
    "resolve_guidance",
]

COND = "cond"
UNCOND = "uncond"
GUIDANCE_KINDS = ("none", "sequential", "batched", "rescale", "cfg_zero", "embedded")

Dispatch = Literal["sequential", "batched"]
ActiveWhen = Literal["above_one", "not_one"]
_ZERO_STAR_EPSILON = 1e-8


@runtime_checkable
class GuidancePolicy(Protocol):
    """What a step body asks of guidance."""

    @property
    def dispatch(self) -> Dispatch:
        """Whether the branches run one after the other or as rows of one call."""
        ...

    def branches(self, guidance_scale: float) -> tuple[str, ...]:
        """Return the branches of every step of a request, decided once by its (first) guidance scale."""
        ...

    def forward_guidance(self, guidance_scale: float) -> float | None:
        """Return what the model takes as its guidance argument; None if it takes none."""
        ...

    def combine(
        self, outputs: Mapping[str, Tensor], guidance: float | Tensor, step_index: int | Sequence[int] = 0
    ) -> Tensor:
        """Return the guided output, in the branches' shape and type."""
        ...


def is_guided(guidance_scale: float, active_when: ActiveWhen = "above_one") -> bool:
    """Tell whether a scale asks for guidance: Wan's rule is "above one", Cosmos3's "not one"."""
    return guidance_scale > 1.0 if active_when == "above_one" else guidance_scale != 1.0


def _by_row(values: float | Tensor, like: Tensor) -> float | Tensor:
    """Let one value a row, shape (B,), broadcast over the rest of `like`."""
    if not isinstance(values, Tensor) or values.ndim == 0:
        return values
    return values.to(device=like.device, dtype=torch.float32).view(-1, *(1,) * (like.ndim - 1))


def _guide(cond: Tensor, uncond: Tensor, guidance: float | Tensor) -> Tensor:
    # Scales by row are float32 and would otherwise raise the type of bfloat16 outputs.
    return (uncond + _by_row(guidance, cond) * (cond - uncond)).to(cond.dtype)


@dataclass(frozen=True, slots=True)
class NoGuidance:
    """One branch, taken as it is."""

    dispatch: Dispatch = "sequential"

    def branches(self, guidance_scale: float) -> tuple[str, ...]:
        """Return the conditional branch alone."""
        return (COND,)

    def forward_guidance(self, guidance_scale: float) -> float | None:
        """Return None: the model takes no guidance."""
        return None

    def combine(
        self,
        outputs: Mapping[str, Tensor],
        guidance: float | Tensor,
        step_index: int | Sequence[int] = 0,
    ) -> Tensor:
        """Return the conditional output."""
        return outputs[COND]


@dataclass(frozen=True, slots=True)
class EmbeddedGuidance(NoGuidance):
    """One branch; the scale goes into the model's forward, as distilled guidance does."""

    def forward_guidance(self, guidance_scale: float) -> float | None:
        """Return the scale."""
        return guidance_scale


@dataclass(frozen=True, slots=True)
class ClassifierFreeGuidance:
    """Two branches, `uncond + g (cond - uncond)`.

    Attributes:
        dispatch: "sequential" is the reference's order of calls.
        active_when: Which scales are guided at all.

    Source: Ho and Salimans 2022, arXiv:2207.12598, with the scale counted as in Saharia et al. 2022.
    """

    dispatch: Dispatch = "sequential"
    active_when: ActiveWhen = "above_one"

    def branches(self, guidance_scale: float) -> tuple[str, ...]:
        """Return both branches, or the conditional one where the scale asks for no guidance."""
        return (COND, UNCOND) if is_guided(guidance_scale, self.active_when) else (COND,)

    def forward_guidance(self, guidance_scale: float) -> float | None:
        """Return None: the model takes no guidance."""
        return None

    def combine(
        self,
        outputs: Mapping[str, Tensor],
        guidance: float | Tensor,
        step_index: int | Sequence[int] = 0,
    ) -> Tensor:
        """Return the guided output, shape (B, ...).

        Args:
            outputs: Output of each branch, shape (B, ...). Without an unconditional one, nothing is done.
            guidance: One scale, or one a row, shape (B,).
            step_index: Not used.
        """
        if UNCOND not in outputs:
            return outputs[COND]
        return _guide(outputs[COND], outputs[UNCOND], guidance)


@dataclass(frozen=True, slots=True)
class RescaledGuidance(ClassifierFreeGuidance):
    """Guidance whose result is brought back towards the conditional output's standard deviation.

    Attributes:
        rescale: How much of the rescaled result is mixed in, 0 to 1.

    Source: Lin et al. 2023, arXiv:2305.08891, section 3.4.
    """

    rescale: float = 0.0

    def combine(
        self,
        outputs: Mapping[str, Tensor],
        guidance: float | Tensor,
        step_index: int | Sequence[int] = 0,
    ) -> Tensor:
        """Return the guided and rescaled output, shape (B, ...)."""
        if UNCOND not in outputs:
            return outputs[COND]
        cond = outputs[COND]
        guided = _guide(cond, outputs[UNCOND], guidance)
        dims = tuple(range(1, cond.ndim))
        std_cond, std_guided = cond.std(dim=dims, keepdim=True), guided.std(dim=dims, keepdim=True)
        return self.rescale * (guided * (std_cond / std_guided)) + (1 - self.rescale) * guided


@dataclass(frozen=True, slots=True)
class ZeroStarGuidance(ClassifierFreeGuidance):
    """CFG-Zero*: the unconditional output is scaled to fit the conditional one; the first steps may stand still.

    Attributes:
        zero_init_steps: How many steps at the start get a velocity of zero.

    Source: Fan et al. 2025, arXiv:2503.18886, eq. 7 and section 4.2.
    """

    zero_init_steps: int = 0

    def combine(
        self,
        outputs: Mapping[str, Tensor],
        guidance: float | Tensor,
        step_index: int | Sequence[int] = 0,
    ) -> Tensor:
        """Return the guided output, shape (B, ...), zero for rows in their first `zero_init_steps` steps.

        Args:
            outputs: Output of each branch, shape (B, ...).
            guidance: One scale, or one a row, shape (B,).
            step_index: Index of the step, or one a row.
        """
        if UNCOND not in outputs:
            return outputs[COND]
        cond, uncond = outputs[COND], outputs[UNCOND]
        guided = _guide(cond, uncond * _projection(cond, uncond), guidance)
        steps = [step_index] * cond.shape[0] if isinstance(step_index, int) else list(step_index)
        is_still = [step < self.zero_init_steps for step in steps]
        if not any(is_still):
            return guided
        mask = torch.tensor(is_still, device=cond.device).view(-1, *(1,) * (cond.ndim - 1))
        return torch.where(mask, torch.zeros_like(guided), guided)


def _projection(cond: Tensor, uncond: Tensor) -> Tensor:
    """Return <cond, uncond> / ||uncond||² of each row, shape (B, 1, ...)."""
    c, u = cond.flatten(1).float(), uncond.flatten(1).float()
    scale_B1 = (c * u).sum(dim=1, keepdim=True) / ((u**2).sum(dim=1, keepdim=True) + _ZERO_STAR_EPSILON)
    return scale_B1.to(cond.dtype).view(-1, *(1,) * (cond.ndim - 1))


@dataclass(frozen=True, slots=True)
class BranchRow:
    """One row of a batched call.

    Attributes:
        request: Position of the request in the batch.
        branch: Its branch.
    """

    request: int
    branch: str


def plan_rows(branches: Sequence[Sequence[str]]) -> tuple[BranchRow, ...]:
    """Lay the branches of many requests out as rows of one call.

    Rows of one branch lie together, in the order of the requests, so that a batch of equal requests combines slices.

    Args:
        branches: Branches of each request.
    """
    names = dict.fromkeys(name for request in branches for name in request)
    return tuple(BranchRow(index, name) for name in names for index, request in enumerate(branches) if name in request)


def combine_rows(
    policies: Sequence[GuidancePolicy],
    rows: Sequence[BranchRow],
    outputs: Tensor,
    guidance: Sequence[float],
    step_index: Sequence[int],
) -> Tensor:
    """Combine the rows of one call, whatever branches each request has.

    Requests of the same policy and branches are combined together, with their own scales and step indices.

    Args:
        policies: Policy of each request.
        rows: What `plan_rows` gave.
        outputs: Output of the call, shape (R, ...).
        guidance: Scale of each request at this step.
        step_index: Step index of each request.

    Returns:
        The guided outputs in the order of the requests, shape (B, ...).
    """
    places: list[dict[str, int]] = [{} for _ in policies]
    for place, row in enumerate(rows):
        places[row.request][row.branch] = place
    groups: dict[tuple[GuidancePolicy, tuple[str, ...]], list[int]] = {}
    for request, policy in enumerate(policies):
        groups.setdefault((policy, tuple(places[request])), []).append(request)
    combined: list[Tensor] = [outputs] * len(policies)
    for (policy, branches), members in groups.items():
        branch_outputs = {name: _take(outputs, [places[m][name] for m in members]) for name in branches}
        scales_B = torch.tensor([guidance[m] for m in members], dtype=torch.float32, device=outputs.device)
        result = policy.combine(branch_outputs, scales_B, [step_index[m] for m in members])
        if len(groups) == 1:
            return result
        for member, part in zip(members, result.unbind(0), strict=True):
            combined[member] = part
    return torch.stack(combined)


def _take(outputs: Tensor, places: list[int]) -> Tensor:
    """Return some rows: a view where they lie together."""
    if places == list(range(places[0], places[0] + len(places))):
        return outputs[places[0] : places[0] + len(places)]
    return outputs[torch.tensor(places, device=outputs.device)]


def resolve_guidance(
    kind: str,
    guidance_scale: float | None,
    *,
    dispatch: Dispatch = "sequential",
    active_when: ActiveWhen = "above_one",
    rescale: float = 0.0,
    zero_init_steps: int = 0,
) -> GuidancePolicy:
    """Return the policy of one request, from what its card says and what it asks for.

    Args:
        kind: The card's kind of guidance, one of `GUIDANCE_KINDS`; "sequential" and "batched" also set `dispatch`.
        guidance_scale: The resolved scale; None where the card has no such parameter.
        dispatch: How branches run, for kinds that do not say it themselves.
        active_when: Which scales are guided; others get `NoGuidance`.
        rescale: For "rescale".
        zero_init_steps: For "cfg_zero".

    Raises:
        ParameterError: An unknown kind, a scale that is missing, not finite, or of no use to the card.
    """
    if kind not in GUIDANCE_KINDS:
        near = get_close_matches(kind, GUIDANCE_KINDS, n=1, cutoff=0.0)
        raise ParameterError(
            "not a kind of guidance", field="guidance", value=kind, allowed=", ".join(GUIDANCE_KINDS), nearest=near[0]
        )
    _check_scale(kind, guidance_scale)
    if kind == "embedded":
        return EmbeddedGuidance()
    if kind == "none" or guidance_scale is None or not is_guided(guidance_scale, active_when):
        return NoGuidance()
    policies: dict[str, ClassifierFreeGuidance] = {
        "rescale": RescaledGuidance(dispatch, active_when, _check_rescale(rescale)),
        "cfg_zero": ZeroStarGuidance(dispatch, active_when, zero_init_steps),
        "sequential": ClassifierFreeGuidance("sequential", active_when),
        "batched": ClassifierFreeGuidance("batched", active_when),
    }
    return policies[kind]


def _check_scale(kind: str, guidance_scale: float | None) -> None:
    if guidance_scale is None:
        if kind == "none":
            return
        raise ParameterError("a value is needed", field="guidance_scale", value=None, allowed="a finite number")
    if not math.isfinite(guidance_scale):
        raise ParameterError(
            "not a finite number", field="guidance_scale", value=guidance_scale, allowed="a finite number", nearest=1.0
        )
    if kind == "none" and guidance_scale != 1.0:
        raise ParameterError(
            "the model takes no guidance", field="guidance_scale", value=guidance_scale, allowed="1.0", nearest=1.0
        )


def _check_rescale(rescale: float) -> float:
    if not 0 <= rescale <= 1:
        raise ParameterError(
            "not a mixing factor",
            field="guidance_rescale",
            value=rescale,
            allowed="0 to 1",
            nearest=min(max(rescale, 0.0), 1.0) if math.isfinite(rescale) else 0.0,
        )
    return rescale
