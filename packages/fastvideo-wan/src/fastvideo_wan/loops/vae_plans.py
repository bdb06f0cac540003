"""What loops that encode or decode by groups of frames have in common: their plans, and the pieces of their streams."""

from __future__ import annotations

from typing import Protocol, TypeVar

from torch import Tensor

from fastvideo_core.card import LoopSpec
from fastvideo_core.loop.base import ModelView
from fastvideo_core.loop.plans import PlannedState, make_plan
from fastvideo_core.loop.work import ShapeSignature, StreamChunk, WorkKind, WorkPlan
from fastvideo_wan.loops.vae_costs import encode_cache_bytes, encode_cost, encode_peak_bytes

__all__ = ["STREAM", "GroupedState", "make_encode_plan", "make_media_chunk"]

PayloadT = TypeVar("PayloadT")

STREAM = "video"
"""The sink that decoded frames go to."""


class GroupedState(PlannedState, Protocol):
    """State of a loop that encodes a group of frames at each step."""

    groups: tuple[int, ...]
    features: list[Tensor]


def make_encode_plan(
    spec: LoopSpec, model: ModelView, state: GroupedState, payload: PayloadT, *, frames: int, rows: int, columns: int
) -> WorkPlan[PayloadT]:
    """Return the plan that encodes the next group, of so many frames of so many pixels."""
    vae, index = model.config("vae"), len(state.features)
    shape = ShapeSignature.of(frames=frames, rows=rows, columns=columns, first=int(index == 0))
    dims = dict(shape.dims)
    return make_plan(
        spec,
        model,
        state,
        payload,
        component="vae",
        kind=WorkKind.ENCODER_CHUNK,
        shape=shape,
        cost=encode_cost(vae, dims),
        peak_bytes=encode_peak_bytes(vae, dims, is_exact=state.is_exact),
        resident_bytes=encode_cache_bytes(vae, dims),
        step_index=index,
        num_steps=len(state.groups),
    )


def make_media_chunk(
    frames_FYXP: Tensor, *, index: int, num_frames_before: int, fps: float, is_final: bool
) -> StreamChunk:
    """Return a piece of the stream: uint8 frames, and the seconds that they cover."""
    start_s = num_frames_before / fps
    return StreamChunk(
        stream=STREAM,
        kind="media",
        index=index,
        data=frames_FYXP,
        start_s=start_s,
        end_s=start_s + len(frames_FYXP) / fps,
        is_final=is_final,
    )
