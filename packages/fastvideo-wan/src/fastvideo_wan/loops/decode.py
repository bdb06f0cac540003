"""VAE decoding as a loop: a few latent frames a step, with the causal feature cache in the state.

Shape letters: C channels; T, H, W latent frames, rows, columns; F, Y, X pixel frames, rows, columns; P pixel channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, StepContext
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
from fastvideo_wan.loops.costs import vae_cost
from fastvideo_wan.loops.plans import make_plan
from fastvideo_wan.models.vae_cache import FeatureCache

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["DecodeLoop", "DecodeOutputs", "DecodePayload", "DecodeState", "DecodeValues", "run_step"]

STREAM = "video"


@dataclass(slots=True)
class DecodeState(LoopState):
    """State of decoding.

    Attributes:
        latents_1CTHW: Latents, normalized.
        frames_per_step: Latent frames that a step decodes.
        fps: Frames a second, for the times of the stream.
        is_exact: Whether the reference's order of operations is kept.
        scope: What cancels it.
        profile: Serve, rollout or train.
        frame_index: The next latent frame.
        cache: What the decoder remembers.
        frames: Decoded frames of each step, uint8 (F, Y, X, P).
    """

    latents_1CTHW: torch.Tensor
    frames_per_step: int
    fps: float
    is_exact: bool
    scope: CancelScope
    profile: Profile
    frame_index: int = 0
    cache: FeatureCache = field(default_factory=FeatureCache)
    frames: list[torch.Tensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DecodePayload:
    """Latent frames to decode.

    Attributes:
        latents_1CTHW: All latents of the request.
        start: First latent frame of this step.
        stop: The latent frame after the last one of this step.
        cache: What the decoder remembers.
        num_frames_before: Pixel frames decoded before.
        index: Position of this chunk in the stream.
        fps: Frames a second.
        is_exact: Whether the reference's order of operations is kept.
    """

    latents_1CTHW: torch.Tensor
    start: int
    stop: int
    cache: FeatureCache
    num_frames_before: int
    index: int
    fps: float
    is_exact: bool


@dataclass(frozen=True, slots=True)
class DecodeValues:
    """Decoded frames, uint8 (F, Y, X, P), and what the decoder remembers."""

    frames_FYXP: torch.Tensor
    cache: FeatureCache


@dataclass(frozen=True, slots=True)
class DecodeOutputs:
    """What the loop hands on: frames in chunks of a step each, uint8 (F, Y, X, P)."""

    frames: tuple[torch.Tensor, ...]


class DecodeLoop:
    """Decodes the latents of a request.

    Args:
        spec: The card's loop. Options: `max_step_pixels`: pixels of one step at most (a step is at least one latent
            frame), which bounds its memory and how long it keeps others waiting.
        model: The resident model, with `vae`.
    """

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> DecodeState:
        """Lay out the steps."""
        latents = request.inputs["latents"]
        return DecodeState(
            latents_1CTHW=latents,
            frames_per_step=1 if request.is_exact else self._frames_per_step(latents),
            fps=float(request.parameters["fps"]),
            is_exact=request.is_exact,
            scope=request.cancel_scope,
            profile=request.profile,
        )

    def next(self, state: DecodeState) -> WorkPlan[DecodePayload] | Done:
        """Decode the next latent frames."""
        num_latent_frames = state.latents_1CTHW.shape[2]
        if state.frame_index == num_latent_frames:
            return Done()
        stop = min(state.frame_index + state.frames_per_step, num_latent_frames)
        return self._plan(state, stop)

    def advance(self, state: DecodeState, result: StepResult[DecodeValues]) -> DecodeState:
        """Keep the frames."""
        state.frames.append(result.values.frames_FYXP)
        state.cache = result.values.cache
        state.frame_index = result.values.cache.frames_done
        return state

    def apply(self, state: DecodeState, event: Any) -> DecodeState:
        """Refuse: decoding takes no outside event."""
        raise InputError("decoding takes no events", field="event", value=type(event).__name__, allowed="none")

    def finalize(self, state: DecodeState) -> LoopResult:
        """Hand the frames on, in the chunks in which they were decoded."""
        return LoopResult({"frames": tuple(state.frames)})

    def _frames_per_step(self, latents_1CTHW: torch.Tensor) -> int:
        vae = self._model.config("vae")
        _, _, num_latent_frames, rows, columns = latents_1CTHW.shape
        pixels = rows * columns * vae.spatial_factor**2 * vae.temporal_factor
        return max(1, min(num_latent_frames, int(self._spec.options["max_step_pixels"]) // pixels))

    def _plan(self, state: DecodeState, stop: int) -> WorkPlan[DecodePayload]:
        vae = self._model.config("vae")
        _, _, num_latent_frames, rows, columns = state.latents_1CTHW.shape
        index = len(state.frames)
        shape = ShapeSignature.of(frames=stop - state.frame_index, rows=rows, columns=columns, first=int(index == 0))
        pixel_shape = {
            "frames": (stop - state.frame_index) * vae.temporal_factor,
            "rows": rows * vae.spatial_factor,
            "columns": columns * vae.spatial_factor,
        }
        num_before = 0 if index == 0 else (state.frame_index - 1) * vae.temporal_factor + 1
        payload = DecodePayload(
            state.latents_1CTHW, state.frame_index, stop, state.cache, num_before, index, state.fps, state.is_exact
        )
        return make_plan(
            self._spec,
            self._model,
            state,
            payload,
            component="vae",
            kind=WorkKind.VAE_TILE,
            shape=shape,
            cost=vae_cost(vae, pixel_shape),
            step_index=index,
            num_steps=-(-num_latent_frames // state.frames_per_step),
            emits=(EmitSpec(STREAM, "media"),),
        )


def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[DecodePayload]], ctx: StepContext
) -> Sequence[StepResult[DecodeValues]]:
    """Decode the next latent frames of each plan."""
    return [_decode(instance, plan.payload, ctx) for plan in plans]


def _decode(instance: ModelInstance, payload: DecodePayload, ctx: StepContext) -> StepResult[DecodeValues]:
    vae = instance.component("vae")
    weight = vae.post_quant_conv.weight
    # The reference's first convolution takes all latent frames at once; on small grids its bits depend on that.
    span = (payload.start, payload.stop) if payload.is_exact else None
    part = payload.latents_1CTHW if span else payload.latents_1CTHW[:, :, payload.start : payload.stop]
    latents = vae.denormalize(part.to(weight.device, weight.dtype))
    pixels_1PFYX, cache = vae.decode_frames(latents, payload.cache, is_exact=payload.is_exact, span=span)
    ctx.tap("pixels", pixels_1PFYX)
    if not bool(torch.isfinite(pixels_1PFYX).all()):
        # Turned into bytes, NaN would be a black frame; the runtime ends the request instead.
        return StepResult(DecodeValues(torch.empty(0, dtype=torch.uint8), cache), is_finite=False)
    frames = torch.from_numpy(pixels_to_frames(pixels_1PFYX[0]))
    start_s = payload.num_frames_before / payload.fps
    chunk = StreamChunk(
        stream=STREAM,
        kind="media",
        index=payload.index,
        data=frames,
        start_s=start_s,
        end_s=start_s + frames.shape[0] / payload.fps,
        is_final=payload.stop == payload.latents_1CTHW.shape[2],
    )
    return StepResult(DecodeValues(frames, cache), chunks=(chunk,))
