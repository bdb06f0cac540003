"""What each loop of a request will need, before it starts: from the card's options, the request and configurations."""

# ruff: noqa: ARG001 - every estimator takes the same arguments

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fastvideo_core.card import LoopSpec
from fastvideo_core.loop.base import BranchEstimate, LoopEstimate, ModelView, StepEstimate
from fastvideo_core.loop.behavior import behavior_bytes
from fastvideo_core.loop.keys import batch_key
from fastvideo_core.loop.policies.conditioning import num_latent_frames
from fastvideo_core.loop.samplers import get_sampler, samplers_of
from fastvideo_core.loop.work import ShapeSignature, StepCost
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_wan.loops.costs import (
    IMAGE_TOKENS,
    num_video_tokens,
    text_cost,
    text_peak_bytes,
    vision_cost,
    vision_peak_bytes,
)
from fastvideo_wan.loops.decode import frames_per_step
from fastvideo_wan.loops.denoise import StepNeeds, context_needs, schedule_spec, step_needs
from fastvideo_wan.loops.guidance import guidance_of
from fastvideo_wan.loops.text import text_bucket, tokenize_all
from fastvideo_wan.loops.vae_costs import (
    decode_cache_bytes,
    decode_cost,
    decode_peak_bytes,
    decoded_bytes,
    encode_cache_bytes,
    encode_cost,
    encode_peak_bytes,
)
from fastvideo_wan.models.vae_tiling import DEFAULT_TILE_PIXELS, square_tiles

__all__ = ["estimate_condition", "estimate_decode", "estimate_denoise", "estimate_text", "estimate_vision"]

_FLOAT_BYTES = 4


def estimate_text(
    spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any], *, exact: bool
) -> LoopEstimate:
    """Return what encoding the prompts needs."""
    config, length = model.config("text_encoder"), int(spec.options["text_length"])
    lengths = [len(ids) for ids in tokenize_all(spec, model, parameters, inputs).values()]
    padded = [length if exact else text_bucket(number, length) for number in lengths]
    steps = tuple(
        _step(spec, model, "text_encoder", ShapeSignature.of(tokens=tokens), text_cost(config, tokens), 1, exact=exact)
        for tokens in padded
    )
    result = _FLOAT_BYTES * config.d_model * sum(lengths)
    peak = max(text_peak_bytes(config, tokens) for tokens in padded)
    return LoopEstimate(steps, resident_bytes=result, peak_bytes=peak, result_bytes=result)


def estimate_denoise(
    spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any], *, exact: bool
) -> LoopEstimate:
    """Return what denoising needs, the prompts' keys and values of every expert that runs included."""
    options, vae = spec.options, model.config("vae")
    guidance = guidance_of(options, parameters, is_exact=exact)
    sampler = get_sampler(str(parameters["sampler"]), samplers_of(model))
    schedule = sampler.make_schedule(schedule_spec(spec, parameters, sampler))
    shape = _latent_shape(vae, parameters)
    length, num_rows = int(options["text_length"]), len(guidance.branches)
    indices = range(schedule.begin, schedule.num_steps)
    experts = [guidance.experts.route(schedule.timestep_values[index], index).component for index in indices]
    steps, kept, peak, stream = [], 0, 0, 0
    for name in dict.fromkeys(experts):
        config = model.config(name)
        context = context_needs(config, length, num_rows, length=length)
        step = step_needs(config, shape, text_tokens=length, num_rows=num_rows, is_exact=exact)
        steps += [
            _kind(spec, model, name, "context", context, 1, exact=exact),
            _kind(spec, model, name, "step", step, experts.count(name), exact=exact),
        ]
        tokens = num_video_tokens(config, dict(step.shape.dims))
        kept += context.resident_bytes + 2 * _FLOAT_BYTES * tokens * config.attention_head_dim
        stream = max(stream, _FLOAT_BYTES * tokens * config.inner_dim)
        peak = max(peak, context.peak_bytes, step.peak_bytes)
    sample = _FLOAT_BYTES * math.prod(shape)
    num_noises = sum(sampler.needs_noise(schedule, index) for index in indices)
    # The sample, what the sampler remembers (as many predictions as its order, and a sample), noises, a condition.
    resident = kept + sample * (2 + schedule.order + num_noises + 2)
    behavior = behavior_bytes(len(indices), sample)
    return LoopEstimate(
        tuple(steps),
        resident_bytes=resident,
        peak_bytes=peak,
        result_bytes=sample,
        behavior_bytes=behavior,
        branches=BranchEstimate(num_rows, len(set(experts)), sample, stream),
    )


def estimate_decode(
    spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any], *, exact: bool
) -> LoopEstimate:
    """Return what decoding needs, in tiles where the request asks for them."""
    vae = model.config("vae")
    shape = _latent_shape(vae, parameters)
    tiles = square_tiles(vae, shape[2:], DEFAULT_TILE_PIXELS if parameters.get("vae_tiling") else 0).tiles
    num_frames = 1 if exact else frames_per_step(spec, vae, (1, *shape))
    counts: dict[ShapeSignature, int] = {}
    for start in range(0, shape[1], num_frames):
        for rows, columns in tiles:
            tile = ShapeSignature.of(
                frames=min(num_frames, shape[1] - start),
                rows=rows.stop - rows.start,
                columns=columns.stop - columns.start,
                first=int(start == 0),
            )
            counts[tile] = counts.get(tile, 0) + 1
    steps = tuple(
        _step(spec, model, "vae", tile, decode_cost(vae, dict(tile.dims)), count, exact=exact)
        for tile, count in counts.items()
    )
    whole = {"frames": shape[1], "rows": shape[2], "columns": shape[3], "first": 1}
    one = {"frames": num_frames, "rows": tiles[0][0].stop, "columns": tiles[0][1].stop}
    result = decoded_bytes(vae, whole)
    in_tiles = 0 if len(tiles) == 1 else _FLOAT_BYTES * decoded_bytes(vae, {**whole, "frames": num_frames, "first": 0})
    caches = len(tiles) * decode_cache_bytes(vae, one)
    return LoopEstimate(
        steps,
        resident_bytes=_FLOAT_BYTES * math.prod(shape) + caches + in_tiles + result,
        peak_bytes=max(decode_peak_bytes(vae, dict(tile.dims), is_exact=exact) for tile in counts) + in_tiles,
        result_bytes=result,
    )


def estimate_condition(
    spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any], *, exact: bool
) -> LoopEstimate:
    """Return what encoding the known first frame needs, with the empty frames after it where it is further channels."""
    vae, is_blended = model.config("vae"), bool(spec.options.get("is_blended", False))
    size = {"rows": int(parameters["height"]), "columns": int(parameters["width"])}
    num_later = 0 if is_blended else (int(parameters["num_frames"]) - 1) // vae.temporal_factor
    groups = [ShapeSignature.of(frames=1, **size, first=1)]
    groups += [ShapeSignature.of(frames=vae.temporal_factor, **size, first=0)] * bool(num_later)
    steps = tuple(
        _step(spec, model, "vae", group, encode_cost(vae, dict(group.dims)), count, exact=exact)
        for group, count in zip(groups, (1, num_later), strict=False)
    )
    channels = vae.z_dim if is_blended else vae.z_dim + vae.temporal_factor
    latents = _FLOAT_BYTES * (num_later + 1) * size["rows"] * size["columns"] // vae.spatial_factor**2
    num_images = 2 if inputs.get("last_image") is not None else 1
    image = num_images * 3 * _FLOAT_BYTES * size["rows"] * size["columns"]
    return LoopEstimate(
        steps,
        resident_bytes=image + encode_cache_bytes(vae, dict(groups[-1].dims)) + latents * (2 * vae.z_dim + channels),
        peak_bytes=max(encode_peak_bytes(vae, dict(group.dims), is_exact=exact) for group in groups),
        result_bytes=latents * channels,
    )


def estimate_vision(
    spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any], *, exact: bool
) -> LoopEstimate:
    """Return what encoding an image with the vision encoder needs."""
    config = model.config("image_encoder")
    shape = ShapeSignature.of(rows=config.image_size, columns=config.image_size)
    pixels = 3 * _FLOAT_BYTES * config.image_size**2
    result = _FLOAT_BYTES * IMAGE_TOKENS * config.hidden_size
    return LoopEstimate(
        (_step(spec, model, "image_encoder", shape, vision_cost(config), 1, exact=exact),),
        resident_bytes=pixels + result,
        peak_bytes=vision_peak_bytes(config),
        result_bytes=result,
    )


def _kind(
    spec: LoopSpec, model: ModelView, component: str, kind: str, needs: StepNeeds, count: int, *, exact: bool
) -> StepEstimate:
    key = batch_key(model, component=component, loop_kind=f"{spec.loop_id}.{kind}", shape=needs.shape, is_exact=exact)
    return StepEstimate(key, needs.cost, count)


def _step(
    spec: LoopSpec, model: ModelView, component: str, shape: ShapeSignature, cost: StepCost, count: int, *, exact: bool
) -> StepEstimate:
    key = batch_key(model, component=component, loop_kind=spec.loop_id, shape=shape, is_exact=exact)
    return StepEstimate(key, cost, count)


def _latent_shape(vae: Any, parameters: ResolvedParameters) -> tuple[int, int, int, int]:
    frames = num_latent_frames(int(parameters["num_frames"]), vae.temporal_factor)
    rows, columns = (int(parameters[name]) // vae.spatial_factor for name in ("height", "width"))
    return vae.z_dim, frames, rows, columns
