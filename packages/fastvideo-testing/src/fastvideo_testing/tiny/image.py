"""Encoding of the first frame as a loop of one step.

Shape letters: B rows; C latent channels; H, W latent rows, columns; P pixel channels; Y, X pixel rows, columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, StepContext
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import Done, ShapeSignature, StepResult, WorkKind, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.media.images import resize_image
from fastvideo_core.request.media.pixels import image_to_pixels
from fastvideo_testing.tiny.plans import make_plan

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["ImageLoop", "ImageOutputs", "ImagePayload", "ImageState", "ImageValues", "run_step"]


@dataclass(slots=True)
class ImageState(LoopState):
    """State of image encoding.

    Attributes:
        image_1PYX: The image in the video's size, in [-1, 1].
        scope: What cancels it.
        is_exact: Whether requests are computed one by one.
        condition_1CHW: The image as a latent frame.
    """

    image_1PYX: torch.Tensor
    scope: CancelScope
    is_exact: bool
    condition_1CHW: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ImagePayload:
    """An image in [-1, 1], and whether it is computed without the others of its call."""

    image_1PYX: torch.Tensor
    is_exact: bool


@dataclass(frozen=True, slots=True)
class ImageValues:
    """A latent frame."""

    condition_1CHW: torch.Tensor


@dataclass(frozen=True, slots=True)
class ImageOutputs:
    """What the loop hands on: the first latent frame."""

    condition: torch.Tensor


class ImageLoop:
    """Encodes the image that a video begins with."""

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> ImageState:
        """Bring the image to the video's size."""
        size = {"height": int(request.parameters["height"]), "width": int(request.parameters["width"])}
        pixels_PYX = image_to_pixels(resize_image(request.inputs["image"], **size))
        return ImageState(pixels_PYX.unsqueeze(0), request.cancel_scope, request.is_exact)

    def next(self, state: ImageState) -> WorkPlan[ImagePayload] | Done:
        """Encode the image."""
        if state.condition_1CHW is not None:
            return Done()
        _, _, height, width = state.image_1PYX.shape
        return make_plan(
            self._spec,
            self._model,
            ImagePayload(state.image_1PYX, state.is_exact),
            component="vae",
            kind=WorkKind.ENCODER_CHUNK,
            shape=ShapeSignature.of(rows=height, columns=width),
            flops=6.0 * height * width,
            scope=state.scope,
            step_index=0,
            num_steps=1,
            is_exact=state.is_exact,
        )

    def advance(self, state: ImageState, result: StepResult[ImageValues]) -> ImageState:
        """Keep the latent frame."""
        state.condition_1CHW = result.values.condition_1CHW
        return state

    def apply(self, state: ImageState, event: Any) -> ImageState:
        """Refuse: image encoding takes no outside event."""
        raise InputError("image encoding takes no events", field="event", value=type(event).__name__, allowed="none")

    def finalize(self, state: ImageState) -> LoopResult:
        """Hand the latent frame on."""
        return LoopResult({"condition": state.condition_1CHW})


def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[ImagePayload]], ctx: StepContext
) -> Sequence[StepResult[ImageValues]]:
    """Encode the images of a batch, which have one size; exact ones have a call of the VAE each."""
    images = [plan.payload.image_1PYX for plan in plans]
    groups = [[image] for image in images] if plans[0].payload.is_exact else [images]
    vae = instance.component("vae")
    weight = vae.from_pixels.weight
    latents = [vae.encode_image(torch.cat(group).to(weight.device, weight.dtype)).float() for group in groups]
    latents_BCHW = torch.cat(latents)
    ctx.tap("condition", latents_BCHW)
    return [StepResult(ImageValues(row)) for row in latents_BCHW.split(1)]
