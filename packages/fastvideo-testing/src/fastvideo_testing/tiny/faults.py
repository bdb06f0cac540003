"""The tiny family with denoise steps that fail or take long on demand, to test whatever runs them.

A request fails whose id begins with the name of a fault and a hyphen (`nan-1`), or every request where the card says
so. Its peers are unharmed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import torch

from fastvideo_core.card import CheckpointSource, ModelCard
from fastvideo_core.loop.base import StepContext
from fastvideo_core.loop.work import StepResult, WorkPlan
from fastvideo_testing.tiny import denoise
from fastvideo_testing.tiny.card import TINY_CARD_ID, tiny_card

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["Fault", "faulty_card", "run_step"]

Fault = Literal["nan", "error", "memory"]
"""NaN in the result; an exception in the step; no memory left for it."""


def faulty_card(
    source: CheckpointSource | Path,
    *,
    fault: Fault | None = None,
    fault_step: int = 1,
    step_s: float = 0.0,
    model_id: str = TINY_CARD_ID,
) -> ModelCard:
    """Return the tiny card with denoise steps that fail or take long.

    Args:
        source: Where the checkpoint is.
        fault: How every request fails; None fails those whose id asks for it.
        fault_step: The step that fails, from 0.
        step_s: Seconds that every denoise step takes longer.
        model_id: Name of the card.
    """
    card = tiny_card(source, model_id=model_id)
    loop = card.loops["denoise"].model_copy(
        update={
            "step": f"{__name__}:run_step",
            "options": {"fault": fault, "fault_step": fault_step, "step_s": step_s},
        }
    )
    return card.model_copy(update={"loops": {**card.loops, "denoise": loop}})


def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[denoise.DenoisePayload]], ctx: StepContext
) -> Sequence[StepResult[denoise.DenoiseValues]]:
    """Make the steps of a batch, or fail.

    Raises:
        RuntimeError: A plan's request asks for it.
        torch.OutOfMemoryError: The same.
    """
    options = instance.card.loops["denoise"].options
    time.sleep(options["step_s"])
    faults = [_fault_of(plan) or options["fault"] if _is_due(plan, options["fault_step"]) else None for plan in plans]
    if "error" in faults:
        raise RuntimeError("the step was told to fail")
    if "memory" in faults:
        raise torch.OutOfMemoryError("the step was told that there is no memory")
    results = denoise.run_step(instance, plans, ctx)
    return [_spoil(result) if fault == "nan" else result for result, fault in zip(results, faults, strict=True)]


def _is_due(plan: WorkPlan[denoise.DenoisePayload], fault_step: int) -> bool:
    return plan.step_index == fault_step


def _fault_of(plan: WorkPlan[denoise.DenoisePayload]) -> str | None:
    parent = plan.cancel_scope.parent
    name = "" if parent is None else parent.scope_id.partition("-")[0]
    return name if name in get_args(Fault) else None


def _spoil(result: StepResult[denoise.DenoiseValues]) -> StepResult[denoise.DenoiseValues]:
    latents = torch.full_like(result.values.latents_1CTHW, float("nan"))
    return replace(result, values=denoise.DenoiseValues(latents), is_finite=False)
