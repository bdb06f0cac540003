"""The velocities of denoise steps where interceptors are on: they may answer, or run the blocks of each branch alone.

Shape letters: R branches; C channels; T, H, W latent frames, rows, columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fastvideo_core.loop.base import StepContext
from fastvideo_core.loop.hooks import Prediction, StepHooks
from fastvideo_wan.loops.denoise import DenoisePayload

__all__ = ["BranchModel", "intercepted_velocities"]


class BranchModel(Protocol):
    """How the step body calls its transformer; both return unguided velocities with a row for each branch, in order."""

    def all_branches(self, payloads: Sequence[DenoisePayload]) -> Sequence[Tensor]:
        """Return the branches of each request, (R, C, T, H, W), as without interceptors."""
        ...

    def one_branch(self, payload: DenoisePayload, branch: str, runner: Any) -> Tensor:
        """Return one branch of a request, (1, C, T, H, W), its blocks run by `runner`."""
        ...


def intercepted_velocities(
    model: BranchModel, payloads: Sequence[DenoisePayload], hooks: StepHooks, ctx: StepContext
) -> list[Tensor]:
    """Return the guided velocity of each request, (1, C, T, H, W).

    Args:
        model: Calls the transformer.
        payloads: One step each.
        hooks: What the interceptors ask.
        ctx: Shown the unguided velocities.
    """

    def compute(indices: Sequence[int]) -> list[Tensor]:
        if not hooks.has_block_interceptors:
            return list(model.all_branches([payloads[index] for index in indices]))
        return [_by_branch(model, payloads[index], index, hooks) for index in indices]

    predictions = hooks.predict([_wanted(payload) for payload in payloads], compute)
    for rows_RCTHW in predictions:
        ctx.tap("rows.velocity", rows_RCTHW)
    return [_guided(payload, rows_RCTHW) for payload, rows_RCTHW in zip(payloads, predictions, strict=True)]


def _wanted(payload: DenoisePayload) -> Prediction:
    sigma = payload.schedule.sigma_values[payload.sampler_step]
    return Prediction(payload.component, payload.branches, payload.latents_1CTHW, sigma)


def _by_branch(model: BranchModel, payload: DenoisePayload, index: int, hooks: StepHooks) -> Tensor:
    runners = {branch: hooks.blocks_runner(index, payload.component, branch) for branch in payload.branches}
    return torch.cat([model.one_branch(payload, branch, runner) for branch, runner in runners.items()])


def _guided(payload: DenoisePayload, rows_RCTHW: Tensor) -> Tensor:
    outputs = dict(zip(payload.branches, rows_RCTHW.split(1), strict=True))
    return payload.policy.combine(outputs, payload.guidance_scale, payload.sampler_step)
