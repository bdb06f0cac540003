"""What a request generates, in latents and tokens, before anything is encoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastvideo_core.loop.base import ModelView
from fastvideo_cosmos3.loops.condition import Condition, known_frames_of
from fastvideo_cosmos3.loops.texts import view_frames
from fastvideo_cosmos3.models.embodiments import canvas_of
from fastvideo_cosmos3.models.packing import Layout

__all__ = ["content_size", "layout_of", "num_video_frames"]


def num_video_frames(parameters: Mapping[str, Any]) -> int:
    """Return the frames of a request's video; 1 for an image."""
    if "chunk_size" in parameters:
        return int(parameters["chunk_size"]) + 1
    return int(parameters.get("num_frames", 1))


def layout_of(
    model: ModelView, parameters: Mapping[str, Any], inputs: Mapping[str, Any], condition: Condition | None = None
) -> Layout:
    """Return how a request is packed.

    Args:
        model: Gives the configurations.
        parameters: The request's.
        inputs: Those of the denoise node: `sound` says whether there is sound, `mode` what is known; before the
            condition is there also the image or video that it is made of.
        condition: What is known; None takes the sizes that it will have.
    """
    vae = model.config("vae")
    frames = vae.latent_frames(num_video_frames(parameters))
    if condition is not None:
        rows, columns = condition.latents_1CTHW.shape[3:]
    else:
        rows, columns = content_size(model, parameters, inputs)
    fps = float(parameters.get("fps") or 24.0)
    mode = str(inputs.get("mode") or "")
    sound = 0
    if inputs.get("sound"):
        sound = model.config("sound_tokenizer").latent_frames(num_video_frames(parameters), fps)
    return Layout(
        frames=frames,
        rows=rows,
        columns=columns,
        known_frames=known_frames_of(mode, parameters, frames),
        fps=fps,
        sound_frames=sound,
        sound_fps=float(model.config("transformer").sound_latent_fps),
        num_actions=int(parameters.get("chunk_size", 0)),
        has_known_actions=mode == "forward_dynamics",
        temporal_factor=vae.temporal_factor,
        patch=int(model.config("transformer").latent_patch_size),
    )


def content_size(model: ModelView, parameters: Mapping[str, Any], inputs: Mapping[str, Any]) -> tuple[int, int]:
    """Return the latent rows and columns of what a request generates."""
    grid = int(model.config("vae").spatial_factor)
    if "resolution_tier" not in parameters:
        return int(parameters["height"]) // grid, int(parameters["width"]) // grid
    rows, columns = (max(grid, size - size % grid) for size in view_frames(inputs).shape[1:3])
    height, width = canvas_of(str(parameters["resolution_tier"]), rows, columns)
    scale = min(width / columns, height / rows, 1.0)
    return max(int(scale * rows + 0.5) // grid, 1), max(int(scale * columns + 0.5) // grid, 1)
