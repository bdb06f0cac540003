"""The comparisons of a Wan card with independent implementations, rung C0 (parts) and C1 (the whole loop).

Shape letters: B rows; L text tokens; E encoder width; C channels; T, H, W latent frames, rows, columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fastvideo_core.card import TaskSpec
from fastvideo_core.loop.policies.conditioning import pad_text
from fastvideo_core.loop.samplers import ScheduleSpec, get_sampler
from fastvideo_core.parity import (
    CheckContext,
    Measurement,
    TapRecorder,
    compare_tensors,
    first_divergence,
    load_reference,
)
from fastvideo_core.request.build import build_request
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_core.runtime.catalog import read_json
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_core.runtime.run import GenerationResult, make_generator
from fastvideo_wan.models.vae_cache import FeatureCache
from fastvideo_wan.parity.few_step import few_step_reference
from fastvideo_wan.parity.reference import (
    PROMPT,
    encode_first_frame,
    load_part,
    load_pipeline,
    make_image,
    run_pipeline,
)

__all__ = [
    "check_few_step_loop",
    "check_image_encoder",
    "check_loop",
    "check_sampler_step",
    "check_text_encoder",
    "check_transformer",
    "check_vae_decode",
    "check_vae_encode",
]

_SEED = 11
_SMALL = {"num_frames": 9, "num_inference_steps": 3}
_MAX_DEFAULT_PIXELS = 17 * 128 * 128
"""Up to this volume loop checks make the request that the card is meant for; larger defaults take hours on a CPU."""


def check_text_encoder(context: CheckContext) -> Sequence[Measurement]:
    """C0: tokens, encoder and padding, against the reference pipeline's prompt embeddings."""
    pipeline = load_pipeline(context.folder, "text_to_video")
    length = context.card.loops["text_encode"].options["text_length"]
    with torch.no_grad():
        expected = pipeline.encode_prompt(
            prompt=PROMPT, do_classifier_free_guidance=False, max_sequence_length=length, device="cpu"
        )[0]
    measured = []
    for mode, is_exact in _MODES:
        recorder = TapRecorder(lambda name: name == "text_encoder")
        _generate(context, is_exact=is_exact, recorder=recorder, parameters={"num_inference_steps": 1})
        value = pad_text(recorder.rows[0].value, [_num_tokens(context)], length)
        measured.append(Measurement("prompt embeddings", mode, compare_tensors(value, expected)))
    return measured


def check_transformer(context: CheckContext) -> Sequence[Measurement]:
    """C0: one forward on random latents, text and image tokens."""
    model = context.instance.component(context.spec.subject)
    reference = load_part(context.folder, "WanTransformer3DModel", context.spec.subject)
    config, draw = model.config, _drawer()
    latents = draw(1, config.in_channels, 3, 2 * config.patch_size[1], 3 * config.patch_size[2])
    length = context.card.loops["text_encode"].options["text_length"]
    text = pad_text(draw(1, 7, config.text_dim), [7], length)
    image = draw(1, 257, config.image_dim) if config.is_image_conditioned else None
    timestep = torch.tensor([625])
    with torch.no_grad():
        expected = reference(latents, timestep, text, image, return_dict=False)[0]
        measured = []
        for mode, is_exact in _MODES:
            prepared = model.prepare_context(text, image, exact=is_exact)
            value = model(latents, timestep, prepared, exact=is_exact)
            measured.append(Measurement("velocity", mode, compare_tensors(value, expected)))
    return measured


def check_vae_encode(context: CheckContext) -> Sequence[Measurement]:
    """C0: moments of a random clip."""
    model = context.instance.component("vae")
    reference = load_part(context.folder, "AutoencoderKLWan", "vae")
    factor = model.config.spatial_factor
    pixels = _drawer()(1, 3, 9, 2 * factor, 3 * factor).clamp(-1, 1)
    with torch.no_grad():
        expected = reference.encode(pixels).latent_dist.parameters
        return [
            Measurement("moments", mode, compare_tensors(_encode(model, pixels, is_exact=is_exact), expected))
            for mode, is_exact in _MODES
        ]


def check_vae_decode(context: CheckContext) -> Sequence[Measurement]:
    """C0: pixels of random latents, after the clamp with which the reference ends."""
    model = context.instance.component("vae")
    reference = load_part(context.folder, "AutoencoderKLWan", "vae")
    latents = _drawer()(1, model.config.z_dim, 3, 2, 3)
    with torch.no_grad():
        expected = reference.decode(latents, return_dict=False)[0]
        return [
            Measurement("pixels", mode, compare_tensors(_decode(model, latents, is_exact=is_exact), expected))
            for mode, is_exact in _MODES
        ]


def check_image_encoder(context: CheckContext) -> Sequence[Measurement]:
    """C0: image tokens, preprocessing included, against the reference pipeline's."""
    pipeline = load_pipeline(context.folder, "image_to_video")
    image = make_image(32, 48)
    with torch.no_grad():
        expected = pipeline.encode_image(image, "cpu")
        pixels = context.instance.component("image_processor")(np.asarray(image))
        encoder = context.instance.component("image_encoder")
        value = encoder(pixel_values=pixels, output_hidden_states=True).hidden_states[-2]
    return [Measurement("image tokens", "exact", compare_tensors(value, expected))]


def check_sampler_step(context: CheckContext) -> Sequence[Measurement]:
    """C0: one step of the card's sampler on a random velocity, against the checkpoint's own scheduler."""
    diffusers = load_reference("diffusers")
    sampler = get_sampler(context.spec.subject)
    shift = context.card.task(context.card.capabilities.default_task).parameters["flow_shift"].default
    options = context.card.loops["diffusion_denoise"].options.get("sampler_options", {}).get(sampler.name, {})
    schedule = sampler.make_schedule(ScheduleSpec(num_steps=4, shift=float(shift), options=options))  # type: ignore[arg-type]
    name = str(read_json(context.folder / "scheduler" / "scheduler_config.json")["_class_name"])
    scheduler = getattr(diffusers, name).from_pretrained(str(context.folder), subfolder="scheduler")
    scheduler.set_timesteps(4)
    draw = _drawer()
    sample, velocity = draw(1, 4, 2, 3, 3), draw(1, 4, 2, 3, 3)
    value, _ = sampler.step(schedule, sampler.init_state(schedule), velocity, sample, 0)
    expected = scheduler.step(velocity, scheduler.timesteps[0], sample, return_dict=False)[0]
    return [Measurement("sample after a step", "exact", compare_tensors(value, expected))]


def check_loop(context: CheckContext) -> Sequence[Measurement]:
    """C1: latents and pixels of a whole request with a fixed seed, for every task of the card."""
    return [m for task in context.card.capabilities.tasks for m in _compare_loop(context, task)]


def check_few_step_loop(context: CheckContext) -> Sequence[Measurement]:
    """C1: latents of a few-step request against the published update in float64 around the reference's transformer.

    For every task of the card; a known first frame is encoded by the reference.
    """
    transformer = load_part(context.folder, "WanTransformer3DModel", "transformer")
    measured = []
    for task in context.card.capabilities.tasks:
        first_frame = None
        if task == "image_to_video":
            first_frame = encode_first_frame(load_pipeline(context.folder, task), _parameters(context, task))
        for mode, is_exact in _MODES:
            recorder = TapRecorder(lambda name: name == "text_encoder")
            result = _generate(context, is_exact=is_exact, recorder=recorder, task=task)
            text = recorder.rows[0].value[:, : _num_tokens(context)]
            expected = few_step_reference(
                context.card, transformer, text, result.parameters, first_frame_1C1HW=first_frame
            )
            value = torch.from_numpy(result.latents.latents).unsqueeze(0)
            measured.append(Measurement(f"{task}: latents", mode, compare_tensors(value, expected)))
    return measured


_MODES: tuple[tuple[Any, bool], ...] = (("exact", True), ("default", False))


def _compare_loop(context: CheckContext, task: str) -> list[Measurement]:
    pipeline = load_pipeline(context.folder, task)
    parameters = _parameters(context, task)
    reference = TapRecorder()
    latents, pixels = run_pipeline(pipeline, context.card, task, parameters, reference)
    measured = []
    for mode, is_exact in _MODES:
        recorder = TapRecorder(lambda name: name.endswith(".velocity") or name == "pixels")
        result = _generate(context, is_exact=is_exact, recorder=recorder, task=task)
        rows = [row for row in recorder.rows if row.name != "pixels"]
        parted = first_divergence(rows, reference.rows) if is_exact else None
        detail = "" if parted is None else f"first parts at {parted.reason}"
        value = torch.from_numpy(result.latents.latents).unsqueeze(0)
        decoded = torch.cat([row.value for row in recorder.rows if row.name == "pixels"], dim=2).clamp(-1, 1)
        measured.append(Measurement(f"{task}: latents", mode, compare_tensors(value, latents), detail))
        measured.append(Measurement(f"{task}: pixels", mode, compare_tensors(decoded, pixels)))
    return measured


def _parameters(context: CheckContext, task: str) -> ResolvedParameters:
    return prepare_request(context.card, _request(context, task)).parameters


def _request(
    context: CheckContext, task: str, extra: Mapping[str, Any] | None = None, *, is_exact: bool = False
) -> Any:
    spec = context.card.task(task)
    wanted = {"seed": _SEED, **_check_sizes(spec), **context.parameters, **(extra or {})}
    pinned = context.card.loops[context.card.recipe.assumes_loop].pinned
    parameters = {name: value for name, value in wanted.items() if name in spec.parameters and name not in pinned}
    image = None
    if "image" in spec.inputs:
        sizes = {**spec.defaults(), **parameters}
        image = np.asarray(make_image(sizes["height"], sizes["width"]))
    outputs = tuple(name for name in ("video", "latents") if name in spec.outputs)
    return build_request(
        context.card, PROMPT, task=task, image=image, outputs=outputs, exact=is_exact, parameters=parameters
    )


def _check_sizes(spec: TaskSpec) -> dict[str, int]:
    """Return the size and steps of loop checks where the card's own are too large for them."""
    defaults: dict[str, Any] = spec.defaults()
    if defaults["num_frames"] * defaults["height"] * defaults["width"] <= _MAX_DEFAULT_PIXELS:
        return {}
    grid = spec.parameters["height"].multiple_of or 16
    length = spec.parameters["num_frames"]
    num_frames = _SMALL["num_frames"] + (length.offset - _SMALL["num_frames"]) % int(length.multiple_of or 1)
    return {**_SMALL, "num_frames": num_frames, "height": 2 * grid, "width": 3 * grid}


def _generate(
    context: CheckContext,
    *,
    is_exact: bool,
    recorder: TapRecorder,
    task: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> GenerationResult:
    chosen = task or context.card.capabilities.default_task
    with Engine(context.instance, tap=recorder.tap) as engine:
        return engine.submit(_request(context, chosen, parameters, is_exact=is_exact)).result()


def _num_tokens(context: CheckContext) -> int:
    return len(context.instance.component("tokenizer").encode(PROMPT))


def _drawer() -> Callable[..., torch.Tensor]:
    """Return a function that draws standard normal tensors from one seeded generator."""
    generator = make_generator(_SEED)
    return lambda *shape: torch.randn(*shape, generator=generator)


def _encode(model: Any, pixels: torch.Tensor, *, is_exact: bool) -> torch.Tensor:
    if not is_exact:
        whole: torch.Tensor = model.encode(pixels)
        return whole
    moments: torch.Tensor = model.encode_frames(pixels, FeatureCache(), is_exact=True)[0]
    return moments


def _decode(model: Any, latents: torch.Tensor, *, is_exact: bool) -> torch.Tensor:
    if not is_exact:
        whole: torch.Tensor = model.decode(latents)
        return whole.clamp(-1, 1)
    pixels: torch.Tensor = model.decode_frames(latents, FeatureCache(), is_exact=True)[0]
    return pixels.clamp(-1, 1)
