"""The step body of denoising: transformer calls, guidance and the sampler's update, for a batch of plans.

Shape letters: B rows; R branch rows of a call; L text tokens; E encoder width; C channels; T, H, W latent frames, rows,
columns; S video tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from fastvideo_core.loop.base import StepContext
from fastvideo_core.loop.policies.cfg import COND, combine_rows, plan_rows
from fastvideo_core.loop.policies.conditioning import (
    blend_known_frames,
    known_frames_mask,
    pad_text,
    token_timesteps,
)
from fastvideo_core.loop.samplers import get_sampler
from fastvideo_core.loop.work import StepResult, WorkPlan
from fastvideo_wan.loops.denoise import ContextPayload, ContextValues, DenoisePayload, DenoiseValues
from fastvideo_wan.models.block import BlockInputs
from fastvideo_wan.models.context import TextContext, stack_contexts
from fastvideo_wan.models.transformer import BlocksRunner, WanTransformer

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["run_step"]


def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[Any]], ctx: StepContext
) -> Sequence[StepResult[ContextValues] | StepResult[DenoiseValues]]:
    """Run a batch of plans of one kind: keys and values of prompts, or one sampler step each."""
    payloads = [plan.payload for plan in plans]
    transformer: WanTransformer = instance.component(payloads[0].component)
    if isinstance(payloads[0], ContextPayload):
        return [StepResult(_contexts(transformer, payload)) for payload in payloads]
    return _denoise(transformer, payloads, ctx)


def _contexts(transformer: WanTransformer, payload: ContextPayload) -> ContextValues:
    weight = transformer.patch_embedding.weight
    contexts: dict[str, TextContext] = {}
    image = payload.image_embeds_1ME
    for branch, row in payload.text.rows.items():
        num_tokens = row.embeds_1LE.shape[1]
        text_BLE = pad_text(row.embeds_1LE, [num_tokens], row.length).to(weight.device, weight.dtype)
        contexts[branch] = transformer.prepare_context(
            text_BLE,
            None if image is None else image.to(weight.device, weight.dtype),
            exact=payload.is_exact,
        )
    return ContextValues(payload.component, contexts)


def _denoise(
    transformer: WanTransformer, payloads: Sequence[DenoisePayload], ctx: StepContext
) -> list[StepResult[DenoiseValues]]:
    if payloads[0].is_exact:
        velocities = [_exact_velocity(transformer, payload, ctx) for payload in payloads]
    else:
        velocities = list(_batched_velocity(transformer, payloads, ctx).split(1))
    values = [_sampler_step(payload, velocity) for payload, velocity in zip(payloads, velocities, strict=True)]
    finite = torch.stack([torch.isfinite(value.latents_1CTHW).all() for value in values]).tolist()
    for value in values:
        ctx.tap("latents", value.latents_1CTHW)
    return [StepResult(value, is_finite=is_finite) for value, is_finite in zip(values, finite, strict=True)]


def _sampler_step(payload: DenoisePayload, velocity_1CTHW: Tensor) -> DenoiseValues:
    sampler = get_sampler(payload.schedule.sampler)
    latents, state = sampler.step(
        payload.schedule,
        payload.sampler,
        velocity_1CTHW,
        payload.latents_1CTHW.to(velocity_1CTHW.device),
        payload.sampler_step,
        noise=None if payload.noise_1CTHW is None else payload.noise_1CTHW.to(velocity_1CTHW.device),
    )
    if payload.is_last and payload.num_known:
        device = latents.device
        latents = blend_known_frames(_known_mask(payload, device), _condition(payload, device), latents)
    return DenoiseValues(latents, state)


def _exact_velocity(transformer: WanTransformer, payload: DenoisePayload, ctx: StepContext) -> Tensor:
    """Return the guided velocity of one request, branch after branch."""
    model_input = _model_input(transformer, payload)
    timesteps = _timesteps(transformer, payload, is_exact=True)
    outputs = {
        branch: _call(transformer, model_input, timesteps, payload.contexts[branch], ctx, branch, is_exact=True)
        for branch in payload.branches
    }
    return payload.policy.combine(outputs, payload.guidance_scale, payload.sampler_step)


def _batched_velocity(transformer: WanTransformer, payloads: Sequence[DenoisePayload], ctx: StepContext) -> Tensor:
    """Return the guided velocities of a batch, (B, C, T, H, W); all branches of all requests are rows of one call."""
    rows = plan_rows([payload.branches for payload in payloads])
    inputs = [_model_input(transformer, payload) for payload in payloads]
    input_RCTHW = torch.cat([inputs[row.request] for row in rows])
    times = [_timesteps(transformer, payload, is_exact=False) for payload in payloads]
    timesteps = torch.cat([times[row.request] for row in rows])
    context = stack_contexts([payloads[row.request].contexts[row.branch] for row in rows])
    outputs = _call(transformer, input_RCTHW, timesteps, context, ctx, "rows", is_exact=False)
    if all(payload.branches == (COND,) for payload in payloads):
        return outputs
    return combine_rows(
        [payload.policy for payload in payloads],
        rows,
        outputs,
        [payload.guidance_scale for payload in payloads],
        [payload.sampler_step for payload in payloads],
    )


def _call(
    transformer: WanTransformer,
    input_RCTHW: Tensor,
    timesteps: Tensor,
    context: TextContext,
    ctx: StepContext,
    branch: str,
    *,
    is_exact: bool,
) -> Tensor:
    extra: dict[str, Any] = {}
    if ctx.is_tapped:
        extra["blocks_runner"] = _tapped_runner(ctx, branch)
    velocity = transformer(input_RCTHW, timesteps, context, exact=is_exact, **extra)
    ctx.tap(f"{branch}.velocity", velocity)
    return cast("Tensor", velocity)


def _tapped_runner(ctx: StepContext, branch: str) -> BlocksRunner:
    """Return a runner that shows the stream after every block."""

    def run(blocks: Iterable[nn.Module], hidden_BSD: Tensor, inputs: BlockInputs) -> Tensor:
        for index, block in enumerate(blocks):
            hidden_BSD = block(hidden_BSD, inputs)
            ctx.tap(f"{branch}.blocks.{index}", hidden_BSD)
        return hidden_BSD

    return run


def _model_input(transformer: WanTransformer, payload: DenoisePayload) -> Tensor:
    """Return the transformer's input: latents stay float32 and are cast here only."""
    weight = transformer.patch_embedding.weight
    latents = payload.latents_1CTHW.to(weight.device)
    if payload.num_known:
        mask, condition = _known_mask(payload, weight.device), _condition(payload, weight.device)
        return blend_known_frames(mask, condition, latents).to(weight.dtype)
    if payload.condition_1CTHW is not None:
        return torch.cat([latents, _condition(payload, weight.device)], dim=1).to(weight.dtype)
    return latents.to(weight.dtype)


def _condition(payload: DenoisePayload, device: torch.device) -> Tensor:
    assert payload.condition_1CTHW is not None, "known frames come with their latents"
    return payload.condition_1CTHW.to(device)


def _known_mask(payload: DenoisePayload, device: torch.device) -> Tensor:
    _, _, frames, rows, columns = payload.latents_1CTHW.shape
    return known_frames_mask(frames, height=rows, width=columns, num_known=payload.num_known, device=device)


def _timesteps(transformer: WanTransformer, payload: DenoisePayload, *, is_exact: bool) -> Tensor:
    """Return the timesteps of one row: (1,), or (1, S) where every token has its own.

    Int64 as the reference's schedule has them in the exact mode; the fast mode mixes rows, so it is float32 there.
    """
    device = transformer.patch_embedding.weight.device
    timestep = payload.schedule.timesteps[payload.sampler_step]
    timestep = timestep.to(device) if is_exact else timestep.to(device, torch.float32)
    if not payload.expand_timesteps:
        return timestep.expand(1)
    return token_timesteps(_known_mask(payload, device), timestep, transformer.config.patch_size)
