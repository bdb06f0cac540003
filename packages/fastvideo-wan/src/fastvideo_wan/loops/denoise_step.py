"""The step body of denoising: transformer calls, guidance and the sampler's update, for a batch of plans.

Shape letters: B rows; L text tokens; E encoder width; C channels; T, H, W latent frames, rows,
columns; S video tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from fastvideo_core.loop.base import StepContext
from fastvideo_core.loop.behavior import StepBehavior
from fastvideo_core.loop.hooks import BranchesRunner, hooks_of, supports_hooks
from fastvideo_core.loop.policies.cfg import COND, BranchRow, combine_rows
from fastvideo_core.loop.policies.conditioning import (
    blend_known_frames,
    known_frames_mask,
    pad_text,
    token_timesteps,
)
from fastvideo_core.loop.previews import preview_chunk
from fastvideo_core.loop.samplers import Sampler, get_sampler, samplers_of
from fastvideo_core.loop.work import StepResult, StreamChunk, WorkPlan
from fastvideo_core.request.media.pixels import pixels_to_frames
from fastvideo_wan.loops.denoise import (
    ContextPayload,
    ContextValues,
    DenoisePayload,
    DenoiseValues,
    RequestContext,
)
from fastvideo_wan.loops.denoise_record import record_steps
from fastvideo_wan.loops.intercepted import intercepted_velocities, select_rows
from fastvideo_wan.models.block import BlockInputs
from fastvideo_wan.models.context import TextContext, context_row, split_context, stack_contexts
from fastvideo_wan.models.transformer import BlocksRunner, WanTransformer
from fastvideo_wan.models.vae import WanVAE
from fastvideo_wan.models.vae_cache import FeatureCache

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["batched_contexts", "batched_velocity", "run_step"]


@supports_hooks("step", "block")
def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[Any]], ctx: StepContext
) -> Sequence[StepResult[ContextValues] | StepResult[DenoiseValues]]:
    """Run a batch of plans of one kind: keys and values of prompts, or one sampler step each."""
    payloads = [plan.payload for plan in plans]
    transformer: WanTransformer = instance.component(payloads[0].component)
    if not isinstance(payloads[0], ContextPayload):
        return _denoise(instance, transformer, plans, ctx)
    make = _exact_contexts if payloads[0].is_exact else batched_contexts
    return [
        StepResult(
            ContextValues(payload.component, RequestContext(prompts, transformer.rotary(payload.latents_1CTHW))),
            is_finite=_is_finite(prompts),
        )
        for payload, prompts in zip(payloads, make(transformer, payloads), strict=True)
    ]


def _is_finite(prompts: Sequence[TextContext]) -> bool:
    """Tell whether keys and values are finite; a bias is not, where a row has fewer tokens than another."""
    parts = [part for prompt in prompts for part in (prompt.keys_ZBLNK, prompt.values_ZBLNK)]
    return bool(torch.stack([torch.isfinite(part).all() for part in parts]).all())


def _exact_contexts(transformer: WanTransformer, payloads: Sequence[ContextPayload]) -> list[tuple[TextContext, ...]]:
    """Return the prompts' keys and values, each made alone, for all branches of all requests."""
    return [
        tuple(
            transformer.prepare_context(_text(transformer, payload, branch), _image(transformer, payload), exact=True)
            for branch in payload.branches
        )
        for payload in payloads
    ]


def batched_contexts(transformer: WanTransformer, payloads: Sequence[ContextPayload]) -> list[tuple[TextContext, ...]]:
    """Return the prompts' keys and values, all branches of all requests made as rows of one call."""
    rows = [(payload, branch) for payload in payloads for branch in payload.branches]
    images = [_image(transformer, payload) for payload, _ in rows]
    whole = transformer.prepare_context(
        torch.cat([_text(transformer, payload, branch) for payload, branch in rows]),
        torch.cat([image for image in images if image is not None]) if images[0] is not None else None,
        num_tokens=payloads[0].num_tokens,
    )
    return [(part,) for part in split_context(whole, [len(payload.branches) for payload in payloads])]


def _text(transformer: WanTransformer, payload: ContextPayload, branch: str) -> Tensor:
    row, weight = payload.text.rows[branch], transformer.patch_embedding.weight
    return pad_text(row.embeds_1LE, [row.embeds_1LE.shape[1]], row.length).to(weight.device, weight.dtype)


def _image(transformer: WanTransformer, payload: ContextPayload) -> Tensor | None:
    image, weight = payload.image_embeds_1ME, transformer.patch_embedding.weight
    return None if image is None else image.to(weight.device, weight.dtype)


def _denoise(
    instance: ModelInstance, transformer: WanTransformer, plans: Sequence[WorkPlan[Any]], ctx: StepContext
) -> list[StepResult[DenoiseValues]]:
    payloads: list[DenoisePayload] = [plan.payload for plan in plans]
    samplers = samplers_of(instance)
    hooks = hooks_of(ctx)
    if hooks is not None:
        velocities = intercepted_velocities(_Branches(transformer, ctx), payloads, hooks, ctx)
    elif payloads[0].is_exact:
        velocities = [_exact_velocity(transformer, payload, ctx) for payload in payloads]
    else:
        velocities = list(batched_velocity(transformer, payloads, ctx).split(1))
    values = [
        _sampler_step(get_sampler(payload.schedule.sampler, samplers), payload, velocity)
        for payload, velocity in zip(payloads, velocities, strict=True)
    ]
    finite = torch.stack([torch.isfinite(value.latents_1CTHW).all() for value in values]).tolist()
    for value in values:
        ctx.tap("latents", value.latents_1CTHW)
    behavior: Sequence[StepBehavior | None] = [None] * len(plans)
    if plans[0].profile == "rollout":
        behavior = record_steps(plans, velocities, values, samplers)
    previews = [_previews(instance, payload, velocity) for payload, velocity in zip(payloads, velocities, strict=True)]
    return [
        StepResult(value, is_finite=is_finite, behavior=record, chunks=chunks)
        for value, is_finite, record, chunks in zip(values, finite, behavior, previews, strict=True)
    ]


def _previews(instance: ModelInstance, payload: DenoisePayload, velocity_1CTHW: Tensor) -> tuple[StreamChunk, ...]:
    """Return a picture of the sample as the step sees it without noise, if one is wanted.

    It is of the first latent frame, or of the last one where the first is given; decoded alone, as an image is.
    """
    if payload.preview is None:
        return ()
    vae: WanVAE = instance.component("vae")
    weight, frame = vae.post_quant_conv.weight, -1 if payload.condition_1CTHW is not None else 0
    sigma = payload.schedule.sigma_values[payload.sampler_step]
    clean = payload.latents_1CTHW.to(velocity_1CTHW.device) - sigma * velocity_1CTHW.float()
    latents = vae.denormalize(clean[:, :, [frame]].to(weight.device, weight.dtype))
    ((pixels_1PFYX, _),) = vae.decode_many([latents], [FeatureCache()])
    return (preview_chunk(torch.from_numpy(pixels_to_frames(pixels_1PFYX[0])), payload.preview),)


def _sampler_step(sampler: Sampler, payload: DenoisePayload, velocity_1CTHW: Tensor) -> DenoiseValues:
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


class _Branches:
    """Calls the transformer for interceptors."""

    def __init__(self, transformer: WanTransformer, ctx: StepContext) -> None:
        self._transformer = transformer
        self._ctx = ctx

    def all_branches(self, payloads: Sequence[DenoisePayload]) -> Sequence[Tensor]:
        if payloads[0].is_exact:
            outputs = [_exact_outputs(self._transformer, payload, self._ctx) for payload in payloads]
            return [torch.cat(list(one.values())) for one in outputs]
        rows = _batched_outputs(self._transformer, payloads, self._ctx)
        return rows.split([len(payload.branches) for payload in payloads])

    def one_branch(self, payload: DenoisePayload, branch: str, runner: BlocksRunner) -> Tensor:
        transformer, index = self._transformer, payload.branches.index(branch)
        rotary, latents = payload.context.rotary, _model_input(self._transformer, payload)
        if payload.is_exact:
            start = transformer.start_exact(latents, _exact_timesteps(transformer, payload), rotary=rotary)
            return transformer.finish_exact(start, payload.context.prompts[index], blocks_runner=runner)
        prompt = context_row(payload.context.prompts[0], index)
        times = _fast_timesteps(transformer, [payload])
        return transformer(latents, times, prompt, rotary=rotary, blocks_runner=runner)

    def rows_of_one(self, payload: DenoisePayload, runner: BranchesRunner) -> Tensor:
        def run(blocks: Iterable[nn.Module], hidden_BSD: Tensor, inputs: BlockInputs) -> Tensor:
            return runner(blocks, hidden_BSD, lambda rows: (select_rows(inputs, rows),), inputs)

        return _rows_of(self._transformer, [payload], blocks_runner=run)


def _exact_velocity(transformer: WanTransformer, payload: DenoisePayload, ctx: StepContext) -> Tensor:
    """Return the guided velocity of one request."""
    outputs = _exact_outputs(transformer, payload, ctx)
    return payload.policy.combine(outputs, payload.guidance_scale, payload.sampler_step)


def _exact_outputs(transformer: WanTransformer, payload: DenoisePayload, ctx: StepContext) -> dict[str, Tensor]:
    """Return the velocity of each branch, one after the other; what they share is computed once."""
    start = transformer.start_exact(
        _model_input(transformer, payload), _exact_timesteps(transformer, payload), rotary=payload.context.rotary
    )
    outputs = {}
    for branch, prompt in zip(payload.branches, payload.context.prompts, strict=True):
        outputs[branch] = transformer.finish_exact(start, prompt, **_runner(ctx, branch))
        ctx.tap(f"{branch}.velocity", outputs[branch])
    return outputs


def batched_velocity(transformer: WanTransformer, payloads: Sequence[DenoisePayload], ctx: StepContext) -> Tensor:
    """Return the guided velocities of a batch, (B, C, T, H, W); all branches of all requests are rows of one call."""
    outputs = _batched_outputs(transformer, payloads, ctx)
    ctx.tap("rows.velocity", outputs)
    if all(payload.branches == (COND,) for payload in payloads):
        return outputs
    rows = [BranchRow(index, branch) for index, payload in enumerate(payloads) for branch in payload.branches]
    return combine_rows(
        [payload.policy for payload in payloads],
        rows,
        outputs,
        [payload.guidance_scale for payload in payloads],
        [payload.sampler_step for payload in payloads],
    )


def _batched_outputs(transformer: WanTransformer, payloads: Sequence[DenoisePayload], ctx: StepContext) -> Tensor:
    """Return the velocities of all branches of all requests, each a row."""
    return _rows_of(transformer, payloads, **_runner(ctx, "rows"))


def _rows_of(transformer: WanTransformer, payloads: Sequence[DenoisePayload], **runner: BlocksRunner) -> Tensor:
    return cast(
        "Tensor",
        transformer(
            torch.cat([_model_input(transformer, payload) for payload in payloads]),
            _fast_timesteps(transformer, payloads),
            stack_contexts([prompts for payload in payloads for prompts in payload.context.prompts]),
            latents_rows=[index for index, payload in enumerate(payloads) for _ in payload.branches],
            rotary=payloads[0].context.rotary,
            **runner,
        ),
    )


def _runner(ctx: StepContext, branch: str) -> dict[str, Any]:
    """Return the argument that runs the blocks: shown to the observers, if there are any, or as the runtime has it."""
    runner = _tapped_runner(ctx, branch) if ctx.is_tapped else ctx.blocks_runner
    return {} if runner is None else {"blocks_runner": runner}


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


def _exact_timesteps(transformer: WanTransformer, payload: DenoisePayload) -> Tensor:
    """Return the timesteps of one row as the reference has them: (1,), or (1, S) where every token has its own."""
    device = transformer.patch_embedding.weight.device
    timestep = payload.schedule.timesteps[payload.sampler_step].to(device)
    if not payload.expand_timesteps:
        return timestep.expand(1)
    return token_timesteps(_known_mask(payload, device), timestep, transformer.config.patch_size)


def _fast_timesteps(transformer: WanTransformer, payloads: Sequence[DenoisePayload]) -> Tensor:
    """Return the timesteps of a batch, float32: (B,), or (B, frames) where some request has known frames.

    The tokens of a frame have one timestep, so that frames say all that the reference says token by token.
    """
    device = transformer.patch_embedding.weight.device
    times = [payload.schedule.timestep_values[payload.sampler_step] for payload in payloads]
    if not any(payload.expand_timesteps and payload.num_known for payload in payloads):
        return torch.tensor(times, dtype=torch.float32, device=device)
    patch_frames = transformer.config.patch_size[0]
    by_frame = [
        [
            time if first >= payload.num_known else 0.0
            for first in range(0, payload.latents_1CTHW.shape[2], patch_frames)
        ]
        for time, payload in zip(times, payloads, strict=True)
    ]
    return torch.tensor(by_frame, dtype=torch.float32, device=device)
