"""VAE decoding as a loop: one latent frame a step; what the decoder remembers of the frame before is in the state.

Shape letters: B rows; C latent channels; T, H, W latent frames, rows, columns; F, Y, X pixel frames, rows, columns; P
pixel channels.
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
from fastvideo_core.loop.work import Done, EmitSpec, ShapeSignature, StepResult, StreamChunk, WorkKind, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.media.pixels import pixels_to_frames
from fastvideo_testing.tiny.plans import make_plan

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["DecodeLoop", "DecodeOutputs", "DecodePayload", "DecodeState", "DecodeValues", "run_step"]

STREAM = "video"


@dataclass(slots=True)
class DecodeState(LoopState):
    """State of decoding.

    Attributes:
        latents_1CTHW: All latents.
        fps: Frames a second, for the times of the stream.
        scope: What cancels it.
        is_exact: Whether requests are computed one by one.
        before_1CHW: The latent frame that was decoded last.
        frames_FYXP: What has been decoded, uint8, in chunks of a step each.
    """

    latents_1CTHW: torch.Tensor
    fps: float
    scope: CancelScope
    is_exact: bool
    before_1CHW: torch.Tensor | None = None
    frames_FYXP: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class DecodePayload:
    """One latent frame.

    Attributes:
        latent_1CHW: The frame.
        before_1CHW: The frame before it; None for the first.
        index: Its position.
        num_frames_before: Pixel frames decoded before.
        fps: Frames a second.
        is_last: Whether no other follows.
        is_exact: Whether requests are computed one by one.
    """

    latent_1CHW: torch.Tensor
    before_1CHW: torch.Tensor | None
    index: int
    num_frames_before: int
    fps: float
    is_last: bool
    is_exact: bool


@dataclass(frozen=True, slots=True)
class DecodeValues:
    """Decoded pixel frames, uint8, and the latent frame that the next step needs."""

    frames_FYXP: torch.Tensor
    before_1CHW: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecodeOutputs:
    """What the loop hands on: decoded frames, in chunks of a step each."""

    frames: tuple[torch.Tensor, ...]


class DecodeLoop:
    """Decodes the latents of a request."""

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> DecodeState:
        """Take the latents."""
        fps = float(request.parameters["fps"])
        return DecodeState(request.inputs["latents"], fps, request.cancel_scope, request.is_exact)

    def next(self, state: DecodeState) -> WorkPlan[DecodePayload] | Done:
        """Decode the next latent frame."""
        index = len(state.frames_FYXP)
        _, _, num_frames, rows, columns = state.latents_1CTHW.shape
        if index == num_frames:
            return Done()
        payload = DecodePayload(
            latent_1CHW=state.latents_1CTHW[:, :, index],
            before_1CHW=state.before_1CHW,
            index=index,
            num_frames_before=sum(len(chunk) for chunk in state.frames_FYXP),
            fps=state.fps,
            is_last=index + 1 == num_frames,
            is_exact=state.is_exact,
        )
        return make_plan(
            self._spec,
            self._model,
            payload,
            component="vae",
            kind=WorkKind.VAE_TILE,
            shape=ShapeSignature.of(rows=rows, columns=columns, first=int(index == 0)),
            flops=8192.0 * rows * columns,
            scope=state.scope,
            step_index=index,
            num_steps=num_frames,
            is_exact=state.is_exact,
            emits=(EmitSpec(STREAM, "media"),),
        )

    def advance(self, state: DecodeState, result: StepResult[DecodeValues]) -> DecodeState:
        """Keep the pixels, and what the next frame needs."""
        state.frames_FYXP = (*state.frames_FYXP, result.values.frames_FYXP)
        state.before_1CHW = result.values.before_1CHW
        return state

    def apply(self, state: DecodeState, event: Any) -> DecodeState:
        """Refuse: decoding takes no outside event."""
        raise InputError("decoding takes no events", field="event", value=type(event).__name__, allowed="none")

    def finalize(self, state: DecodeState) -> LoopResult:
        """Hand the frames on, in the chunks in which they were decoded."""
        return LoopResult({"frames": state.frames_FYXP})


def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[DecodePayload]], ctx: StepContext
) -> Sequence[StepResult[DecodeValues]]:
    """Decode a latent frame of each plan; first frames and others do not meet in a batch, exact ones are one by one."""
    payloads = [plan.payload for plan in plans]
    groups = [[payload] for payload in payloads] if payloads[0].is_exact else [payloads]
    pixels_BPFYX = torch.cat([_decode(instance.component("vae"), group) for group in groups])
    ctx.tap("pixels", pixels_BPFYX)
    return [_result(payload, pixels) for payload, pixels in zip(payloads, pixels_BPFYX, strict=True)]


def _decode(vae: Any, payloads: Sequence[DecodePayload]) -> torch.Tensor:
    weight = vae.mix.weight
    latents_BCHW = torch.cat([payload.latent_1CHW for payload in payloads]).to(weight.device, weight.dtype)
    before = [payload.before_1CHW for payload in payloads if payload.before_1CHW is not None]
    pixels_BPFYX: torch.Tensor = vae.decode_frame(
        latents_BCHW, torch.cat(before).to(weight.device, weight.dtype) if before else None
    )
    return pixels_BPFYX


def _result(payload: DecodePayload, pixels_PFYX: torch.Tensor) -> StepResult[DecodeValues]:
    if not bool(torch.isfinite(pixels_PFYX).all()):
        # As bytes, NaN would be a black frame; the runtime ends the request instead.
        values = DecodeValues(torch.empty(0, dtype=torch.uint8), payload.latent_1CHW)
        return StepResult(values, is_finite=False)
    frames_FYXP = torch.from_numpy(pixels_to_frames(pixels_PFYX))
    chunk = StreamChunk(
        stream=STREAM,
        kind="media",
        index=payload.index,
        data=frames_FYXP,
        start_s=payload.num_frames_before / payload.fps,
        end_s=(payload.num_frames_before + len(frames_FYXP)) / payload.fps,
        is_final=payload.is_last,
    )
    return StepResult(DecodeValues(frames_FYXP, payload.latent_1CHW), chunks=(chunk,))
