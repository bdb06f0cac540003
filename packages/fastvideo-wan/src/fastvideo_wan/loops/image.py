"""Conditioning images as loops: tokens of the image encoder (Wan 2.1), and latents of the known frames.

Shape letters: M image tokens; E encoder width; C channels; T, H, W frames, rows, columns; P pixel channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError, ParameterError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, StepContext
from fastvideo_core.loop.plans import make_plan
from fastvideo_core.loop.policies.conditioning import concat_condition, image_mask
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import Done, Profile, ShapeSignature, StepResult, WorkKind, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.media.images import resize_image
from fastvideo_core.request.media.pixels import image_to_pixels
from fastvideo_wan.loops.costs import vision_cost, vision_peak_bytes
from fastvideo_wan.loops.vae_plans import make_encode_plan
from fastvideo_wan.models.vae import mean_latents
from fastvideo_wan.models.vae_cache import FeatureCache

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance
    from fastvideo_wan.models.vae import WanVAE

__all__ = [
    "Condition",
    "ConditionEncodeLoop",
    "ConditionOutputs",
    "ConditionPayload",
    "ConditionState",
    "ConditionValues",
    "ImageEncodeLoop",
    "ImageOutputs",
    "ImagePayload",
    "ImageState",
    "ImageValues",
    "run_condition_step",
    "run_image_step",
]


@dataclass(frozen=True, slots=True)
class Condition:
    """What denoising is conditioned on.

    Attributes:
        latents_1CTHW: Normalized latents; as further input channels with their mask in front, or of the known frames.
        num_known: Latent frames that the latents replace; 0 where they are further channels.
    """

    latents_1CTHW: torch.Tensor
    num_known: int


@dataclass(slots=True)
class ConditionState(LoopState):
    """State of encoding the known frames.

    Attributes:
        image_1PHW: The first frame, in [-1, 1].
        groups: Numbers of pixel frames of each step: 1, then 4 each.
        num_frames: Pixel frames of the request.
        is_blended: Whether the latents replace known frames; else they are further channels.
        is_exact: Whether the reference's order of operations is kept.
        scope: What cancels it.
        profile: Serve, rollout or train.
        cache: What the encoder remembers.
        features: Encoded groups, before the last projection, which takes them all at once.
        condition: The result, after the last group.
        last_1PHW: The last frame, in [-1, 1], where it is known too.
    """

    image_1PHW: torch.Tensor
    groups: tuple[int, ...]
    num_frames: int
    is_blended: bool
    is_exact: bool
    scope: CancelScope
    profile: Profile
    cache: FeatureCache = field(default_factory=FeatureCache)
    features: list[torch.Tensor] = field(default_factory=list)
    condition: Condition | None = None
    last_1PHW: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ConditionPayload:
    """Frames to encode.

    Attributes:
        image_1PHW: The first frame; those after it are zeros.
        num_frames: Pixel frames of this step.
        total_frames: Pixel frames of the request.
        cache: What the encoder remembers.
        features: Groups encoded before.
        is_last: Whether the condition is complete after this step.
        is_blended: See `ConditionState`.
        is_exact: See `ConditionState`.
        last_1PHW: The last frame, where it is known and this is the last group.
    """

    image_1PHW: torch.Tensor
    num_frames: int
    total_frames: int
    cache: FeatureCache
    features: tuple[torch.Tensor, ...]
    is_last: bool
    is_blended: bool
    is_exact: bool
    last_1PHW: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ConditionValues:
    """An encoded group, what the encoder remembers, and after the last group the condition."""

    features_1CTHW: torch.Tensor
    cache: FeatureCache
    condition: Condition | None


@dataclass(frozen=True, slots=True)
class ConditionOutputs:
    """What the loop hands on."""

    condition: Condition | None


class ConditionEncodeLoop:
    """Encodes the known first frame of an image-to-video request, or its first and last, in groups of frames.

    Args:
        spec: The card's loop. Options: `is_blended`: latents of the image alone take the first frame's place (Wan 2.2
            5B); else the image with zeros after it is encoded and added as channels.
        model: The resident model, with `vae`.
    """

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> ConditionState:
        """Resize the image to the request's size and lay out the groups."""
        parameters = request.parameters
        resized = resize_image(request.inputs["image"], height=parameters["height"], width=parameters["width"])
        is_blended = bool(self._spec.options.get("is_blended", False))
        num_frames = 1 if is_blended else int(parameters["num_frames"])
        factor = self._model.config("vae").temporal_factor
        groups = (1, *(factor,) * ((num_frames - 1) // factor))
        image_1PHW = image_to_pixels(resized).unsqueeze(0)
        state = ConditionState(
            image_1PHW, groups, num_frames, is_blended, request.is_exact, request.cancel_scope, request.profile
        )
        last = request.inputs.get("last_image")
        if last is not None:
            _check_room(num_frames)
            resized = resize_image(last, height=parameters["height"], width=parameters["width"])
            state.last_1PHW = image_to_pixels(resized).unsqueeze(0)
        return state

    def next(self, state: ConditionState) -> WorkPlan[ConditionPayload] | Done:
        """Encode the next group."""
        index = len(state.features)
        if index == len(state.groups):
            return Done()
        payload = ConditionPayload(
            image_1PHW=state.image_1PHW,
            num_frames=state.groups[index],
            total_frames=state.num_frames,
            cache=state.cache,
            features=tuple(state.features),
            is_last=index + 1 == len(state.groups),
            is_blended=state.is_blended,
            is_exact=state.is_exact,
            last_1PHW=state.last_1PHW if index + 1 == len(state.groups) else None,
        )
        frames, (rows, columns) = payload.num_frames, state.image_1PHW.shape[-2:]
        return make_encode_plan(self._spec, self._model, state, payload, frames=frames, rows=rows, columns=columns)

    def advance(self, state: ConditionState, result: StepResult[ConditionValues]) -> ConditionState:
        """Keep an encoded group."""
        state.features.append(result.values.features_1CTHW)
        state.cache = result.values.cache
        state.condition = result.values.condition
        return state

    def apply(self, state: ConditionState, event: Any) -> ConditionState:
        """Refuse: it takes no outside event."""
        raise InputError("image encoding takes no events", field="event", value=type(event).__name__, allowed="none")

    def finalize(self, state: ConditionState) -> LoopResult:
        """Hand the condition on."""
        return LoopResult({"condition": state.condition})


def _check_room(num_frames: int) -> None:
    if num_frames < 2:
        raise ParameterError(
            "a first and a last frame are two", field="num_frames", value=num_frames, allowed="at least 2", nearest=5
        )


def run_condition_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[ConditionPayload]], ctx: StepContext
) -> Sequence[StepResult[ConditionValues]]:
    """Encode one group of frames of each plan, as rows of one call; exact ones have a call each."""
    payloads = [plan.payload for plan in plans]
    vae: WanVAE = instance.component("vae")
    groups, caches = [_group(vae, payload) for payload in payloads], [payload.cache for payload in payloads]
    if payloads[0].is_exact:
        encoded = [vae.encode_features(*one, is_exact=True) for one in zip(groups, caches, strict=True)]
    else:
        encoded = vae.encode_many(groups, caches)
    return [_group_result(vae, payload, *one, ctx) for payload, one in zip(payloads, encoded, strict=True)]


def _group(vae: WanVAE, payload: ConditionPayload) -> torch.Tensor:
    """Return the frames to encode: the image, and zeros after it, but for a last frame that is known."""
    weight = vae.quant_conv.weight
    image = payload.image_1PHW.to(weight.device, weight.dtype)
    if payload.cache.is_empty:
        return image.unsqueeze(2)
    frames = image.new_zeros(*image.shape[:2], payload.num_frames, *image.shape[2:])
    if payload.last_1PHW is not None:
        frames[:, :, -1] = payload.last_1PHW.to(image)
    return frames


def _group_result(
    vae: WanVAE, payload: ConditionPayload, features_1CTHW: torch.Tensor, cache: FeatureCache, ctx: StepContext
) -> StepResult[ConditionValues]:
    condition = _make_condition(vae, payload, [*payload.features, features_1CTHW]) if payload.is_last else None
    if condition is not None:
        ctx.tap("condition", condition.latents_1CTHW)
    is_finite = bool(torch.isfinite(features_1CTHW).all())
    return StepResult(ConditionValues(features_1CTHW, cache, condition), is_finite=is_finite)


def _make_condition(vae: Any, payload: ConditionPayload, features: list[torch.Tensor]) -> Condition:
    moments = vae.project_moments(torch.cat(features, dim=2), is_exact=payload.is_exact)
    latents = vae.normalize(mean_latents(moments).float())
    if payload.is_blended:
        return Condition(latents, num_known=latents.shape[2])
    mask = image_mask(
        payload.total_frames,
        height=latents.shape[3],
        width=latents.shape[4],
        temporal_factor=vae.config.temporal_factor,
        has_last_frame=payload.last_1PHW is not None,
        device=latents.device,
    )
    return Condition(concat_condition(mask, latents), num_known=0)


@dataclass(slots=True)
class ImageState(LoopState):
    """State of the image encoder's loop.

    Attributes:
        pixels_1PHW: Preprocessed image.
        is_exact: Whether the reference's order of operations is kept.
        scope: What cancels it.
        profile: Serve, rollout or train.
        embeds_1ME: Its tokens.
    """

    pixels_1PHW: torch.Tensor
    is_exact: bool
    scope: CancelScope
    profile: Profile
    embeds_1ME: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ImagePayload:
    """A preprocessed image; an exact one has a call of its own."""

    pixels_1PHW: torch.Tensor
    is_exact: bool


@dataclass(frozen=True, slots=True)
class ImageValues:
    """The image's tokens."""

    embeds_1ME: torch.Tensor


@dataclass(frozen=True, slots=True)
class ImageOutputs:
    """What the loop hands on: the image's tokens, (1, M, E)."""

    embeds: torch.Tensor | None


class ImageEncodeLoop:
    """Encodes an image with the vision encoder, in one step.

    Args:
        spec: The card's loop.
        model: The resident model, with `image_processor` and `image_encoder`.
    """

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> ImageState:
        """Preprocess the image."""
        pixels = self._model.component("image_processor")(request.inputs["image"])
        return ImageState(pixels, request.is_exact, request.cancel_scope, request.profile)

    def next(self, state: ImageState) -> WorkPlan[ImagePayload] | Done:
        """Encode the image."""
        if state.embeds_1ME is not None:
            return Done()
        shape = ShapeSignature.of(rows=state.pixels_1PHW.shape[-2], columns=state.pixels_1PHW.shape[-1])
        return make_plan(
            self._spec,
            self._model,
            state,
            ImagePayload(state.pixels_1PHW, state.is_exact),
            component="image_encoder",
            kind=WorkKind.ENCODER_CHUNK,
            shape=shape,
            cost=vision_cost(self._model.config("image_encoder")),
            peak_bytes=vision_peak_bytes(self._model.config("image_encoder")),
            step_index=0,
            num_steps=1,
        )

    def advance(self, state: ImageState, result: StepResult[ImageValues]) -> ImageState:
        """Keep the tokens."""
        state.embeds_1ME = result.values.embeds_1ME
        return state

    def apply(self, state: ImageState, event: Any) -> ImageState:
        """Refuse: it takes no outside event."""
        raise InputError("image encoding takes no events", field="event", value=type(event).__name__, allowed="none")

    def finalize(self, state: ImageState) -> LoopResult:
        """Hand the tokens on."""
        return LoopResult({"embeds": state.embeds_1ME})


def run_image_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[ImagePayload]], ctx: StepContext
) -> Sequence[StepResult[ImageValues]]:
    """Encode the images of a batch in one call, exact ones in a call each."""
    payloads = [plan.payload for plan in plans]
    groups = [[payload] for payload in payloads] if payloads[0].is_exact else [payloads]
    return [result for group in groups for result in _encode_images(instance, group, ctx)]


def _encode_images(
    instance: ModelInstance, payloads: Sequence[ImagePayload], ctx: StepContext
) -> list[StepResult[ImageValues]]:
    """Return the images' tokens; Wan takes the hidden states before the last layer."""
    encoder = instance.component("image_encoder")
    pixels = torch.cat([payload.pixels_1PHW for payload in payloads]).to(instance.device, encoder.dtype)
    embeds_BME = encoder(pixel_values=pixels, output_hidden_states=True).hidden_states[-2]
    ctx.tap("image_encoder", embeds_BME)
    finite = torch.isfinite(embeds_BME).flatten(1).all(dim=1).tolist()
    return [
        StepResult(ImageValues(row.clone()), is_finite=is_finite)
        for row, is_finite in zip(embeds_BME.split(1), finite, strict=True)
    ]
