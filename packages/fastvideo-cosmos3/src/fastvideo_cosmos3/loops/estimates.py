"""What each loop of a request will need, before it starts: from shapes alone, at the upper end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastvideo_core.card import LoopSpec
from fastvideo_core.loop.base import LoopEstimate, ModelView, StepEstimate
from fastvideo_core.loop.keys import batch_key
from fastvideo_core.loop.plans import ANY_SHAPE
from fastvideo_core.loop.work import ShapeSignature, StepCost
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_cosmos3.loops.condition import num_encoded_frames
from fastvideo_cosmos3.loops.costs import (
    FLOAT_BYTES,
    denoise_cost,
    denoise_peak_bytes,
    frame_cost,
    frame_peak_bytes,
    sound_cost,
    text_cost,
    text_kv_bytes,
    text_peak_bytes,
    vision_cost,
)
from fastvideo_cosmos3.loops.layouts import layout_of, num_video_frames
from fastvideo_cosmos3.loops.pages import CACHE, num_pages
from fastvideo_cosmos3.loops.texts import GENERATED_END, read_text, read_visual

__all__ = [
    "estimate_answer",
    "estimate_decode",
    "estimate_denoise",
    "estimate_encode",
    "estimate_look",
    "estimate_prefill",
    "estimate_sound",
]

_TYPICAL_TEXT = 256
"""Tokens of a prompt with what is said about size and length, where the prompt itself is another node's input."""


def _steps(
    spec: LoopSpec, model: ModelView, component: str, cost: StepCost, count: int, *, exact: bool,
    kind: str = "", shape: ShapeSignature = ANY_SHAPE,
) -> tuple[StepEstimate, ...]:  # fmt: skip
    key = batch_key(model, component=component, loop_kind=kind or spec.loop_id, shape=shape, is_exact=exact)
    return (StepEstimate(key, cost, count),) if count > 0 else ()


def estimate_prefill(
    spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any], *, exact: bool
) -> LoopEstimate:
    """Estimate `ar_prefill`."""
    config, kind = model.config("transformer"), str(inputs["text"])
    if "negative" in kind and float(parameters["guidance_scale"]) == 1.0:
        return LoopEstimate(())
    past = 0
    if kind == "close":
        past = _TYPICAL_TEXT + int(parameters["max_tokens"])
        tokens = GENERATED_END + 1
    else:
        tokens = len(read_text(model, spec, parameters, inputs).ids)
    cost = text_cost(config, tokens, past, num_logits=int(bool(inputs.get("answers"))))
    kept = text_kv_bytes(config, tokens)
    return LoopEstimate(
        _steps(spec, model, "transformer", cost, 1, exact=exact),
        resident_bytes=kept,
        peak_bytes=text_peak_bytes(config, tokens, past),
        result_bytes=kept,
        cache_blocks={CACHE: num_pages(tokens)},
    )


def estimate_answer(
    spec: LoopSpec,
    model: ModelView,
    parameters: ResolvedParameters,
    inputs: Mapping[str, Any],  # noqa: ARG001 - the protocol's argument
    *,
    exact: bool,
) -> LoopEstimate:
    """Estimate `ar_decode`: as if it took all the tokens that it may."""
    config, count = model.config("transformer"), int(parameters["max_tokens"]) - 1
    cost = text_cost(config, 1, _TYPICAL_TEXT + count // 2, num_logits=1)
    kept = text_kv_bytes(config, count)
    return LoopEstimate(
        _steps(spec, model, "transformer", cost, count, exact=exact),
        resident_bytes=kept,
        peak_bytes=text_peak_bytes(config, 1, _TYPICAL_TEXT + count),
        result_bytes=kept,
        cache_blocks={CACHE: num_pages(count) + 1},
    )


def estimate_denoise(
    spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any], *, exact: bool
) -> LoopEstimate:
    """Estimate `diffusion_denoise`."""
    config = model.config("transformer")
    layout = layout_of(model, parameters, inputs)
    branches = 1 if float(parameters["guidance_scale"]) == 1.0 else 2
    text = _TYPICAL_TEXT + int(parameters.get("max_tokens") or 0)
    cost = denoise_cost(config, layout.num_tokens, text, branches)
    sample = FLOAT_BYTES * layout.frames * layout.rows * layout.columns * config.latent_channel
    # The sample, what the sampler remembers of it (two predictions and a sample), and the text as it is laid out.
    return LoopEstimate(
        _steps(
            spec, model, "transformer", cost, int(parameters["num_inference_steps"]), exact=exact,
            kind=f"{spec.loop_id}.step",
        ),
        resident_bytes=4 * sample + branches * text_kv_bytes(config, text),
        peak_bytes=denoise_peak_bytes(config, layout.num_tokens, text, branches),
        result_bytes=sample,
    )  # fmt: skip


def estimate_encode(
    spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any], *, exact: bool
) -> LoopEstimate:
    """Estimate `vae_encode`."""
    vae, layout = model.config("vae"), layout_of(model, parameters, inputs)
    mode = str(inputs["mode"])
    num_frames = num_video_frames(parameters) if exact else num_encoded_frames(model, mode, parameters)
    groups = vae.latent_frames(num_frames)
    cost = frame_cost(vae, layout.rows, layout.columns, 4, encodes=True)
    grid = vae.spatial_factor
    shape = ShapeSignature.of(frames=4, rows=layout.rows * grid, columns=layout.columns * grid)
    latents = FLOAT_BYTES * 2 * vae.z_dim * layout.rows * layout.columns * groups
    pixels = FLOAT_BYTES * 3 * num_frames * layout.rows * layout.columns * grid**2
    peak = frame_peak_bytes(vae, layout.rows, layout.columns, 4)
    return LoopEstimate(
        _steps(spec, model, "vae", cost, groups, exact=exact, shape=shape),
        resident_bytes=latents + pixels + peak // 4,
        peak_bytes=peak,
        result_bytes=latents,
    )


def estimate_decode(
    spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any], *, exact: bool
) -> LoopEstimate:
    """Estimate `vae_decode`."""
    vae, layout = model.config("vae"), layout_of(model, parameters, inputs)
    cost = frame_cost(vae, layout.rows, layout.columns, vae.temporal_factor)
    shape = ShapeSignature.of(first=0, rows=layout.rows, columns=layout.columns)
    pixels = 3 * num_video_frames(parameters) * layout.rows * layout.columns * vae.spatial_factor**2
    peak = frame_peak_bytes(vae, layout.rows, layout.columns, vae.temporal_factor)
    return LoopEstimate(
        _steps(spec, model, "vae", cost, layout.frames, exact=exact, shape=shape),
        resident_bytes=pixels + peak // 4,
        peak_bytes=peak,
        result_bytes=pixels,
    )


def estimate_sound(
    spec: LoopSpec,
    model: ModelView,
    parameters: ResolvedParameters,
    inputs: Mapping[str, Any],  # noqa: ARG001 - the protocol's argument
    *,
    exact: bool,
) -> LoopEstimate:
    """Estimate `audio_decode`."""
    config = model.config("sound_tokenizer")
    frames = config.latent_frames(num_video_frames(parameters), float(parameters.get("fps") or 24.0))
    cost = sound_cost(config, frames)
    samples = FLOAT_BYTES * config.dec_out_channels * frames * config.hop
    return LoopEstimate(
        _steps(spec, model, "sound_tokenizer", cost, 1, exact=exact, shape=ShapeSignature.of(frames=frames)),
        resident_bytes=samples,
        peak_bytes=int(cost.activation_bytes),
        result_bytes=samples,
    )


def estimate_look(
    spec: LoopSpec,
    model: ModelView,
    parameters: ResolvedParameters,  # noqa: ARG001 - the protocol's argument
    inputs: Mapping[str, Any],
    *,
    exact: bool,
) -> LoopEstimate:
    """Estimate `vision_encode`."""
    visual = read_visual(model.component("image_processor"), inputs)
    if visual is None:
        return LoopEstimate(())
    config, patches = model.config("vision_encoder"), len(visual.patches_PK)
    shape = ShapeSignature.of(width=visual.patches_PK.shape[1])
    kept = FLOAT_BYTES * patches * config.out_hidden_size
    return LoopEstimate(
        _steps(spec, model, "vision_encoder", vision_cost(config, patches), 1, exact=exact, shape=shape),
        resident_bytes=kept + FLOAT_BYTES * visual.patches_PK.numel(),
        peak_bytes=FLOAT_BYTES * patches * (4 * config.intermediate_size + 8 * config.hidden_size),
        result_bytes=kept,
    )
