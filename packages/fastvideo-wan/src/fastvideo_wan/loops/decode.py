"""VAE decoding as a loop: a few latent frames a step, or a tile of them, with the causal feature cache in the state.

Shape letters: C channels; T, H, W latent frames, rows, columns; F, Y, X pixel frames, rows, columns; P pixel channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, OutOfMemory, StepContext
from fastvideo_core.loop.plans import make_plan
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import (
    Done,
    EmitSpec,
    Profile,
    ShapeSignature,
    StepResult,
    WorkKind,
    WorkPlan,
)
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.media.pixels import pixels_to_frames
from fastvideo_wan.loops.vae_costs import decode_cache_bytes, decode_cost, decode_peak_bytes, decoded_bytes
from fastvideo_wan.loops.vae_plans import STREAM, make_media_chunk
from fastvideo_wan.models.vae_cache import FeatureCache
from fastvideo_wan.models.vae_tiling import (
    DEFAULT_TILE_PIXELS,
    TilePlan,
    blend_tiles,
    crop_latents,
    smaller_edge,
    square_tiles,
    tile_caches,
)

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance
    from fastvideo_wan.models.vae import WanVAE
    from fastvideo_wan.models.vae_config import WanVAEConfig

__all__ = [
    "DecodeLoop",
    "DecodeOutputs",
    "DecodePayload",
    "DecodeState",
    "DecodeValues",
    "DecodedTile",
    "frames_per_step",
    "run_step",
]


@dataclass(frozen=True, slots=True)
class DecodedTile:
    """A tile of the frames in progress: its pixels, not clamped, and what its decoder remembers after them."""

    pixels_1PFYX: torch.Tensor
    cache: FeatureCache


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
        tile_pixels: Edge of the tiles; 0 decodes whole frames.
        frame_index: The next latent frame.
        caches: What the decoder remembers before it, for each tile.
        cache_tile_pixels: Edge of the tiles that `caches` are of.
        tiles: Tiles of the frames in progress that are decoded.
        num_planned: Steps committed.
        frames: Decoded frames of each chunk, uint8 (F, Y, X, P).
    """

    latents_1CTHW: torch.Tensor
    frames_per_step: int
    fps: float
    is_exact: bool
    scope: CancelScope
    profile: Profile
    tile_pixels: int = 0
    frame_index: int = 0
    caches: tuple[FeatureCache, ...] = field(default_factory=lambda: (FeatureCache(),))
    cache_tile_pixels: int = 0
    tiles: list[DecodedTile] = field(default_factory=list)
    num_planned: int = 0
    frames: list[torch.Tensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DecodePayload:
    """Latent frames to decode, whole or a tile of them.

    Attributes:
        latents_1CTHW: All latents of the request.
        start: First latent frame of this step.
        stop: The latent frame after the last one of this step.
        tile_pixels: Edge of the tiles; 0 for whole frames.
        tile: Which tile.
        caches: What the decoder remembers, for each tile of `cache_tile_pixels`.
        cache_tile_pixels: Edge of the tiles that `caches` are of.
        tiles_before: Pixels of the tiles decoded before, with the last tile; the step then joins them.
        is_last_tile: Whether the frames are complete after this step.
        num_frames_before: Pixel frames decoded before.
        index: Position of these frames in the stream.
        fps: Frames a second.
        is_exact: Whether the reference's order of operations is kept.
    """

    latents_1CTHW: torch.Tensor
    start: int
    stop: int
    tile_pixels: int
    tile: int
    caches: tuple[FeatureCache, ...]
    cache_tile_pixels: int
    tiles_before: tuple[torch.Tensor, ...]
    is_last_tile: bool
    num_frames_before: int
    index: int
    fps: float
    is_exact: bool


@dataclass(frozen=True, slots=True)
class DecodeValues:
    """What a step made.

    Attributes:
        tile: The tile.
        frames_FYXP: The frames, uint8, where they are complete.
    """

    tile: DecodedTile
    frames_FYXP: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecodeOutputs:
    """What the loop hands on: frames in chunks, uint8 (F, Y, X, P)."""

    frames: tuple[torch.Tensor, ...]


class DecodeLoop:
    """Decodes the latents of a request.

    Out of memory, it goes on with fewer frames a step, then with tiles, then with smaller ones, from the latents and
    memories that it has; an exact decode does not, since tiles change bits.

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
        wants_tiles = bool(request.parameters.get("vae_tiling"))
        return DecodeState(
            latents_1CTHW=latents,
            frames_per_step=1 if request.is_exact else self._frames_per_step(latents),
            fps=float(request.parameters["fps"]),
            is_exact=request.is_exact,
            scope=request.cancel_scope,
            profile=request.profile,
            tile_pixels=DEFAULT_TILE_PIXELS if wants_tiles else 0,
        )

    def next(self, state: DecodeState) -> WorkPlan[DecodePayload] | Done:
        """Decode the next tile, or the next latent frames whole."""
        num_latent_frames = state.latents_1CTHW.shape[2]
        if state.frame_index == num_latent_frames:
            return Done()
        stop = min(state.frame_index + state.frames_per_step, num_latent_frames)
        return self._plan(state, stop)

    def advance(self, state: DecodeState, result: StepResult[DecodeValues]) -> DecodeState:
        """Keep a tile, or the frames that it completes."""
        values = result.values
        state.num_planned += 1
        state.tiles.append(values.tile)
        if values.frames_FYXP is not None:
            state.frames.append(values.frames_FYXP)
            state.caches = tuple(tile.cache for tile in state.tiles)
            state.cache_tile_pixels = state.tile_pixels
            state.frame_index = values.tile.cache.frames_done
            state.tiles = []
        return state

    def apply(self, state: DecodeState, event: Any) -> DecodeState:
        """Ask for less memory when told that there is not enough; the frames in progress begin anew.

        Raises:
            InputError: It is another event, or no smaller step gives the result that was asked for.
        """
        if not isinstance(event, OutOfMemory):
            name = type(event).__name__
            raise InputError("decoding takes no such event", field="event", value=name, allowed="OutOfMemory")
        size = _latent_size(state)
        edge = smaller_edge(self._model.config("vae"), size, state.tile_pixels)
        if state.is_exact or (state.frames_per_step == 1 and edge == 0):
            why = "an exact decode has no smaller steps" if state.is_exact else "there is no smaller step"
            raise InputError(why, field="event", value="OutOfMemory", allowed="more memory")
        if state.frames_per_step > 1:
            state.frames_per_step = 1
        else:
            state.tile_pixels = edge
        state.tiles = []
        return state

    def finalize(self, state: DecodeState) -> LoopResult:
        """Hand the frames on, in the chunks in which they were decoded."""
        return LoopResult({"frames": tuple(state.frames)})

    def _frames_per_step(self, latents_1CTHW: torch.Tensor) -> int:
        return frames_per_step(self._spec, self._model.config("vae"), latents_1CTHW.shape)

    def _plan(self, state: DecodeState, stop: int) -> WorkPlan[DecodePayload]:
        vae = self._model.config("vae")
        plan = square_tiles(vae, _latent_size(state), state.tile_pixels)
        rows, columns = plan.tiles[len(state.tiles)]
        num_frames, index = stop - state.frame_index, len(state.frames)
        shape = ShapeSignature.of(
            frames=num_frames,
            rows=rows.stop - rows.start,
            columns=columns.stop - columns.start,
            first=int(state.frame_index == 0),
        )
        payload = self._payload(state, stop, num_tiles=len(plan.tiles), index=index)
        later = -(-(state.latents_1CTHW.shape[2] - stop) // state.frames_per_step)
        return make_plan(
            self._spec,
            self._model,
            state,
            payload,
            component="vae",
            kind=WorkKind.VAE_TILE,
            shape=shape,
            cost=decode_cost(vae, dict(shape.dims)),
            peak_bytes=decode_peak_bytes(vae, dict(shape.dims), is_exact=state.is_exact),
            resident_bytes=decode_cache_bytes(vae, dict(shape.dims)) + decoded_bytes(vae, dict(shape.dims)),
            step_index=state.num_planned,
            num_steps=state.num_planned + len(plan.tiles) * (later + 1) - len(state.tiles),
            emits=(EmitSpec(STREAM, "media"),) if payload.is_last_tile else (),
        )

    def _payload(self, state: DecodeState, stop: int, *, num_tiles: int, index: int) -> DecodePayload:
        factor = self._model.config("vae").temporal_factor
        is_last_tile = len(state.tiles) + 1 == num_tiles
        return DecodePayload(
            latents_1CTHW=state.latents_1CTHW,
            start=state.frame_index,
            stop=stop,
            tile_pixels=state.tile_pixels,
            tile=len(state.tiles),
            caches=state.caches,
            cache_tile_pixels=state.cache_tile_pixels,
            tiles_before=tuple(tile.pixels_1PFYX for tile in state.tiles) if is_last_tile else (),
            is_last_tile=is_last_tile,
            num_frames_before=0 if state.frame_index == 0 else (state.frame_index - 1) * factor + 1,
            index=index,
            fps=state.fps,
            is_exact=state.is_exact,
        )


def frames_per_step(spec: LoopSpec, vae: WanVAEConfig, latent_shape: Sequence[int]) -> int:
    """Return how many latent frames a step decodes, of latents of a shape (1, C, T, H, W)."""
    _, _, num_latent_frames, rows, columns = latent_shape
    pixels = rows * columns * vae.spatial_factor**2 * vae.temporal_factor
    return max(1, min(num_latent_frames, int(spec.options["max_step_pixels"]) // pixels))


def _latent_size(state: DecodeState) -> tuple[int, int]:
    return state.latents_1CTHW.shape[3], state.latents_1CTHW.shape[4]


def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[DecodePayload]], ctx: StepContext
) -> Sequence[StepResult[DecodeValues]]:
    """Decode the next latent frames of each plan, as rows of one call; exact ones have a call each."""
    payloads = [plan.payload for plan in plans]
    vae: WanVAE = instance.component("vae")
    if payloads[0].is_exact:
        decoded = [_decode_exact(vae, payload) for payload in payloads]
    else:
        decoded = vae.decode_many(
            [_latents(vae, payload)[:, :, payload.start : payload.stop] for payload in payloads],
            [_cache(vae, payload) for payload in payloads],
        )
    return [_finish(vae, payload, *one, ctx) for payload, one in zip(payloads, decoded, strict=True)]


def _decode_exact(vae: WanVAE, payload: DecodePayload) -> tuple[torch.Tensor, FeatureCache]:
    # The reference's first convolution takes all latent frames at once; on small grids its bits depend on that.
    span = (payload.start, payload.stop)
    return vae.decode_frames(_latents(vae, payload), _cache(vae, payload), is_exact=True, span=span)


def _latents(vae: WanVAE, payload: DecodePayload) -> torch.Tensor:
    """Return the latents of the tile, not normalized, all frames."""
    weight = vae.post_quant_conv.weight
    tile = _tile_plan(vae, payload).tiles[payload.tile]
    return vae.denormalize(crop_latents(payload.latents_1CTHW, tile).to(weight.device, weight.dtype))


def _cache(vae: WanVAE, payload: DecodePayload) -> FeatureCache:
    size = (payload.latents_1CTHW.shape[3], payload.latents_1CTHW.shape[4])
    edges = {"before": payload.cache_tile_pixels, "edge": payload.tile_pixels}
    return tile_caches(vae.config, size, payload.caches, **edges)[payload.tile]


def _tile_plan(vae: WanVAE, payload: DecodePayload) -> TilePlan:
    size = (payload.latents_1CTHW.shape[3], payload.latents_1CTHW.shape[4])
    return square_tiles(vae.config, size, payload.tile_pixels)


def _finish(
    vae: WanVAE, payload: DecodePayload, pixels_1PFYX: torch.Tensor, cache: FeatureCache, ctx: StepContext
) -> StepResult[DecodeValues]:
    """Turn complete frames into bytes and a chunk of the stream; keep the pixels of a tile as they are."""
    if not bool(torch.isfinite(pixels_1PFYX).all()):
        # Turned into bytes, NaN would be a black frame; the runtime ends the request instead.
        return StepResult(DecodeValues(DecodedTile(pixels_1PFYX[:0], cache), None), is_finite=False)
    if not payload.is_last_tile:
        return StepResult(DecodeValues(DecodedTile(pixels_1PFYX, cache), None))
    whole = pixels_1PFYX
    if payload.tiles_before:
        whole = blend_tiles(_tile_plan(vae, payload), [*payload.tiles_before, pixels_1PFYX])
    ctx.tap("pixels", whole)
    frames = torch.from_numpy(pixels_to_frames(whole[0]))
    chunk = make_media_chunk(
        frames,
        index=payload.index,
        num_frames_before=payload.num_frames_before,
        fps=payload.fps,
        is_final=payload.stop == payload.latents_1CTHW.shape[2],
    )
    return StepResult(DecodeValues(DecodedTile(pixels_1PFYX[:0], cache), frames), chunks=(chunk,))
