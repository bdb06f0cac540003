"""Denoising as a loop: noise in, clean latents out; one sampler step a step.

The first step of each expert computes the cross-attention keys and values of the prompts, once a request.
Shape letters: B rows; C channels; T, H, W latent frames, rows, columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView
from fastvideo_core.loop.behavior import LoopBehavior, StepBehavior
from fastvideo_core.loop.plans import make_plan
from fastvideo_core.loop.policies.cfg import (
    ClassifierFreeGuidance,
    EmbeddedGuidance,
    NoGuidance,
    RescaledGuidance,
    ZeroStarGuidance,
)
from fastvideo_core.loop.policies.conditioning import num_latent_frames
from fastvideo_core.loop.policies.experts import Expert, ExpertPolicy, SingleExpert, StepIndexExperts, TimestepExperts
from fastvideo_core.loop.previews import PREVIEW, preview_steps
from fastvideo_core.loop.samplers import Sampler, SamplerState, Schedule, ScheduleSpec, get_sampler, samplers_of
from fastvideo_core.loop.state import LoopState, PluginState
from fastvideo_core.loop.work import Done, Profile, ShapeSignature, StepCost, StepResult, WorkKind, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_wan.loops.costs import IMAGE_TOKENS, context_bytes, context_cost, denoise_cost, denoise_peak_bytes
from fastvideo_wan.loops.guidance import guidance_of
from fastvideo_wan.loops.text import EncodedText, text_bucket
from fastvideo_wan.loops.vae_costs import decode_cost, decode_peak_bytes
from fastvideo_wan.models.config import WanTransformerConfig
from fastvideo_wan.models.context import TextContext
from fastvideo_wan.models.rope import RotaryTables

__all__ = [
    "ContextPayload",
    "ContextValues",
    "DenoiseLoop",
    "DenoiseOutputs",
    "DenoisePayload",
    "DenoiseState",
    "DenoiseValues",
    "schedule_spec",
]

Policy = NoGuidance | EmbeddedGuidance | ClassifierFreeGuidance | RescaledGuidance | ZeroStarGuidance
Experts = SingleExpert | TimestepExperts | StepIndexExperts


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What one component computes once a request and reads in every step.

    Attributes:
        prompts: Cross-attention keys and values: one with a row for each branch, or in the exact mode one a branch.
        rotary: Positions of the video's tokens.
    """

    prompts: tuple[TextContext, ...]
    rotary: RotaryTables


@dataclass(slots=True)
class DenoiseState(LoopState):
    """State of denoising.

    Attributes:
        latents_1CTHW: The sample, float32.
        text: Encoded prompts, by branch.
        schedule: Noise levels and scalars of all steps.
        sampler: What the sampler remembers.
        policy: Guidance.
        experts: Routing of steps to components.
        branches: Branches of every step.
        scope: What cancels it.
        profile: Serve, rollout or train.
        is_exact: Whether the reference's order of operations is kept.
        num_plans: Steps that it takes, those for contexts included.
        step_index: The next sampler step.
        num_planned: Steps committed, those for contexts included.
        contexts: What each component has computed for all steps, by component.
        noises: Fresh noise of each step that takes some, by step index; drawn at the start.
        condition_1CTHW: Encoded image: with its mask as further channels, or in place of known frames.
        image_embeds_1ME: Tokens of the image encoder.
        num_known: Latent frames at the start that are given and not denoised.
        plugin_state: States of interceptors, by interceptor, then by component and branch.
        behavior: What the steps of a rollout recorded.
        preview_steps: Steps after which there is a picture.
    """

    latents_1CTHW: torch.Tensor
    text: EncodedText
    schedule: Schedule
    sampler: SamplerState
    policy: Policy
    experts: Experts
    branches: tuple[str, ...]
    scope: CancelScope
    profile: Profile
    is_exact: bool
    num_plans: int
    step_index: int = 0
    num_planned: int = 0
    contexts: dict[str, RequestContext] = field(default_factory=dict)
    noises: dict[int, torch.Tensor] = field(default_factory=dict)
    condition_1CTHW: torch.Tensor | None = None
    image_embeds_1ME: torch.Tensor | None = None
    num_known: int = 0
    plugin_state: dict[str, dict[str, PluginState]] = field(default_factory=dict)
    behavior: tuple[StepBehavior, ...] = ()
    preview_steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ContextPayload:
    """Prompts whose keys and values are to be computed, and a size whose positions are.

    Attributes:
        component: The transformer.
        latents_1CTHW: The sample, for its size.
        text: Encoded prompts.
        branches: Branches, in order.
        num_tokens: Text tokens that are kept, where padding is merged.
        image_embeds_1ME: Tokens of the image encoder.
        is_exact: Whether the reference's order of operations is kept.
    """

    component: str
    latents_1CTHW: torch.Tensor
    text: EncodedText
    branches: tuple[str, ...]
    num_tokens: int
    image_embeds_1ME: torch.Tensor | None
    is_exact: bool


@dataclass(frozen=True, slots=True)
class DenoisePayload:
    """One sampler step.

    Attributes:
        component: The transformer.
        latents_1CTHW: The sample.
        context: What the transformer computed once for all steps.
        schedule: Noise levels and scalars.
        sampler: What the sampler remembers.
        sampler_step: Which step of the schedule.
        policy: Guidance.
        branches: Branches.
        guidance_scale: Scale at this step.
        noise_1CTHW: Fresh noise, for steps that take some.
        condition_1CTHW: Encoded image.
        num_known: Latent frames that are given.
        expand_timesteps: Whether every token has its own timestep.
        is_last: Whether it is the last step.
        is_exact: Whether the reference's order of operations is kept.
        preview: Number of the picture that comes with it; None without one.
    """

    component: str
    latents_1CTHW: torch.Tensor
    context: RequestContext
    schedule: Schedule
    sampler: SamplerState
    sampler_step: int
    policy: Policy
    branches: tuple[str, ...]
    guidance_scale: float
    noise_1CTHW: torch.Tensor | None
    condition_1CTHW: torch.Tensor | None
    num_known: int
    expand_timesteps: bool
    is_last: bool
    is_exact: bool
    preview: int | None = None


@dataclass(frozen=True, slots=True)
class ContextValues:
    """What a component computed for all steps of a request."""

    component: str
    context: RequestContext


@dataclass(frozen=True, slots=True)
class DenoiseValues:
    """The sample after a step, and what the sampler remembers."""

    latents_1CTHW: torch.Tensor
    sampler: SamplerState


@dataclass(frozen=True, slots=True)
class DenoiseOutputs:
    """What the loop hands on: the clean latents, float32 (1, C, T, H, W), and of a rollout what its steps recorded."""

    latents: torch.Tensor
    behavior: LoopBehavior | None = None


class DenoiseLoop:
    """Denoises one request.

    Args:
        spec: The card's loop. Options: `num_train_timesteps`, `guidance` and its settings, `boundary_ratio`,
            `expand_timesteps`, `timestep_list` (few-step models), and `sampler_options`.
        model: The resident model, with `transformer` (and `transformer_2`) and `vae` configurations.
    """

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> DenoiseState:
        """Fix the schedule and draw the noise."""
        options, parameters = self._spec.options, request.parameters
        guidance = guidance_of(options, parameters, is_exact=request.is_exact)
        sampler = get_sampler(str(parameters["sampler"]), samplers_of(self._model))
        schedule = sampler.make_schedule(schedule_spec(self._spec, parameters, sampler))
        generator = ctx.make_generator(int(parameters["seed"]))
        shape = self._latent_shape(parameters)
        latents = torch.randn(shape, generator=generator, dtype=torch.float32)
        steps = range(schedule.begin, schedule.num_steps)
        noises = {i: torch.randn(shape, generator=generator) for i in steps if sampler.needs_noise(schedule, i)}
        condition = request.inputs.get("condition")
        return DenoiseState(
            latents_1CTHW=latents,
            text=request.inputs["text"],
            schedule=schedule,
            sampler=sampler.init_state(schedule),
            policy=guidance.policy,  # type: ignore[arg-type]  # the resolver returns one of the union's members
            experts=guidance.experts,
            branches=guidance.branches,
            scope=request.cancel_scope,
            profile=request.profile,
            is_exact=request.is_exact,
            num_plans=_num_plans(schedule, guidance.experts),
            step_index=schedule.begin,
            noises=noises,
            condition_1CTHW=None if condition is None else condition.latents_1CTHW,
            image_embeds_1ME=request.inputs.get("image_embeds"),
            num_known=0 if condition is None else condition.num_known,
            preview_steps=preview_steps(schedule.begin, schedule.num_steps) if request.has_previews else (),
        )

    def next(self, state: DenoiseState) -> WorkPlan[ContextPayload | DenoisePayload] | Done:
        """Compute the prompts' keys and values if the step's expert lacks them; else make the step."""
        index = state.step_index
        if index == state.schedule.num_steps:
            return Done()
        expert = state.experts.route(state.schedule.timestep_values[index], index)
        if expert.component not in state.contexts:
            return self._plan(state, expert, self._context_payload(state, expert), WorkKind.ENCODER_CHUNK)
        return self._plan(state, expert, self._step_payload(state, expert), WorkKind.DIFFUSION_STEP)

    def advance(
        self, state: DenoiseState, result: StepResult[ContextValues] | StepResult[DenoiseValues]
    ) -> DenoiseState:
        """Keep the new sample, or the new keys and values."""
        values = result.values
        state.num_planned += 1
        if isinstance(values, ContextValues):
            state.contexts[values.component] = values.context
            return state
        state.latents_1CTHW = values.latents_1CTHW
        state.sampler = values.sampler
        if result.behavior is not None:
            state.behavior = (*state.behavior, result.behavior)
        state.noises.pop(state.step_index, None)
        state.step_index += 1
        return state

    def apply(self, state: DenoiseState, event: Any) -> DenoiseState:
        """Refuse: denoising takes no outside event."""
        raise InputError("denoising takes no events", field="event", value=type(event).__name__, allowed="none")

    def finalize(self, state: DenoiseState) -> LoopResult:
        """Hand the latents on, and of a rollout what its steps recorded."""
        outputs: dict[str, Any] = {"latents": state.latents_1CTHW}
        if state.profile == "rollout":
            outputs["behavior"] = LoopBehavior(state.schedule, state.behavior)
        return LoopResult(outputs)

    def _latent_shape(self, parameters: Any) -> tuple[int, int, int, int, int]:
        vae = self._model.config("vae")
        frames = num_latent_frames(int(parameters["num_frames"]), vae.temporal_factor)
        rows = int(parameters["height"]) // vae.spatial_factor
        columns = int(parameters["width"]) // vae.spatial_factor
        return (1, vae.z_dim, frames, rows, columns)

    def _context_payload(self, state: DenoiseState, expert: Expert) -> ContextPayload:
        rows = [state.text.rows[branch] for branch in state.branches]
        return ContextPayload(
            component=expert.component,
            latents_1CTHW=state.latents_1CTHW,
            text=state.text,
            branches=state.branches,
            num_tokens=max(text_bucket(row.embeds_1LE.shape[1] + 1, row.length) for row in rows),
            image_embeds_1ME=state.image_embeds_1ME,
            is_exact=state.is_exact,
        )

    def _step_payload(self, state: DenoiseState, expert: Expert) -> DenoisePayload:
        index = state.step_index
        return DenoisePayload(
            component=expert.component,
            latents_1CTHW=state.latents_1CTHW,
            context=state.contexts[expert.component],
            schedule=state.schedule,
            sampler=state.sampler,
            sampler_step=index,
            policy=state.policy,
            branches=state.branches,
            guidance_scale=expert.guidance_scale,
            noise_1CTHW=state.noises.get(index),
            condition_1CTHW=state.condition_1CTHW,
            num_known=state.num_known,
            expand_timesteps=bool(self._spec.options.get("expand_timesteps", False)),
            is_last=index + 1 == state.schedule.num_steps,
            is_exact=state.is_exact,
            preview=state.preview_steps.index(index) if index in state.preview_steps else None,
        )

    def _plan(
        self, state: DenoiseState, expert: Expert, payload: ContextPayload | DenoisePayload, kind: WorkKind
    ) -> WorkPlan[ContextPayload | DenoisePayload]:
        needs = self._needs(state, expert, payload)
        has_preview = isinstance(payload, DenoisePayload) and payload.preview is not None
        if has_preview:
            needs = self._with_preview(state, needs)
        return make_plan(
            self._spec,
            self._model,
            state,
            payload,
            component=expert.component,
            kind=kind,
            shape=needs.shape,
            cost=needs.cost,
            peak_bytes=needs.peak_bytes,
            resident_bytes=needs.resident_bytes,
            step_index=state.num_planned,
            num_steps=state.num_plans,
            loop_kind=f"{self._spec.loop_id}.{'context' if isinstance(payload, ContextPayload) else 'step'}",
            emits=(PREVIEW,) if has_preview else (),
        )

    def _with_preview(self, state: DenoiseState, needs: StepNeeds) -> StepNeeds:
        """Return what a step needs that decodes a frame besides."""
        vae, (_, _, _, rows, columns) = self._model.config("vae"), state.latents_1CTHW.shape
        shape = {"frames": 1, "rows": rows, "columns": columns, "first": 1}
        peak_bytes = max(needs.peak_bytes, decode_peak_bytes(vae, shape, is_exact=state.is_exact))
        return replace(needs, cost=needs.cost + decode_cost(vae, shape), peak_bytes=peak_bytes)

    def _needs(self, state: DenoiseState, expert: Expert, payload: ContextPayload | DenoisePayload) -> StepNeeds:
        config, num_rows = self._model.config(expert.component), len(state.branches)
        length = next(iter(state.text.rows.values())).length
        if isinstance(payload, ContextPayload):
            num_tokens = length if state.is_exact else payload.num_tokens
            return context_needs(config, num_tokens, num_rows, length=length)
        _, channels, frames, rows, columns = state.latents_1CTHW.shape
        needs = step_needs(
            config, (channels, frames, rows, columns), text_tokens=length, num_rows=num_rows, is_exact=state.is_exact
        )
        if not self._model.card.parity.batch_invariant:
            return needs
        # Texts of unequal lengths are filled up to share a call, which may change a last bit.
        text = payload.context.prompts[0].keys_ZBLNK.shape[2]
        return replace(needs, shape=ShapeSignature((*needs.shape.dims, ("text", text))))


def schedule_spec(spec: LoopSpec, parameters: Mapping[str, Any], sampler: Sampler) -> ScheduleSpec:
    """Return what a request says about its schedule; what its sampler takes of the card and of it."""
    options = spec.options
    return ScheduleSpec(
        num_steps=int(parameters["num_inference_steps"]),
        shift=float(parameters["flow_shift"]),
        num_train_timesteps=int(options.get("num_train_timesteps", 1000)),
        options=sampler.options_of(options.get("sampler_options", {}).get(sampler.name, {}), parameters),
    )


@dataclass(frozen=True, slots=True)
class StepNeeds:
    """What a step of one kind needs: shapes, cost, the most bytes during it, and bytes that the state keeps of it."""

    shape: ShapeSignature
    cost: StepCost
    peak_bytes: int
    resident_bytes: int


def context_needs(config: WanTransformerConfig, num_tokens: int, num_rows: int, *, length: int) -> StepNeeds:
    """Return what the keys and values of `num_rows` texts of `num_tokens` tokens need.

    Args:
        config: The transformer.
        num_tokens: Tokens that are kept of each text.
        num_rows: Texts: one a branch.
        length: Tokens that each text has before.
    """
    kept = context_bytes(config, num_tokens, num_rows)
    # Padded texts, and a copy that is cut; images in their embedder; each layer's keys and values before they join.
    texts = 2 * 4 * num_rows * length * config.text_dim
    if config.image_dim is not None:
        texts += 4 * 4 * num_rows * IMAGE_TOKENS * config.image_dim
    shape = ShapeSignature.of(tokens=num_tokens)
    return StepNeeds(shape, context_cost(config, num_tokens, num_rows), texts + 3 * kept, kept)


def step_needs(
    config: WanTransformerConfig,
    latent_shape: tuple[int, int, int, int],
    *,
    text_tokens: int,
    num_rows: int,
    is_exact: bool,
) -> StepNeeds:
    """Return what a sampler step of `num_rows` branches needs; the shape is channels, frames, rows, columns."""
    channels, frames, rows, columns = latent_shape
    shape = ShapeSignature.of(frames=frames, rows=rows, columns=columns)
    dims = dict(shape.dims)
    sample = 4 * channels * frames * rows * columns
    peak = denoise_peak_bytes(config, dims, num_rows, is_exact=is_exact) + 4 * num_rows * sample
    return StepNeeds(shape, denoise_cost(config, dims, text_tokens, num_rows), peak, sample)


def _num_plans(schedule: Schedule, experts: ExpertPolicy) -> int:
    """Return the sampler's steps, and one for the contexts of each component that they use."""
    steps = range(schedule.begin, schedule.num_steps)
    return len(steps) + len({experts.route(schedule.timestep_values[i], i).component for i in steps})
