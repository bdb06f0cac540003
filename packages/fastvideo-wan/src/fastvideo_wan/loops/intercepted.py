"""The velocities of denoise steps where interceptors are on: they may answer, or run the blocks of each branch alone.

Shape letters: R branches; C channels; T, H, W latent frames, rows, columns; G groups of tokens with one timestep; D
stream width; 6 modulation vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fastvideo_core.loop.base import StepContext
from fastvideo_core.loop.hooks import BranchesRunner, Prediction, StepHooks
from fastvideo_wan.loops.denoise import DenoisePayload
from fastvideo_wan.models.block import BlockInputs, RowExpansion
from fastvideo_wan.models.context import context_row, stack_contexts

__all__ = ["BranchModel", "intercepted_velocities", "select_rows"]


class BranchModel(Protocol):
    """How the step body calls its transformer; both return unguided velocities with a row for each branch, in order."""

    def all_branches(self, payloads: Sequence[DenoisePayload]) -> Sequence[Tensor]:
        """Return the branches of each request, (R, C, T, H, W), as without interceptors."""
        ...

    def one_branch(self, payload: DenoisePayload, branch: str, runner: Any) -> Tensor:
        """Return one branch of a request, (1, C, T, H, W), its blocks run by `runner`."""
        ...

    def rows_of_one(self, payload: DenoisePayload, runner: BranchesRunner) -> Tensor:
        """Return the branches of a request that is not exact, (R, C, T, H, W), their blocks run by `runner`."""
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
        return [_run_alone(model, payloads[index], index, hooks) for index in indices]

    predictions = hooks.predict([_wanted(payload) for payload in payloads], compute)
    for rows_RCTHW in predictions:
        ctx.tap("rows.velocity", rows_RCTHW)
    return [_guided(payload, rows_RCTHW) for payload, rows_RCTHW in zip(payloads, predictions, strict=True)]


def _wanted(payload: DenoisePayload) -> Prediction:
    schedule, step = payload.schedule, payload.sampler_step
    return Prediction(
        payload.component,
        payload.branches,
        payload.latents_1CTHW,
        schedule.sigma_values[step],
        index=step - schedule.begin,
        num_predictions=schedule.num_steps - schedule.begin,
    )


def _run_alone(model: BranchModel, payload: DenoisePayload, index: int, hooks: StepHooks) -> Tensor:
    """Return the branches of a request whose blocks an interceptor runs; exact ones stay one by one."""
    runner = None if payload.is_exact else hooks.branches_runner(index, payload.component, payload.branches)
    return _by_branch(model, payload, index, hooks) if runner is None else model.rows_of_one(payload, runner)


def _by_branch(model: BranchModel, payload: DenoisePayload, index: int, hooks: StepHooks) -> Tensor:
    runners = {branch: hooks.blocks_runner(index, payload.component, branch) for branch in payload.branches}
    return torch.cat([model.one_branch(payload, branch, runner) for branch, runner in runners.items()])


def _guided(payload: DenoisePayload, rows_RCTHW: Tensor) -> Tensor:
    outputs = dict(zip(payload.branches, rows_RCTHW.split(1), strict=True))
    return payload.policy.combine(outputs, payload.guidance_scale, payload.sampler_step)


def select_rows(inputs: BlockInputs, rows: Sequence[int]) -> BlockInputs:
    """Return what blocks after the first take for some of a request's branches.

    Args:
        inputs: What they take for all of them, of the fast form.
        rows: The branches by their places, ascending.
    """
    assert inputs.context is not None, "a whole block reads a prompt"
    num_rows = inputs.context.num_rows
    if len(rows) == num_rows:
        return inputs
    context = stack_contexts([context_row(inputs.context, row) for row in rows])
    expansion = inputs.expansion
    assert expansion is not None, "branches of a request fan out of one row of latents"
    modulation_G6D = expansion.modulation_G6D
    if modulation_G6D is not inputs.modulation_G6D:
        modulation_G6D = modulation_G6D.unflatten(0, (num_rows, -1))[list(rows)].flatten(0, 1)
    return replace(inputs, context=context, expansion=RowExpansion(expansion.row_R[list(rows)], modulation_G6D))
