"""Denoising as a loop: noise in, latents out, one Euler step a step.

Shape letters: B rows; R branch rows of a call; C latent channels; T, H, W latent frames, rows, columns; E text width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, StepContext
from fastvideo_core.loop.hooks import BlocksRunner, Prediction, StepHooks, hooks_of, supports_hooks
from fastvideo_core.loop.previews import PREVIEW, preview_chunk, preview_steps
from fastvideo_core.loop.state import LoopState, PluginState
from fastvideo_core.loop.work import Done, Profile, ShapeSignature, StepResult, StreamChunk, WorkKind, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.media.pixels import pixels_to_frames
from fastvideo_testing.tiny.plans import make_plan

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = [
    "DenoiseLoop",
    "DenoiseOutputs",
    "DenoisePayload",
    "DenoiseState",
    "DenoiseValues",
    "run_step",
    "shifted_sigmas",
]


@dataclass(slots=True)
class DenoiseState(LoopState):
    """State of denoising: all that a step needs, so that it can go on anywhere from here.

    Attributes:
        latents_1CTHW: The sample, float32.
        embeds_1E: The encoded prompt, and with guidance the encoded negative prompt.
        sigmas: Noise levels, from one to zero.
        guidance_scale: Weight of the prompt against the negative prompt.
        scope: What cancels it.
        is_exact: Whether requests are computed one by one.
        profile: Serve, rollout or train.
        condition_1CHW: The first latent frame, if it is given.
        step_index: The next step.
        plugin_state: States of interceptors, by interceptor, then by component and branch.
        preview_steps: Steps after which there is a picture.
    """

    latents_1CTHW: torch.Tensor
    embeds_1E: tuple[torch.Tensor, ...]
    sigmas: tuple[float, ...]
    guidance_scale: float
    scope: CancelScope
    is_exact: bool
    profile: Profile
    condition_1CHW: torch.Tensor | None
    step_index: int = 0
    plugin_state: dict[str, dict[str, PluginState]] = field(default_factory=dict)
    preview_steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DenoisePayload:
    """One step.

    Attributes:
        latents_1CTHW: The sample; a step makes a new one and leaves this as it is.
        embeds_1E: Encoded prompts of the branches.
        sigma: Noise level of the sample.
        next_sigma: Noise level after the step.
        guidance_scale: Weight of the first branch against the second.
        condition_1CHW: The first latent frame, put in place by the last step.
        is_exact: Whether requests are computed one by one.
        preview: Number of the picture that comes with it; None without one.
    """

    latents_1CTHW: torch.Tensor
    embeds_1E: tuple[torch.Tensor, ...]
    sigma: float
    next_sigma: float
    guidance_scale: float
    condition_1CHW: torch.Tensor | None
    is_exact: bool
    preview: int | None = None


@dataclass(frozen=True, slots=True)
class DenoiseValues:
    """The sample after a step."""

    latents_1CTHW: torch.Tensor


@dataclass(frozen=True, slots=True)
class DenoiseOutputs:
    """What the loop hands on: the last sample."""

    latents: torch.Tensor


class DenoiseLoop:
    """Denoises the latents of a request."""

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> DenoiseState:
        """Draw the noise from the request's own generator and fix the noise levels."""
        parameters, vae = request.parameters, self._model.config("vae")
        shape = (
            1,
            vae.latent_channels,
            (parameters["num_frames"] - 1) // vae.temporal_factor + 1,
            parameters["height"] // vae.spatial_factor,
            parameters["width"] // vae.spatial_factor,
        )
        num_steps = parameters["num_inference_steps"]
        return DenoiseState(
            latents_1CTHW=torch.randn(shape, generator=ctx.make_generator(parameters["seed"])),
            embeds_1E=request.inputs["embeds"],
            sigmas=shifted_sigmas(num_steps, parameters["flow_shift"]),
            guidance_scale=float(parameters["guidance_scale"]),
            scope=request.cancel_scope,
            is_exact=request.is_exact,
            profile=request.profile,
            condition_1CHW=request.inputs.get("condition"),
            preview_steps=preview_steps(0, num_steps) if request.has_previews else (),
        )

    def next(self, state: DenoiseState) -> WorkPlan[DenoisePayload] | Done:
        """Make the next step."""
        index, num_steps = state.step_index, len(state.sigmas) - 1
        if index == num_steps:
            return Done()
        payload = DenoisePayload(
            latents_1CTHW=state.latents_1CTHW,
            embeds_1E=state.embeds_1E,
            sigma=state.sigmas[index],
            next_sigma=state.sigmas[index + 1],
            guidance_scale=state.guidance_scale,
            condition_1CHW=state.condition_1CHW,
            is_exact=state.is_exact,
            preview=state.preview_steps.index(index) if index in state.preview_steps else None,
        )
        _, _, frames, rows, columns = state.latents_1CTHW.shape
        return make_plan(
            self._spec,
            self._model,
            payload,
            component="transformer",
            kind=WorkKind.DIFFUSION_STEP,
            shape=ShapeSignature.of(frames=frames, rows=rows, columns=columns),
            flops=256.0 * len(state.embeds_1E) * frames * rows * columns,
            scope=state.scope,
            step_index=index,
            num_steps=num_steps,
            is_exact=state.is_exact,
            profile=state.profile,
            emits=() if payload.preview is None else (PREVIEW,),
        )

    def advance(self, state: DenoiseState, result: StepResult[DenoiseValues]) -> DenoiseState:
        """Keep the new sample."""
        state.latents_1CTHW = result.values.latents_1CTHW
        state.step_index += 1
        return state

    def apply(self, state: DenoiseState, event: Any) -> DenoiseState:
        """Refuse: denoising takes no outside event."""
        raise InputError("denoising takes no events", field="event", value=type(event).__name__, allowed="none")

    def finalize(self, state: DenoiseState) -> LoopResult:
        """Hand the latents on."""
        return LoopResult({"latents": state.latents_1CTHW})


def shifted_sigmas(num_steps: int, shift: float) -> tuple[float, ...]:
    """Return the noise levels of a flow from one to zero, `num_steps + 1` of them."""
    plain = [1 - index / num_steps for index in range(num_steps + 1)]
    return tuple(shift * sigma / (1 + (shift - 1) * sigma) for sigma in plain)


@supports_hooks("step", "block")
def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[DenoisePayload]], ctx: StepContext
) -> Sequence[StepResult[DenoiseValues]]:
    """Make one Euler step each of a batch; all branches of all requests are rows of one call, unless they are exact."""
    payloads = [plan.payload for plan in plans]
    transformer, hooks = instance.component("transformer"), hooks_of(ctx)
    if hooks is None:
        outputs = _velocities(transformer, payloads)
    else:
        outputs = _intercepted(transformer, payloads, hooks)
    velocities = [_guide(payload, rows_RCTHW) for payload, rows_RCTHW in zip(payloads, outputs, strict=True)]
    for velocity in velocities:
        ctx.tap("velocity", velocity)
    return [_step(instance, payload, velocity) for payload, velocity in zip(payloads, velocities, strict=True)]


def _intercepted(transformer: Any, payloads: Sequence[DenoisePayload], hooks: StepHooks) -> list[torch.Tensor]:
    """Return the velocities of each request's branches, where interceptors may answer or run the blocks."""

    def compute(indices: Sequence[int]) -> list[torch.Tensor]:
        if not hooks.has_block_interceptors:
            return _velocities(transformer, [payloads[index] for index in indices])
        return [torch.cat(_by_branch(transformer, payloads[index], index, hooks)) for index in indices]

    return hooks.predict([_wanted(payload) for payload in payloads], compute)


def _wanted(payload: DenoisePayload) -> Prediction:
    return Prediction("transformer", _branches(payload), payload.latents_1CTHW, payload.sigma)


def _branches(payload: DenoisePayload) -> tuple[str, ...]:
    return ("cond", "uncond")[: len(payload.embeds_1E)]


def _by_branch(transformer: Any, payload: DenoisePayload, index: int, hooks: StepHooks) -> list[torch.Tensor]:
    """Return the velocity of each branch, made alone, its blocks run by whoever wants to."""
    alone = [replace(payload, embeds_1E=(embeds_1E,)) for embeds_1E in payload.embeds_1E]
    runners = [hooks.blocks_runner(index, "transformer", branch) for branch in _branches(payload)]
    return [_call(transformer, [one], runner) for one, runner in zip(alone, runners, strict=True)]


def _velocities(transformer: Any, payloads: Sequence[DenoisePayload]) -> list[torch.Tensor]:
    """Return the velocities of each request's branches, (R, C, T, H, W) with its own R."""
    if payloads[0].is_exact:
        return [_call(transformer, [payload]) for payload in payloads]
    return list(_call(transformer, payloads).split([len(payload.embeds_1E) for payload in payloads]))


def _call(transformer: Any, payloads: Sequence[DenoisePayload], runner: BlocksRunner | None = None) -> torch.Tensor:
    """Return the velocities of all branches of all requests, (R, C, T, H, W), of one call."""
    weight = transformer.to_velocity.weight
    rows = [payload for payload in payloads for _ in payload.embeds_1E]
    latents_RCTHW = torch.cat([payload.latents_1CTHW for payload in rows]).to(weight.device, weight.dtype)
    sigma_R = torch.tensor([payload.sigma for payload in rows], device=weight.device, dtype=weight.dtype)
    embeds_RE = torch.cat([row for payload in payloads for row in payload.embeds_1E]).to(weight.device, weight.dtype)
    velocity_RCTHW: torch.Tensor = transformer(latents_RCTHW, sigma_R, embeds_RE, blocks_runner=runner).float()
    return velocity_RCTHW


def _guide(payload: DenoisePayload, rows_RCTHW: torch.Tensor) -> torch.Tensor:
    if len(rows_RCTHW) == 1:
        return rows_RCTHW
    cond, uncond = rows_RCTHW[:1], rows_RCTHW[1:]
    return uncond + payload.guidance_scale * (cond - uncond)


def _step(instance: ModelInstance, payload: DenoisePayload, velocity_1CTHW: torch.Tensor) -> StepResult[DenoiseValues]:
    latents = payload.latents_1CTHW.to(velocity_1CTHW.device)
    chunks: tuple[StreamChunk, ...] = ()
    if payload.preview is not None:
        chunks = (_preview(instance, latents - payload.sigma * velocity_1CTHW, payload.preview),)
    latents = latents + (payload.next_sigma - payload.sigma) * velocity_1CTHW
    if payload.next_sigma == 0 and payload.condition_1CHW is not None:
        latents[:, :, 0] = payload.condition_1CHW
    return StepResult(DenoiseValues(latents), is_finite=bool(torch.isfinite(latents).all()), chunks=chunks)


def _preview(instance: ModelInstance, clean_1CTHW: torch.Tensor, index: int) -> StreamChunk:
    """Return a picture of the first frame of the sample as the step sees it without noise."""
    vae = instance.component("vae")
    pixels_1PFYX = vae.decode_frame(clean_1CTHW[:, :, 0].to(vae.mix.weight.dtype), None)
    return preview_chunk(torch.from_numpy(pixels_to_frames(pixels_1PFYX[0])), index)
