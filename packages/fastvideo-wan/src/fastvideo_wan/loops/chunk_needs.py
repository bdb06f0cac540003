"""What a stream will need, before it starts, and whether its request can be met."""

# ruff: noqa: ARG001 - checks and estimators take the same arguments

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.base import LoopEstimate, ModelView, StepEstimate
from fastvideo_core.loop.behavior import behavior_bytes
from fastvideo_core.loop.keys import batch_key
from fastvideo_core.loop.policies.conditioning import num_latent_frames
from fastvideo_core.loop.work import ShapeSignature
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_wan.loops.chunk_costs import chunk_cost, chunk_peak_bytes
from fastvideo_wan.loops.chunk_options import levels_of, rule_of
from fastvideo_wan.loops.chunk_state import CACHE
from fastvideo_wan.loops.decode import frames_per_step
from fastvideo_wan.loops.denoise import context_needs
from fastvideo_wan.loops.guidance import guidance_of
from fastvideo_wan.loops.vae_costs import decode_cache_bytes, decode_cost, decode_peak_bytes, decoded_bytes

__all__ = ["check_stream", "estimate_stream"]

_FLOAT_BYTES = 4


def check_stream(
    spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any]
) -> Sequence[str]:
    """Refuse frames larger than the slabs that the card declares.

    Raises:
        ParameterError: Height times width is more than `max_pixels` of the loop's options.
    """
    height, width, most = int(parameters["height"]), int(parameters["width"]), int(spec.options["max_pixels"])
    if height * width > most:
        grid = int(model.config("vae").spatial_factor) * 2
        raise ParameterError(
            "the frame is too large for a stream",
            field="width",
            value=width,
            allowed=f"height times width up to {most}",
            nearest=max(grid, most // height // grid * grid),
        )
    return ()


def estimate_stream(
    spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any], *, exact: bool
) -> LoopEstimate:
    """Return what a stream needs, whatever its length: its state does not grow, but for frames that are kept."""
    options, vae, rule = spec.options, model.config("vae"), rule_of(spec.options)
    guidance = guidance_of(options, parameters, is_exact=exact)
    experts = list(dict.fromkeys(expert.component for expert in guidance.experts.experts))
    num_rows, length = len(guidance.branches), int(options["text_length"])
    rows, columns = (int(parameters[name]) // vae.spatial_factor for name in ("height", "width"))
    num_latents = num_latent_frames(int(parameters["num_frames"]), vae.temporal_factor)
    num_chunks = 1 + max(0, -(-(num_latents - rule.num_frames(0)) // rule.chunk_frames))
    frames, past = rule.chunk_frames, rule.window_frames - rule.chunk_frames
    shape = ShapeSignature.of(frames=frames, rows=rows, columns=columns)
    num_levels = len(levels_of(options, parameters).times)
    steps, kept, peak = [], 0, 0
    for name in experts:
        config = model.config(name)
        size, needs = (frames, rows, columns), {"past_frames": past, "num_rows": num_rows}
        cost = chunk_cost(config, size, text_tokens=length, **needs)
        context = context_needs(config, length, num_rows, length=length)
        count = math.ceil(num_levels / len(experts)) * num_chunks
        for step, number in (("denoise", count), ("commit", num_chunks)):
            steps.append(_of_kind(spec, model, name, step, shape, cost, number, exact=exact))
        kept += context.resident_bytes
        peak = max(peak, context.peak_bytes, chunk_peak_bytes(config, size, is_exact=exact, **needs))
    piece = 1 if exact else frames_per_step(spec, vae, (1, vae.z_dim, frames, rows, columns))
    decoded = {"frames": piece, "rows": rows, "columns": columns, "first": 0}
    steps.append(
        _of_kind(spec, model, "vae", "decode", ShapeSignature.of(**decoded), decode_cost(vae, decoded),
              -(-frames // piece) * num_chunks, exact=exact)
    )  # fmt: skip
    chunk = _FLOAT_BYTES * vae.z_dim * frames * rows * columns
    whole = decoded_bytes(vae, {"frames": num_latents, "rows": rows, "columns": columns, "first": 1})
    # The sample, its noises, and the clean latents of the window.
    latents = chunk * (2 + num_levels) + chunk * -(-rule.window_frames // rule.chunk_frames)
    slabs = rule.slabs_per_stream(has_reread=bool(options.get("has_reread", True)))
    return LoopEstimate(
        tuple(steps),
        resident_bytes=kept + latents + decode_cache_bytes(vae, decoded) + whole + chunk * num_chunks,
        peak_bytes=max(peak, decode_peak_bytes(vae, decoded, is_exact=exact)),
        result_bytes=whole + chunk * num_chunks,
        cache_blocks={CACHE: slabs * len(experts) * num_rows},
        chunk_blocks={CACHE: len(experts) * num_rows},
        behavior_bytes=behavior_bytes(num_levels * num_chunks, chunk),
        behavior_blocks={CACHE: max(0, num_chunks - slabs) * len(experts) * num_rows},
    )


def _of_kind(
    spec: LoopSpec, model: ModelView, component: str, step: str, shape: Any, cost: Any, count: int, *, exact: bool
) -> StepEstimate:
    key = batch_key(model, component=component, loop_kind=f"{spec.loop_id}.{step}", shape=shape, is_exact=exact)
    return StepEstimate(key, cost, count)
