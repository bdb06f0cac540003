"""`vae_encode`: an image, the beginning of a video, or the view of an action task, as latents that are known.

Shape letters: P pixel channels; C latent channels; T, H, W frames, rows, columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, StepContext
from fastvideo_core.loop.plans import make_plan
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import Done, Profile, ShapeSignature, StepResult, WorkKind, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_cosmos3.loops.costs import frame_cost, frame_peak_bytes
from fastvideo_cosmos3.loops.events import refuse_event
from fastvideo_cosmos3.loops.texts import view_frames
from fastvideo_cosmos3.models.frames import action_view, cover_image, stretch_frames
from fastvideo_cosmos3.models.vae import Memory, VideoVAE, split_memory, stack_memories

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = [
    "Condition",
    "ConditionOutputs",
    "EncodeLoop",
    "EncodePayload",
    "EncodeState",
    "EncodeValues",
    "check_frames",
    "known_frames_of",
    "num_encoded_frames",
    "run_step",
]

GROUP = 4
"""Frames that the encoder takes at a time, after a clip's first."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Latents of which some frames are known.

    Attributes:
        latents_1CTHW: Normalized latents; frames that are not known may be missing at the end.
    """

    latents_1CTHW: Tensor


@dataclass(slots=True)
class EncodeState(LoopState):
    """State of encoding.

    Attributes:
        pixels_1PTHW: Pixels in [-1, 1].
        content: Latent rows and columns that are kept.
        scope: What cancels it.
        profile: Serve, rollout or train.
        is_exact: Whether it has calls of its own.
        memory: What the encoder remembers.
        features: Encoded groups.
        latents_1CTHW: The result, after the last group.
    """

    pixels_1PTHW: Tensor
    content: tuple[int, int]
    scope: CancelScope
    profile: Profile
    is_exact: bool
    memory: Memory = ()
    features: tuple[Tensor, ...] = field(default=())
    latents_1CTHW: Tensor | None = None


@dataclass(frozen=True, slots=True)
class EncodePayload:
    """A group of frames.

    Attributes:
        pixels_1PTHW: The frames.
        memory: What the encoder remembers.
        features: Groups encoded before, with the last one; the step then makes the latents.
        content: Latent rows and columns that are kept.
        is_last: Whether it is the last group.
    """

    pixels_1PTHW: Tensor
    memory: Memory
    features: tuple[Tensor, ...]
    content: tuple[int, int]
    is_last: bool


@dataclass(frozen=True, slots=True)
class EncodeValues:
    """An encoded group, what the encoder remembers, and after the last group the latents."""

    features_1CTHW: Tensor
    memory: Memory
    latents_1CTHW: Tensor | None


@dataclass(frozen=True, slots=True)
class ConditionOutputs:
    """What the loop hands on."""

    condition: Condition


class EncodeLoop:
    """Encodes what is known, a group of frames a step.

    Args:
        spec: The card's loop.
        model: The resident model, with `vae`.
    """

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> EncodeState:
        """Bring what is known to the request's size."""
        parameters, inputs = request.parameters, request.inputs
        grid = int(self._model.config("vae").spatial_factor)
        mode = str(inputs["mode"])
        if mode in ("image", "video"):
            pixels = _known_pixels(mode, parameters, inputs, self._model)
            content = (pixels.shape[3] // grid, pixels.shape[4] // grid)
        else:
            count = int(parameters["chunk_size"]) + 1
            tier = str(parameters["resolution_tier"])
            view = action_view(view_frames(inputs), tier=tier, num_frames=count, grid=grid)
            pixels = view.pixels_1PTHW
            content = (max(view.content_height // grid, 1), max(view.content_width // grid, 1))
        if not request.is_exact:
            pixels = pixels[:, :, : num_encoded_frames(self._model, mode, parameters)]
        return EncodeState(pixels, content, request.cancel_scope, request.profile, request.is_exact)

    def next(self, state: EncodeState) -> WorkPlan[EncodePayload] | Done:
        """Encode the next group."""
        index, vae = len(state.features), self._model.config("vae")
        num_groups = vae.latent_frames(state.pixels_1PTHW.shape[2])
        if index == num_groups:
            return Done()
        start = 0 if index == 0 else 1 + (index - 1) * GROUP
        pixels = state.pixels_1PTHW[:, :, start : 1 if index == 0 else start + GROUP]
        num_frames, height, width = pixels.shape[2:]
        grid = vae.spatial_factor
        is_last = index + 1 == num_groups
        payload = EncodePayload(pixels, state.memory, state.features if is_last else (), state.content, is_last)
        return make_plan(
            self._spec,
            self._model,
            state,
            payload,
            component="vae",
            kind=WorkKind.ENCODER_CHUNK,
            shape=ShapeSignature.of(frames=num_frames, rows=height, columns=width),
            cost=frame_cost(vae, height // grid, width // grid, num_frames, encodes=True),
            peak_bytes=frame_peak_bytes(vae, height // grid, width // grid, num_frames),
            step_index=index,
            num_steps=num_groups,
        )

    def advance(self, state: EncodeState, result: StepResult[EncodeValues]) -> EncodeState:
        """Keep a group."""
        state.features = (*state.features, result.values.features_1CTHW)
        state.memory = result.values.memory
        state.latents_1CTHW = result.values.latents_1CTHW
        return state

    def apply(self, state: EncodeState, event: Any) -> EncodeState:
        """Refuse: encoding takes no outside event."""
        raise refuse_event("encoding", event)

    def finalize(self, state: EncodeState) -> LoopResult:
        """Hand the latents on."""
        assert state.latents_1CTHW is not None, "the last group made them"
        return LoopResult({"condition": Condition(state.latents_1CTHW)})


def known_frames_of(mode: str, parameters: Mapping[str, Any], num_latent_frames: int) -> tuple[int, ...]:
    """Return the latent frames that are known: none, the first, those that the request names, or all."""
    if mode == "video":
        return tuple(sorted({int(index) for index in parameters["condition_frames"]}))
    if mode == "inverse_dynamics":
        return tuple(range(num_latent_frames))
    return (0,) if mode in ("image", "policy", "forward_dynamics") else ()


def num_encoded_frames(model: ModelView, mode: str, parameters: Mapping[str, Any]) -> int:
    """Return how many frames have to be encoded, so that all known latent frames are there."""
    vae = model.config("vae")
    num_frames = int(parameters["chunk_size"]) + 1 if "chunk_size" in parameters else int(parameters["num_frames"])
    return max(known_frames_of(mode, parameters, vae.latent_frames(num_frames))) * int(vae.temporal_factor) + 1


def check_frames(
    spec: LoopSpec,
    model: ModelView,  # noqa: ARG001 - the protocol's argument
    parameters: Mapping[str, Any],
    inputs: Mapping[str, Any],
) -> tuple[str, ...]:
    """Refuse frames of a video that are to be kept and are not in what is generated.

    Raises:
        InputError: With the frames that there are.
    """
    if inputs.get("mode") != "video":
        return ()
    frames = (int(parameters["num_frames"]) - 1) // int(spec.options["temporal_factor"]) + 1
    asked = list(parameters["condition_frames"])
    if not asked or any(not 0 <= index < frames for index in asked):
        raise InputError(
            "no such latent frames", field="condition_frames", value=asked, allowed=f"some of 0 to {frames - 1}"
        )
    return ()


def _known_pixels(mode: str, parameters: Mapping[str, Any], inputs: Mapping[str, Any], model: ModelView) -> Tensor:
    """Return the frames of a whole clip: the image again and again, or the video's frames and then its last one."""
    height, width, count = (int(parameters[name]) for name in ("height", "width", "num_frames"))
    if mode == "image":
        still = cover_image(inputs["image"], height=height, width=width)
        return still.unsqueeze(2).expand(-1, -1, count, -1, -1)
    wanted = num_encoded_frames(model, mode, parameters)
    frames = inputs["video"].frames
    kept = frames[:wanted] if parameters["condition_keep"] == "first" else frames[-wanted:]
    pixels = stretch_frames(kept, height=height, width=width)[:, :, :count]
    return torch.cat([pixels, pixels[:, :, -1:].expand(-1, -1, count - pixels.shape[2], -1, -1)], dim=2)


def run_step(
    instance: ModelInstance,
    plans: Sequence[WorkPlan[EncodePayload]],
    ctx: StepContext,
) -> Sequence[StepResult[EncodeValues]]:
    """Encode one group of each plan, as rows of one call: groups of as many frames all begin a clip, or none does."""
    vae: VideoVAE = instance.component("vae")
    weight = vae.quant_conv.weight
    payloads = [plan.payload for plan in plans]
    pixels = torch.cat([payload.pixels_1PTHW for payload in payloads]).to(weight.device, weight.dtype)
    features, memory = vae.encode_group(pixels, stack_memories([payload.memory for payload in payloads]))
    ctx.tap("features", features)
    memories = split_memory(memory, len(payloads))
    return [_result(vae, *one) for one in zip(payloads, features.split(1), memories, strict=True)]


def _result(vae: VideoVAE, payload: EncodePayload, features_1CTHW: Tensor, memory: Memory) -> StepResult[EncodeValues]:
    latents = None
    if payload.is_last:
        rows, columns = payload.content
        whole = vae.mean_latents(torch.cat([*payload.features, features_1CTHW], dim=2))
        latents = whole.float()[:, :, :, :rows, :columns].contiguous()
    is_finite = bool(torch.isfinite(features_1CTHW).all())
    return StepResult(EncodeValues(features_1CTHW.clone(), memory, latents), is_finite=is_finite)
