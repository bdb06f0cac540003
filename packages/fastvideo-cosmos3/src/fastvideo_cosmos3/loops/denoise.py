"""`diffusion_denoise`: noise in, clean video, sound and actions out; they are one sequence that sees the text.

The first step lays the text's keys and values and all positions out, once a request; then one sampler step a step. Each
modality has a sampler state of its own.

Shape letters: N layers; Z keys and values; R branches; S tokens of text; G packed tokens; H heads; D width of a head;
C channels; T, H, W latent frames, rows, columns; K width of an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView
from fastvideo_core.loop.plans import make_plan
from fastvideo_core.loop.samplers import SamplerState, Schedule, ScheduleSpec, get_sampler
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import Done, Profile, StepCost, StepResult, WorkKind, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_cosmos3.loops.condition import Condition
from fastvideo_cosmos3.loops.costs import denoise_cost, denoise_peak_bytes, text_kv_bytes
from fastvideo_cosmos3.loops.events import refuse_event
from fastvideo_cosmos3.loops.layouts import layout_of
from fastvideo_cosmos3.loops.pages import TextPages
from fastvideo_cosmos3.loops.prefill import TextContext
from fastvideo_cosmos3.models.embodiments import ACTION_WIDTHS, DOMAINS
from fastvideo_cosmos3.models.packing import Layout

__all__ = [
    "DenoiseLoop",
    "DenoiseOutputs",
    "DenoisePayload",
    "DenoiseState",
    "DenoiseValues",
    "PackPayload",
    "PackValues",
    "PackedText",
    "Sample",
    "SamplerStates",
    "can_share_call",
    "check_actions",
]

_PACKING_SLACK = 1.25
"""How much longer a sequence may become by sharing a call with a longer one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What is denoised, float32.

    Attributes:
        video_1CTHW: Latents of the video.
        sound_CT: Latents of the sound; None without.
        actions_TK: Actions; None without.
    """

    video_1CTHW: Tensor
    sound_CT: Tensor | None
    actions_TK: Tensor | None


@dataclass(frozen=True, slots=True)
class SamplerStates:
    """What the sampler remembers of each modality."""

    video: SamplerState
    sound: SamplerState
    actions: SamplerState


@dataclass(frozen=True, slots=True)
class PackedText:
    """What all sampler steps read of the text.

    Attributes:
        text_NZRSHD: Keys and values of each branch's text, shorter ones filled up with zeros.
        lengths: Tokens of each.
        cos_RGD: Cosines of the positions of what is generated, for each branch.
        sin_RGD: Sines.
    """

    text_NZRSHD: Tensor
    lengths: tuple[int, ...]
    cos_RGD: Tensor
    sin_RGD: Tensor


@dataclass(slots=True)
class DenoiseState(LoopState):
    """State of denoising.

    Attributes:
        sample: The sample.
        layout: How it is packed.
        texts: The texts' pages: of the prompt, and with guidance of the negative prompt.
        packed: What the first step made of them.
        schedule: Noise levels and scalars of all steps.
        samplers: What the sampler remembers.
        guidance_scale: Weight of the prompt against the negative prompt.
        domain: Row of the action heads; -1 without actions.
        action_width: Numbers of an action that mean something; 0 without actions.
        step_index: The next sampler step.
        scope: What cancels it.
        profile: Serve, rollout or train.
        is_exact: Whether the reference's order of operations is kept.
    """

    sample: Sample
    layout: Layout
    texts: tuple[TextPages, ...]
    packed: PackedText | None
    schedule: Schedule
    samplers: SamplerStates
    guidance_scale: float
    domain: int
    action_width: int
    step_index: int
    scope: CancelScope
    profile: Profile
    is_exact: bool


@dataclass(frozen=True, slots=True)
class PackPayload:
    """Texts to lay out, and what is generated after each."""

    texts: tuple[TextPages, ...]
    layout: Layout


@dataclass(frozen=True, slots=True)
class DenoisePayload:
    """One sampler step; see `DenoiseState` for the fields."""

    sample: Sample
    layout: Layout
    packed: PackedText
    schedule: Schedule
    samplers: SamplerStates
    sampler_step: int
    guidance_scale: float
    domain: int
    action_width: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class PackValues:
    """The texts, laid out."""

    packed: PackedText


@dataclass(frozen=True, slots=True)
class DenoiseValues:
    """The sample after a step, and what the samplers remember."""

    sample: Sample
    samplers: SamplerStates


@dataclass(frozen=True, slots=True)
class DenoiseOutputs:
    """What the loop hands on: clean latents of video and sound, and actions of the embodiment's own width."""

    latents: Tensor
    sound: Tensor | None
    actions: Tensor | None


class DenoiseLoop:
    """Denoises one request.

    Args:
        spec: The card's loop. Options: `sampler_options`, `num_train_timesteps`.
        model: The resident model, with the configurations of `transformer`, `vae` and, for sound, `sound_tokenizer`.
    """

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> DenoiseState:
        """Draw the noise, of video, sound and actions in that order, and fix the schedule."""
        parameters, inputs = request.parameters, request.inputs
        condition: Condition | None = inputs.get("condition")
        actions = inputs.get("actions")
        layout = layout_of(self._model, parameters, inputs, condition)
        embodiment = parameters.get("embodiment")
        width = 0 if embodiment is None else ACTION_WIDTHS[str(embodiment)]
        generator = ctx.make_generator(int(parameters["seed"]))
        sampler = get_sampler(str(parameters["sampler"]))
        schedule = sampler.make_schedule(self._schedule(parameters))
        contexts: list[TextContext | None] = [inputs["context"], inputs.get("negative")]
        start = sampler.init_state(schedule)
        return DenoiseState(
            sample=self._noise(layout, condition, actions, width, generator),
            layout=layout,
            texts=tuple(context.pages for context in contexts if context is not None),
            packed=None,
            schedule=schedule,
            samplers=SamplerStates(start, start, start),
            guidance_scale=float(parameters["guidance_scale"]),
            domain=-1 if embodiment is None else DOMAINS[str(embodiment)],
            action_width=width,
            step_index=0,
            scope=request.cancel_scope,
            profile=request.profile,
            is_exact=request.is_exact,
        )

    def next(self, state: DenoiseState) -> WorkPlan[PackPayload | DenoisePayload] | Done:
        """Lay out the text, then make the next sampler step."""
        if state.packed is None:
            return self._plan(state, PackPayload(state.texts, state.layout), WorkKind.ENCODER_CHUNK)
        if state.step_index == state.schedule.num_steps:
            return Done()
        payload = DenoisePayload(
            sample=state.sample,
            layout=state.layout,
            packed=state.packed,
            schedule=state.schedule,
            samplers=state.samplers,
            sampler_step=state.step_index,
            guidance_scale=state.guidance_scale,
            domain=state.domain,
            action_width=state.action_width,
            is_exact=state.is_exact,
        )
        return self._plan(state, payload, WorkKind.DIFFUSION_STEP)

    def advance(self, state: DenoiseState, result: StepResult[PackValues] | StepResult[DenoiseValues]) -> DenoiseState:
        """Keep the new sample, or the text that was laid out."""
        values = result.values
        if isinstance(values, PackValues):
            state.packed = values.packed
            return state
        state.sample = values.sample
        state.samplers = values.samplers
        state.step_index += 1
        return state

    def apply(self, state: DenoiseState, event: Any) -> DenoiseState:
        """Refuse: denoising takes no outside event."""
        raise refuse_event("denoising", event)

    def finalize(self, state: DenoiseState) -> LoopResult:
        """Hand the clean latents and the actions on."""
        sample = state.sample
        actions = None if sample.actions_TK is None else sample.actions_TK[:, : state.action_width]
        return LoopResult({"latents": sample.video_1CTHW, "sound": sample.sound_CT, "actions": actions})

    def _schedule(self, parameters: Mapping[str, Any]) -> ScheduleSpec:
        options = self._spec.options
        return ScheduleSpec(
            num_steps=int(parameters["num_inference_steps"]),
            shift=float(parameters["flow_shift"]),
            num_train_timesteps=int(options["num_train_timesteps"]),
            options=options["sampler_options"].get(parameters["sampler"], {}),
        )

    def _noise(
        self, layout: Layout, condition: Condition | None, actions: Any, width: int, generator: torch.Generator
    ) -> Sample:
        config = self._model.config("transformer")
        channels = config.latent_channel
        video = torch.randn(1, channels, layout.frames, layout.rows, layout.columns, generator=generator)
        if condition is not None:
            known, given = list(layout.known_frames), condition.latents_1CTHW.float().cpu()
            video[:, :, known] = given[:, :, known]
        sound = torch.randn(config.sound_dim, layout.sound_frames, generator=generator) if layout.sound_frames else None
        moves = None
        if layout.num_actions:
            moves = torch.randn(layout.num_actions, config.action_dim, generator=generator)
            if actions is not None:
                moves = _all_actions(torch.from_numpy(actions), layout.num_actions, config.action_dim)
            moves[:, width:] = 0
        return Sample(video, sound, moves)

    def _plan(
        self, state: DenoiseState, payload: PackPayload | DenoisePayload, kind: WorkKind
    ) -> WorkPlan[PackPayload | DenoisePayload]:
        config, branches = self._model.config("transformer"), len(state.texts)
        text, tokens = max(pages.num_tokens for pages in state.texts), state.layout.num_tokens
        is_pack = isinstance(payload, PackPayload)
        kept = branches * text_kv_bytes(config, text)
        return make_plan(
            self._spec,
            self._model,
            state,
            payload,
            component="transformer",
            kind=kind,
            loop_kind=f"{self._spec.loop_id}.{'pack' if is_pack else 'step'}",
            cost=_pack_cost(kept) if is_pack else denoise_cost(config, tokens, text, branches),
            peak_bytes=2 * kept if is_pack else denoise_peak_bytes(config, tokens, text, branches),
            resident_bytes=kept if is_pack else 0,
            step_index=0 if is_pack else state.step_index + 1,
            num_steps=state.schedule.num_steps + 1,
        )


def _pack_cost(kept_bytes: int) -> StepCost:
    return StepCost(0.0, 0.0, 2.0 * kept_bytes)


def _all_actions(actions_TK: Tensor, count: int, width: int) -> Tensor:
    """Return as many actions as there are, of the model's own width; the last one is repeated where there are fewer."""
    moves = torch.zeros(count, width)
    given = actions_TK[:count]
    moves[: len(given), : given.shape[1]] = given
    moves[len(given) :] = moves[len(given) - 1]
    return moves


def can_share_call(one: WorkPlan[Any], other: WorkPlan[Any]) -> bool:
    """Tell whether two sampler steps share a call: padded to the longer one, the shorter grows by a quarter at most."""
    first, second = one.payload, other.payload
    if isinstance(first, PackPayload) or isinstance(second, PackPayload):
        return False
    sizes: list[int] = [payload.layout.num_tokens for payload in (first, second)]
    return max(sizes) <= _PACKING_SLACK * min(sizes)


def check_actions(
    spec: LoopSpec,
    model: ModelView,  # noqa: ARG001 - the protocol's argument
    parameters: Mapping[str, Any],
    inputs: Mapping[str, Any],
) -> tuple[str, ...]:
    """Refuse actions of another width than the embodiment's, or an embodiment that is wider than the model's actions.

    Raises:
        InputError: With the width that is allowed.
    """
    embodiment, actions = parameters.get("embodiment"), inputs.get("actions")
    if embodiment is None:
        return ()
    width, widest = ACTION_WIDTHS[str(embodiment)], int(spec.options["action_dim"])
    if width > widest:
        fitting = [name for name, size in ACTION_WIDTHS.items() if size <= widest]
        raise InputError(
            f"its actions have {width} numbers, this model's {widest}", field="embodiment", value=embodiment,
            allowed=", ".join(fitting),
        )  # fmt: skip
    if actions is not None and actions.shape[1] != width:
        raise InputError(
            f"actions of {embodiment} have another width", field="actions", value=list(actions.shape),
            allowed=f"(steps, {width})", nearest=width,
        )  # fmt: skip
    return ()
