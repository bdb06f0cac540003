"""Encoding what a stream goes on from: an image that stands still for a chunk, or the end of a video.

Shape letters: C latent channels; T, H, W latent frames, rows, columns; F, Y, X pixel frames, rows, columns; P pixel
channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import (
    LoopContext,
    LoopEstimate,
    LoopRequest,
    LoopResult,
    ModelView,
    StepContext,
    StepEstimate,
)
from fastvideo_core.loop.keys import batch_key
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import Done, Profile, ShapeSignature, StepResult, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.media.images import resize_image
from fastvideo_core.request.media.pixels import frames_to_pixels
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_wan.loops.chunk_options import rule_of
from fastvideo_wan.loops.vae_costs import encode_cache_bytes, encode_cost, encode_peak_bytes
from fastvideo_wan.loops.vae_plans import make_encode_plan
from fastvideo_wan.models.vae import mean_latents
from fastvideo_wan.models.vae_cache import FeatureCache

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance
    from fastvideo_wan.models.vae import WanVAE

__all__ = [
    "ClipEncodeLoop",
    "ClipOutputs",
    "ClipPayload",
    "ClipState",
    "ClipValues",
    "check_clip",
    "estimate_clip",
    "run_step",
]

_FLOAT_BYTES = 4


@dataclass(slots=True)
class ClipState(LoopState):
    """State of encoding a clip.

    Attributes:
        pixels_1PFYX: The clip, in [-1, 1].
        groups: Frames of each step.
        scope: What cancels it.
        profile: Serve, rollout or train.
        is_exact: Whether the reference's order of operations is kept.
        cache: What the encoder remembers.
        features: Encoded groups, before the last projection, which takes them all at once.
        latents_1CTHW: The result, normalized, after the last group.
    """

    pixels_1PFYX: torch.Tensor
    groups: tuple[int, ...]
    scope: CancelScope
    profile: Profile
    is_exact: bool
    cache: FeatureCache = field(default_factory=FeatureCache)
    features: list[torch.Tensor] = field(default_factory=list)
    latents_1CTHW: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ClipPayload:
    """Frames to encode.

    Attributes:
        pixels_1PFYX: The frames of this step.
        cache: What the encoder remembers.
        features: Groups encoded before.
        is_last: Whether the clip ends with them.
        is_exact: Whether the reference's order of operations is kept.
    """

    pixels_1PFYX: torch.Tensor
    cache: FeatureCache
    features: tuple[torch.Tensor, ...]
    is_last: bool
    is_exact: bool


@dataclass(frozen=True, slots=True)
class ClipValues:
    """An encoded group, what the encoder remembers, and after the last group the clip's latents."""

    features_1CTHW: torch.Tensor
    cache: FeatureCache
    latents_1CTHW: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class ClipOutputs:
    """What the loop hands on: normalized latents, (1, C, T, H, W), of whole chunks."""

    latents: torch.Tensor | None


class ClipEncodeLoop:
    """Encodes an image or the end of a video, as many frames as make whole chunks.

    Args:
        spec: The card's loop. Options: those of `chunk_options.rule_of`, and `max_step_pixels`, pixels of one step at
            most.
        model: The resident model, with `vae`.
    """

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> ClipState:
        """Bring the frames to the request's size and lay out the steps.

        Raises:
            InputError: The video is shorter than one chunk.
        """
        parameters = request.parameters
        frames = _frames(self._spec, self._model, request.inputs)
        size = {"height": int(parameters["height"]), "width": int(parameters["width"])}
        resized = np.stack([resize_image(frame, **size) for frame in frames])
        groups = _groups(self._spec, self._model, len(frames), parameters)
        return ClipState(
            frames_to_pixels(resized).unsqueeze(0), groups, request.cancel_scope, request.profile, request.is_exact
        )

    def next(self, state: ClipState) -> WorkPlan[ClipPayload] | Done:
        """Encode the next frames."""
        index = len(state.features)
        if index == len(state.groups):
            return Done()
        start = state.cache.frames_done
        pixels = state.pixels_1PFYX[:, :, start : start + state.groups[index]]
        is_last = index + 1 == len(state.groups)
        payload = ClipPayload(pixels, state.cache, tuple(state.features), is_last, state.is_exact)
        frames, rows, columns = pixels.shape[2:]
        return make_encode_plan(self._spec, self._model, state, payload, frames=frames, rows=rows, columns=columns)

    def advance(self, state: ClipState, result: StepResult[ClipValues]) -> ClipState:
        """Keep an encoded group."""
        state.features.append(result.values.features_1CTHW)
        state.cache = result.values.cache
        state.latents_1CTHW = result.values.latents_1CTHW
        return state

    def apply(self, state: ClipState, event: Any) -> ClipState:
        """Refuse: it takes no outside event."""
        raise InputError("encoding takes no events", field="event", value=type(event).__name__, allowed="none")

    def finalize(self, state: ClipState) -> LoopResult:
        """Hand the latents on."""
        return LoopResult({"latents": state.latents_1CTHW})


def check_clip(
    spec: LoopSpec,
    model: ModelView,
    parameters: ResolvedParameters,  # noqa: ARG001 - all checks take the same arguments
    inputs: Mapping[str, Any],
) -> Sequence[str]:
    """Refuse a video that is shorter than one chunk.

    Raises:
        InputError: It is.
    """
    _frames(spec, model, inputs)
    return ()


def estimate_clip(
    spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any], *, exact: bool
) -> LoopEstimate:
    """Return what encoding the clip needs."""
    vae, num_frames = model.config("vae"), _num_frames(spec, model, inputs)
    size = {"rows": int(parameters["height"]), "columns": int(parameters["width"])}
    shapes: dict[ShapeSignature, int] = {}
    for index, frames in enumerate(_groups(spec, model, num_frames, parameters)):
        shape = ShapeSignature.of(frames=frames, **size, first=int(index == 0))
        shapes[shape] = shapes.get(shape, 0) + 1
    steps = tuple(
        StepEstimate(
            batch_key(model, component="vae", loop_kind=spec.loop_id, shape=shape, is_exact=exact),
            encode_cost(vae, dict(shape.dims)),
            count,
        )
        for shape, count in shapes.items()
    )
    largest = dict(max(shapes, key=lambda shape: dict(shape.dims)["frames"]).dims)
    pixels = _FLOAT_BYTES * 3 * num_frames * size["rows"] * size["columns"]
    latents = _FLOAT_BYTES * vae.z_dim * num_frames * size["rows"] * size["columns"] // vae.spatial_factor**2
    return LoopEstimate(
        steps,
        resident_bytes=pixels + 3 * latents + encode_cache_bytes(vae, largest),
        peak_bytes=max(encode_peak_bytes(vae, dict(shape.dims), is_exact=exact) for shape in shapes),
        result_bytes=latents,
    )


def _frames(spec: LoopSpec, model: ModelView, inputs: Mapping[str, Any]) -> Any:
    """Return the frames to encode, uint8 (F, Y, X, P): an image for a chunk, or the last whole chunks of a video."""
    num_frames = _num_frames(spec, model, inputs)
    if "image" in inputs:
        return np.repeat(np.asarray(inputs["image"])[None], num_frames, axis=0)
    return np.asarray(inputs["video"].frames)[-num_frames:]


def _num_frames(spec: LoopSpec, model: ModelView, inputs: Mapping[str, Any]) -> int:
    rule, factor = rule_of(spec.options), model.config("vae").temporal_factor
    opening = (rule.num_frames(0) - 1) * factor + 1
    if "image" in inputs:
        return opening
    given = len(inputs["video"].frames)
    if given < opening:
        raise InputError(
            "the video is shorter than a chunk", field="video", value=f"{given} frames", allowed=f"{opening} or more"
        )
    chunk = rule.chunk_frames * factor
    return opening + (given - opening) // chunk * chunk


def _groups(spec: LoopSpec, model: ModelView, num_frames: int, parameters: Any) -> tuple[int, ...]:
    """Return the frames of each step: one, then as many as may be in a step."""
    factor = model.config("vae").temporal_factor
    pixels = int(parameters["height"]) * int(parameters["width"])
    size = max(1, int(spec.options["max_step_pixels"]) // pixels // factor) * factor
    later = num_frames - 1
    return (1, *(min(size, later - done) for done in range(0, later, size)))


def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[ClipPayload]], ctx: StepContext
) -> Sequence[StepResult[ClipValues]]:
    """Encode the next frames of each plan, as rows of one call; exact ones have a call each."""
    payloads = [plan.payload for plan in plans]
    vae: WanVAE = instance.component("vae")
    weight = vae.quant_conv.weight
    pixels = [payload.pixels_1PFYX.to(weight.device, weight.dtype) for payload in payloads]
    caches = [payload.cache for payload in payloads]
    if payloads[0].is_exact:
        encoded = [vae.encode_features(*one, is_exact=True) for one in zip(pixels, caches, strict=True)]
    else:
        encoded = vae.encode_many(pixels, caches)
    return [_result(vae, payload, *one, ctx) for payload, one in zip(payloads, encoded, strict=True)]


def _result(
    vae: WanVAE, payload: ClipPayload, features_1CTHW: torch.Tensor, cache: FeatureCache, ctx: StepContext
) -> StepResult[ClipValues]:
    if not payload.is_last:
        return StepResult(ClipValues(features_1CTHW, cache, None))
    features = torch.cat([*payload.features, features_1CTHW], dim=2)
    moments = vae.project_moments(features, is_exact=payload.is_exact)
    latents = vae.normalize(mean_latents(moments)).float()
    ctx.tap("clip", latents)
    return StepResult(ClipValues(features_1CTHW, cache, latents))
