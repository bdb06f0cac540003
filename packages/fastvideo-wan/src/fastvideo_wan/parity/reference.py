"""The diffusers pipelines that Wan cards are measured against, loaded from the same files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fastvideo_core.card import ModelCard
from fastvideo_core.parity import TapRecorder, load_reference
from fastvideo_core.runtime.catalog import INDEX_FILE, read_json
from fastvideo_core.runtime.run import make_generator

__all__ = ["PROMPT", "encode_first_frame", "load_part", "load_pipeline", "make_image", "run_pipeline"]

PROMPT = "a red circle moving right"
"""Prompt of all checks; the default negative prompt goes with it."""


def load_pipeline(folder: Path, task: str) -> Any:
    """Load the reference pipeline of a task from a checkpoint folder.

    Raises:
        ParityError: The reference is not installed.
    """
    diffusers = load_reference("diffusers")
    name = "WanImageToVideoPipeline" if task == "image_to_video" else "WanPipeline"
    extra: dict[str, Any] = {}
    if task == "image_to_video":
        # The layout for text alone (Wan 2.2 5B) has no such parts; the pipeline takes None for them.
        index = read_json(folder / INDEX_FILE)
        extra = {part: None for part in ("image_encoder", "image_processor") if part not in index}
    pipeline = getattr(diffusers, name).from_pretrained(str(folder), dtype=torch.float32, **extra)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def load_part(folder: Path, class_name: str, part: str) -> Any:
    """Load one part of a checkpoint with the reference's class, in float32."""
    loaded = getattr(load_reference("diffusers"), class_name).from_pretrained(
        str(folder), subfolder=part, dtype=torch.float32
    )
    return loaded.eval()


def make_image(height: int, width: int) -> Any:
    """Return an image of another size than the video, so that resizing is part of what is compared."""
    from PIL import Image

    generator = make_generator(5)
    pixels = torch.randint(0, 256, (height + 9, width + 5, 3), generator=generator, dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())


def run_pipeline(
    pipeline: Any, card: ModelCard, task: str, parameters: Mapping[str, Any], recorder: TapRecorder
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the reference and record the outputs of its transformers.

    Args:
        pipeline: What `load_pipeline` gave.
        card: The card, for its defaults.
        task: The task.
        parameters: Resolved parameters of the request.
        recorder: Takes `<branch>.velocity` of every call.

    Returns:
        Latents (1, C, T, H, W), and pixels (1, 3, T, H, W) in [-1, 1].
    """
    call = _call_arguments(card, task, parameters)
    is_guided = parameters["guidance_scale"] > 1
    handles = [_record(getattr(pipeline, name), recorder, is_guided=is_guided) for name in _transformers(pipeline)]
    try:
        latents = pipeline(**call, generator=make_generator(parameters["seed"]), output_type="latent").frames
    finally:
        for handle in handles:
            handle.remove()
    return latents, decode_reference(pipeline, latents)


def encode_first_frame(pipeline: Any, parameters: Mapping[str, Any]) -> torch.Tensor:
    """Return the normalized latents, (1, C, 1, H, W), that the reference pipeline makes of the checks' image."""
    size = {"height": parameters["height"], "width": parameters["width"]}
    image = pipeline.video_processor.preprocess(make_image(**size), **size).to(torch.float32)
    with torch.no_grad():
        _, condition, _ = pipeline.prepare_latents(
            image, 1, pipeline.vae.config.z_dim, num_frames=1, dtype=torch.float32, device="cpu", **size
        )
    latents: torch.Tensor = condition
    return latents


def decode_reference(pipeline: Any, latents: torch.Tensor) -> torch.Tensor:
    """Decode latents as the reference pipeline ends, with its own VAE; pixels in [-1, 1], (1, 3, T, H, W)."""
    vae = pipeline.vae
    shape = (1, vae.config.z_dim, 1, 1, 1)
    mean = torch.tensor(vae.config.latents_mean).view(shape)
    inverse_std = 1.0 / torch.tensor(vae.config.latents_std).view(shape)
    with torch.no_grad():
        pixels: torch.Tensor = vae.decode(latents / inverse_std + mean, return_dict=False)[0]
    return pixels


def _transformers(pipeline: Any) -> list[str]:
    return [name for name in ("transformer", "transformer_2") if getattr(pipeline, name, None) is not None]


def _record(transformer: torch.nn.Module, recorder: TapRecorder, *, is_guided: bool) -> Any:
    def hook(module: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001 - torch's signature
        num_before = sum(row.name.endswith(".velocity") for row in recorder.rows)
        branch = "uncond" if is_guided and num_before % 2 else "cond"
        recorder.record(f"{branch}.velocity", output[0])

    return transformer.register_forward_hook(hook)


def _call_arguments(card: ModelCard, task: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    names = ("num_frames", "height", "width", "num_inference_steps", "guidance_scale", "negative_prompt")
    call = {name: parameters[name] for name in names}
    if parameters.get("guidance_scale_2") is not None:
        call["guidance_scale_2"] = parameters["guidance_scale_2"]
    call["max_sequence_length"] = card.loops["text_encode"].options["text_length"]
    call["prompt"] = PROMPT
    if task == "image_to_video":
        call["image"] = make_image(parameters["height"], parameters["width"])
    return call
