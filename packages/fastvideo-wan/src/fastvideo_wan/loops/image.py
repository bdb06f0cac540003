"""Conditioning images as loops: tokens of the image encoder (Wan 2.1), and latents of the known frames.

Shape letters: M image tokens; E encoder width; C channels; T, H, W frames, rows, columns; P pixel channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, StepContext
from fastvideo_core.loop.policies.conditioning import concat_condition, image_mask
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import (
    BatchKey,
    CachePlan,
    Done,
    PlacementHint,
    ResourceRequest,
    ShapeSignature,
    StepCost,
    StepResult,
    WorkKind,
    WorkPlan,
)
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.media.images import resize_image
from fastvideo_core.request.media.pixels import image_to_pixels
from fastvideo_wan.models.vae import mean_latents
from fastvideo_wan.models.vae_cache import FeatureCache

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = [
    "Condition",
    "ConditionEncodeLoop",
    "ConditionPayload",
    "ConditionState",
    "ConditionValues",
    "ImageEncodeLoop",
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
        cache: What the encoder remembers.
        moments: Encoded groups.
        condition: The result, after the last group.
    """

    image_1PHW: torch.Tensor
    groups: tuple[int, ...]
    num_frames: int
    is_blended: bool
    is_exact: bool
    scope: CancelScope
    cache: FeatureCache = field(default_factory=FeatureCache)
    moments: list[torch.Tensor] = field(default_factory=list)
    condition: Condition | None = None


@dataclass(frozen=True, slots=True)
class ConditionPayload:
    """Frames to encode.

    Attributes:
        image_1PHW: The first frame; all others are zeros.
        num_frames: Pixel frames of this step.
        total_frames: Pixel frames of the request.
        cache: What the encoder remembers.
        moments: Groups encoded before.
        is_last: Whether the condition is complete after this step.
        is_blended: See `ConditionState`.
        is_exact: See `ConditionState`.
    """

    image_1PHW: torch.Tensor
    num_frames: int
    total_frames: int
    cache: FeatureCache
    moments: tuple[torch.Tensor, ...]
    is_last: bool
    is_blended: bool
    is_exact: bool


@dataclass(frozen=True, slots=True)
class ConditionValues:
    """An encoded group, what the encoder remembers, and after the last group the condition."""

    moments_1CTHW: torch.Tensor
    cache: FeatureCache
    condition: Condition | None


class ConditionEncodeLoop:
    """Encodes the known first frame of an image-to-video request, in groups of frames.

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
        return ConditionState(image_1PHW, groups, num_frames, is_blended, request.is_exact, request.cancel_scope)

    def next(self, state: ConditionState) -> WorkPlan[ConditionPayload] | Done:
        """Encode the next group."""
        index = len(state.moments)
        if index == len(state.groups):
            return Done()
        payload = ConditionPayload(
            image_1PHW=state.image_1PHW,
            num_frames=state.groups[index],
            total_frames=state.num_frames,
            cache=state.cache,
            moments=tuple(state.moments),
            is_last=index + 1 == len(state.groups),
            is_blended=state.is_blended,
            is_exact=state.is_exact,
        )
        shape = ShapeSignature.of(
            frames=payload.num_frames, rows=state.image_1PHW.shape[-2], columns=state.image_1PHW.shape[-1]
        )
        cost = vae_cost(self._model.config("vae"), dict(shape.dims))
        variant = "exact" if state.is_exact else "fast"
        return _plan(
            self._spec, self._model, "vae", shape, cost, state.scope, payload, index, len(state.groups), variant
        )

    def advance(self, state: ConditionState, result: StepResult[ConditionValues]) -> ConditionState:
        """Keep an encoded group."""
        state.moments.append(result.values.moments_1CTHW)
        state.cache = result.values.cache
        state.condition = result.values.condition
        return state

    def apply(self, state: ConditionState, event: Any) -> ConditionState:
        """Refuse: it takes no outside event."""
        raise InputError("image encoding takes no events", field="event", value=type(event).__name__, allowed="none")

    def finalize(self, state: ConditionState) -> LoopResult:
        """Hand the condition on."""
        return LoopResult({"condition": state.condition})


def run_condition_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[ConditionPayload]], ctx: StepContext
) -> Sequence[StepResult[ConditionValues]]:
    """Encode one group of frames of each plan."""
    return [_encode_group(instance, plan.payload, ctx) for plan in plans]


def _encode_group(instance: ModelInstance, payload: ConditionPayload, ctx: StepContext) -> StepResult[ConditionValues]:
    vae = instance.component("vae")
    weight = vae.quant_conv.weight
    image = payload.image_1PHW.to(weight.device, weight.dtype)
    is_first = payload.cache.is_empty
    _, channels, height, width = image.shape
    frames = image.unsqueeze(2) if is_first else image.new_zeros(1, channels, payload.num_frames, height, width)
    moments, cache = vae.encode_frames(frames, payload.cache, is_exact=payload.is_exact)
    condition = _make_condition(vae, payload, [*payload.moments, moments]) if payload.is_last else None
    if condition is not None:
        ctx.tap("condition", condition.latents_1CTHW)
    is_finite = bool(torch.isfinite(moments).all())
    return StepResult(ConditionValues(moments, cache, condition), is_finite=is_finite)


def _make_condition(vae: Any, payload: ConditionPayload, moments: list[torch.Tensor]) -> Condition:
    latents = vae.normalize(mean_latents(torch.cat(moments, dim=2)).float())
    if payload.is_blended:
        return Condition(latents, num_known=latents.shape[2])
    mask = image_mask(
        payload.total_frames,
        height=latents.shape[3],
        width=latents.shape[4],
        temporal_factor=vae.config.temporal_factor,
        device=latents.device,
    )
    return Condition(concat_condition(mask, latents), num_known=0)


@dataclass(slots=True)
class ImageState(LoopState):
    """State of the image encoder's loop.

    Attributes:
        pixels_1PHW: Preprocessed image.
        scope: What cancels it.
        embeds_1ME: Its tokens.
    """

    pixels_1PHW: torch.Tensor
    scope: CancelScope
    embeds_1ME: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ImagePayload:
    """A preprocessed image."""

    pixels_1PHW: torch.Tensor


@dataclass(frozen=True, slots=True)
class ImageValues:
    """The image's tokens."""

    embeds_1ME: torch.Tensor


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
        return ImageState(pixels, request.cancel_scope)

    def next(self, state: ImageState) -> WorkPlan[ImagePayload] | Done:
        """Encode the image."""
        if state.embeds_1ME is not None:
            return Done()
        shape = ShapeSignature.of(rows=state.pixels_1PHW.shape[-2], columns=state.pixels_1PHW.shape[-1])
        cost = vision_cost(self._model.config("image_encoder"))
        payload = ImagePayload(state.pixels_1PHW)
        return _plan(self._spec, self._model, "image_encoder", shape, cost, state.scope, payload, 0, 1, "")

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
    """Encode the images of a batch; Wan takes the hidden states before the last layer."""
    encoder = instance.component("image_encoder")
    pixels = torch.cat([plan.payload.pixels_1PHW for plan in plans]).to(instance.device, encoder.dtype)
    embeds_BME = encoder(pixel_values=pixels, output_hidden_states=True).hidden_states[-2]
    ctx.tap("image_encoder", embeds_BME)
    finite = torch.isfinite(embeds_BME).flatten(1).all(dim=1).tolist()
    return [
        StepResult(ImageValues(row.clone()), is_finite=is_finite)
        for row, is_finite in zip(embeds_BME.split(1), finite, strict=True)
    ]


def vision_cost(config: Any) -> StepCost:
    """Return the cost of one image with a CLIP vision encoder of this transformers config."""
    tokens = (config.image_size // config.patch_size) ** 2 + 1
    weights = config.num_hidden_layers * (4 * config.hidden_size**2 + 2 * config.hidden_size * config.intermediate_size)
    scores = config.num_hidden_layers * 4 * tokens * tokens * config.hidden_size
    return StepCost(flops=2.0 * weights * tokens + scores, bytes_moved=4.0 * weights)


def vae_cost(config: Any, shape: dict[str, int]) -> StepCost:
    """Return the cost of a pass through half a VAE: its convolutions at full width and full resolution, from above.

    Args:
        config: The VAE's configuration.
        shape: Pixel `frames`, `rows` and `columns`.
    """
    voxels = shape["frames"] * shape["rows"] * shape["columns"] / config.patch_edge**2
    kernels = 27.0 * config.base_dim**2 * 2 * (config.num_res_blocks + 1) * len(config.dim_mult)
    return StepCost(flops=2.0 * kernels * voxels, bytes_moved=4.0 * voxels * config.base_dim * 8)


def _plan(
    spec: LoopSpec,
    model: ModelView,
    component: str,
    shape: ShapeSignature,
    cost: StepCost,
    scope: CancelScope,
    payload: Any,
    index: int,
    num_steps: int,
    variant: str,
) -> WorkPlan[Any]:
    return WorkPlan(
        loop_id=spec.loop_id,
        instance_id=model.instance_id,
        kind=WorkKind.ENCODER_CHUNK,
        shape_sig=shape,
        resources=ResourceRequest(cost),
        cache=CachePlan(),
        placement=PlacementHint(),
        cancel_scope=scope,
        emits=(),
        batch_key=BatchKey(
            instance_id=model.instance_id,
            component=component,
            loop_kind=spec.loop_id,
            shape_sig=shape,
            precision=model.precision,
            weights_version=model.weights_version,
            variant=variant,
        ),
        payload=payload,
        step_index=index,
        num_steps=num_steps,
    )
