"""`vae_decode` and `audio_decode`: latents to frames, a latent frame a step, and latents to a waveform.

Shape letters: C channels; T, H, W latent frames, rows, columns; F, Y, X pixel frames, rows, columns; P pixel channels;
N samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastvideo_core.card import LoopSpec
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, StepContext
from fastvideo_core.loop.plans import make_plan
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import (
    Done,
    EmitSpec,
    Profile,
    ShapeSignature,
    StepResult,
    StreamChunk,
    WorkKind,
    WorkPlan,
)
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.media.pixels import pixels_to_frames
from fastvideo_cosmos3.loops.costs import FLOAT_BYTES, frame_cost, frame_peak_bytes, sound_cost
from fastvideo_cosmos3.loops.events import refuse_event
from fastvideo_cosmos3.models.sound import SoundDecoder
from fastvideo_cosmos3.models.vae import Memory, VideoVAE, split_memory, stack_memories

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = [
    "AudioLoop",
    "AudioOutputs",
    "AudioPayload",
    "AudioState",
    "AudioValues",
    "DecodeLoop",
    "DecodeOutputs",
    "DecodePayload",
    "DecodeState",
    "DecodeValues",
    "Waveform",
    "run_audio_step",
    "run_step",
]

STREAM = "video"


@dataclass(slots=True)
class DecodeState(LoopState):
    """State of decoding a video.

    Attributes:
        latents_1CTHW: Latents, normalized.
        fps: Frames a second, for the times of the stream; None if it is an image, which is not streamed.
        scope: What cancels it.
        profile: Serve, rollout or train.
        is_exact: Whether it has calls of its own.
        memory: What the decoder remembers.
        frames: Decoded frames of each latent frame, uint8 (F, Y, X, P).
    """

    latents_1CTHW: Tensor
    fps: float | None
    scope: CancelScope
    profile: Profile
    is_exact: bool
    memory: Memory = ()
    frames: tuple[Tensor, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class DecodePayload:
    """A latent frame.

    Attributes:
        latents_1CTHW: All latents.
        index: Which frame.
        memory: What the decoder remembers.
        num_frames_before: Frames decoded before.
        fps: Frames a second; None if it is an image.
        is_exact: Whether all latents are mixed at once, as in the reference.
    """

    latents_1CTHW: Tensor
    index: int
    memory: Memory
    num_frames_before: int
    fps: float | None
    is_exact: bool


@dataclass(frozen=True, slots=True)
class DecodeValues:
    """The frames of a latent frame, and what the decoder remembers."""

    frames_FYXP: Tensor
    memory: Memory


@dataclass(frozen=True, slots=True)
class DecodeOutputs:
    """What the loop hands on: frames in chunks, uint8 (F, Y, X, P)."""

    frames: tuple[Tensor, ...]


class DecodeLoop:
    """Decodes a video.

    Args:
        spec: The card's loop.
        model: The resident model, with `vae`.
    """

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> DecodeState:
        """Take the latents."""
        given = request.parameters.get("fps")
        fps = None if given is None else float(given)
        return DecodeState(request.inputs["latents"], fps, request.cancel_scope, request.profile, request.is_exact)

    def next(self, state: DecodeState) -> WorkPlan[DecodePayload] | Done:
        """Decode the next latent frame."""
        index, vae = len(state.frames), self._model.config("vae")
        _, _, num_frames, rows, columns = state.latents_1CTHW.shape
        if index == num_frames:
            return Done()
        made = 1 if index == 0 else vae.temporal_factor
        before = 0 if index == 0 else 1 + (index - 1) * vae.temporal_factor
        payload = DecodePayload(state.latents_1CTHW, index, state.memory, before, state.fps, state.is_exact)
        return make_plan(
            self._spec,
            self._model,
            state,
            payload,
            component="vae",
            kind=WorkKind.VAE_TILE,
            shape=ShapeSignature.of(first=int(index == 0), rows=rows, columns=columns),
            cost=frame_cost(vae, rows, columns, made),
            peak_bytes=frame_peak_bytes(vae, rows, columns, made),
            resident_bytes=3 * made * rows * columns * vae.spatial_factor**2,
            step_index=index,
            num_steps=num_frames,
            emits=() if state.fps is None else (EmitSpec(STREAM, "media"),),
        )

    def advance(self, state: DecodeState, result: StepResult[DecodeValues]) -> DecodeState:
        """Keep the frames."""
        state.frames = (*state.frames, result.values.frames_FYXP)
        state.memory = result.values.memory
        return state

    def apply(self, state: DecodeState, event: Any) -> DecodeState:
        """Refuse: decoding takes no outside event."""
        raise refuse_event("decoding", event)

    def finalize(self, state: DecodeState) -> LoopResult:
        """Hand the frames on."""
        return LoopResult({"frames": state.frames})


def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[DecodePayload]], ctx: StepContext
) -> Sequence[StepResult[DecodeValues]]:
    """Decode the next latent frame of each plan, as rows of one call."""
    vae: VideoVAE = instance.component("vae")
    payloads = [plan.payload for plan in plans]
    mixed = torch.cat([_mixed(vae, payload) for payload in payloads])
    pixels, memory = vae.decode_frame(mixed, stack_memories([payload.memory for payload in payloads]))
    ctx.tap("pixels", pixels)
    finite = torch.isfinite(pixels).flatten(1).all(dim=1).tolist()
    memories = split_memory(memory, len(payloads))
    return [_result(*one) for one in zip(payloads, pixels.split(1), memories, finite, strict=True)]


def _mixed(vae: VideoVAE, payload: DecodePayload) -> Tensor:
    weight, index = vae.post_quant_conv.weight, payload.index
    latents = payload.latents_1CTHW.to(weight.device, weight.dtype)
    if payload.is_exact:
        return vae.mix(latents)[:, :, index : index + 1]
    return vae.mix(latents[:, :, index : index + 1])


def _result(payload: DecodePayload, pixels_1PFYX: Tensor, memory: Memory, finite: bool) -> StepResult[DecodeValues]:
    if not finite:
        # Turned into bytes, NaN would be a black frame; the runtime ends the request instead.
        return StepResult(DecodeValues(torch.zeros(0, dtype=torch.uint8), memory), is_finite=False)
    frames = torch.from_numpy(pixels_to_frames(pixels_1PFYX[0]))
    if payload.fps is None:
        return StepResult(DecodeValues(frames, memory), is_finite=True)
    start = payload.num_frames_before
    chunk = StreamChunk(
        stream=STREAM,
        kind="media",
        index=payload.index,
        data=frames,
        start_s=start / payload.fps,
        end_s=(start + len(frames)) / payload.fps,
        is_final=payload.index + 1 == payload.latents_1CTHW.shape[2],
    )
    return StepResult(DecodeValues(frames, memory), is_finite=True, chunks=(chunk,))


@dataclass(frozen=True, slots=True)
class Waveform:
    """Sound.

    Attributes:
        samples: Float32 (C, N), in [-1, 1].
        sample_rate: Samples a second.
    """

    samples: Tensor
    sample_rate: int


@dataclass(slots=True)
class AudioState(LoopState):
    """State of decoding sound.

    Attributes:
        latents_CT: Latents.
        scope: What cancels it.
        profile: Serve, rollout or train.
        is_exact: Whether it has calls of its own.
        waveform: The result.
    """

    latents_CT: Tensor
    scope: CancelScope
    profile: Profile
    is_exact: bool
    waveform: Waveform | None = None


@dataclass(frozen=True, slots=True)
class AudioPayload:
    """Latents to decode."""

    latents_CT: Tensor


@dataclass(frozen=True, slots=True)
class AudioValues:
    """The sound."""

    waveform: Waveform


@dataclass(frozen=True, slots=True)
class AudioOutputs:
    """What the loop hands on."""

    sound: Waveform


class AudioLoop:
    """Decodes sound, in one step.

    Args:
        spec: The card's loop.
        model: The resident model, with `sound_tokenizer`.
    """

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> AudioState:
        """Take the latents."""
        return AudioState(request.inputs["latents"], request.cancel_scope, request.profile, request.is_exact)

    def next(self, state: AudioState) -> WorkPlan[AudioPayload] | Done:
        """Decode the sound."""
        if state.waveform is not None:
            return Done()
        config, frames = self._model.config("sound_tokenizer"), state.latents_CT.shape[1]
        cost = sound_cost(config, frames)
        return make_plan(
            self._spec,
            self._model,
            state,
            AudioPayload(state.latents_CT),
            component="sound_tokenizer",
            kind=WorkKind.AUDIO_CHUNK,
            shape=ShapeSignature.of(frames=frames),
            cost=cost,
            peak_bytes=int(cost.activation_bytes),
            resident_bytes=FLOAT_BYTES * config.dec_out_channels * frames * config.hop,
            step_index=0,
            num_steps=1,
        )

    def advance(self, state: AudioState, result: StepResult[AudioValues]) -> AudioState:
        """Keep the sound."""
        state.waveform = result.values.waveform
        return state

    def apply(self, state: AudioState, event: Any) -> AudioState:
        """Refuse: decoding takes no outside event."""
        raise refuse_event("decoding", event)

    def finalize(self, state: AudioState) -> LoopResult:
        """Hand the sound on."""
        return LoopResult({"sound": state.waveform})


def run_audio_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[AudioPayload]], ctx: StepContext
) -> Sequence[StepResult[AudioValues]]:
    """Decode the sound of each plan, as rows of one call."""
    decoder: SoundDecoder = instance.component("sound_tokenizer")
    weight = decoder.decoder.conv1.weight_v
    latents = torch.stack([plan.payload.latents_CT for plan in plans]).to(weight.device, weight.dtype)
    samples_BCN = decoder(latents).float()
    ctx.tap("sound", samples_BCN)
    # Clamped to [-1, 1], an infinity would look like sound: what goes in is looked at.
    finite = (
        torch.isfinite(latents).flatten(1).all(dim=1) & torch.isfinite(samples_BCN).flatten(1).all(dim=1)
    ).tolist()
    rate = decoder.config.sampling_rate
    return [
        StepResult(AudioValues(Waveform(row.clone(), rate)), is_finite=is_finite)
        for row, is_finite in zip(samples_BCN, finite, strict=True)
    ]
