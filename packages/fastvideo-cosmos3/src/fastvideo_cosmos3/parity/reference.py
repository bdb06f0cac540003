"""The reference implementations, built from a card's own files, and what they are asked to do.

Diffusers runs the half that generates, transformers the half that reads and writes; neither runs both.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastvideo_core.errors import ParityError
from fastvideo_core.parity import load_reference
from fastvideo_core.request.media.pixels import Frames
from fastvideo_core.runtime.run import make_generator
from fastvideo_cosmos3.components import TRANSFORMER_KEYS, VISION_KEYS, is_transformer_name, is_vision_name
from fastvideo_cosmos3.models.config_file import read_json_object

__all__ = [
    "PROMPT",
    "decode_latents",
    "load_part",
    "load_pipeline",
    "load_reasoner",
    "make_frames",
    "run_pipeline",
]

PROMPT = "a robot arm lifts a red cup"
"""Prompt of all checks."""

_REASONER_NAMES = {
    "to_q": "q_proj",
    "to_k": "k_proj",
    "to_v": "v_proj",
    "to_out": "o_proj",
    "norm_q": "q_norm",
    "norm_k": "k_norm",
}
"""Parts of attention here and in transformers."""


def load_pipeline(folder: Path) -> Any:
    """Load diffusers' pipeline of a checkpoint, in float32; of a flat one the transformer's tensors are renamed.

    Raises:
        ParityError: The reference is not installed.
    """
    diffusers = load_reference("diffusers")
    extra: dict[str, Any] = {}
    if not any((folder / "transformer").glob("*.safetensors")):
        extra["transformer"] = _flat_transformer(diffusers, folder)
    with _quietly():
        pipeline = diffusers.Cosmos3OmniPipeline.from_pretrained(
            str(folder), dtype=torch.float32, enable_safety_checker=False, **extra
        )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def load_part(folder: Path, class_name: str, part: str) -> Any:
    """Load one part of a checkpoint with diffusers' class, in float32."""
    diffusers = load_reference("diffusers")
    if part == "transformer" and not any((folder / part).glob("*.safetensors")):
        return _flat_transformer(diffusers, folder)
    with _quietly():
        loaded = getattr(diffusers, class_name).from_pretrained(str(folder), subfolder=part, dtype=torch.float32)
    return loaded.eval()


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the references' own notices out of the report: what they warn of is nobody's to change here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _flat_transformer(diffusers: Any, folder: Path) -> Any:
    model = diffusers.Cosmos3OmniTransformer.from_config(read_json_object(folder / "transformer" / "config.json"))
    tensors = {TRANSFORMER_KEYS(name): one for name, one in _tensors(folder).items() if is_transformer_name(name)}
    # Used where the file maps them, as here: on a CPU the last bit may depend on where a matrix begins.
    model.load_state_dict({name: one.float() for name, one in tensors.items()}, assign=True)
    return model.eval()


def load_reasoner(folder: Path) -> Any:
    """Load transformers' reasoner of a checkpoint, in float32, its tensors under the names that it gives them.

    Raises:
        ParityError: The reference is not installed, or the checkpoint does not say how its reasoner is made.
    """
    transformers = load_reference("transformers")
    if not (folder / "config.json").is_file():
        raise ParityError(f"{folder} has no config.json, from which transformers makes its reasoner")
    config = transformers.Cosmos3OmniConfig(**read_json_object(folder / "config.json"))
    model = transformers.Cosmos3OmniForConditionalGeneration(config).float().eval()
    tensors = {**_tensors(folder), **_tensors(folder / "transformer")}
    seen = {**_tensors(folder / "vision_encoder"), **{name: t for name, t in tensors.items() if is_vision_name(name)}}
    own = model.state_dict()
    named = {_reasoner_name(TRANSFORMER_KEYS(name)): one for name, one in tensors.items()}
    named |= {f"model.visual.{VISION_KEYS(name)}": one for name, one in seen.items()}
    # What generates has no place in it; what it needs must all be there.
    model.load_state_dict({name: one.float() for name, one in named.items() if name in own}, assign=True)
    return model


def _reasoner_name(name: str) -> str:
    name = re.sub(r"^(layers|embed_tokens|norm)\.", r"model.language_model.\1.", name)
    for ours, theirs in _REASONER_NAMES.items():
        name = name.replace(f".self_attn.{ours}.", f".self_attn.{theirs}.")
    return name


def _tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return {name: one for file in sorted(folder.glob("*.safetensors")) for name, one in load_file(file).items()}


def make_frames(count: int, rows: int, columns: int) -> Frames:
    """Return frames of noise, uint8 (count, rows, columns, 3)."""
    generator = make_generator(5)
    return torch.randint(0, 256, (count, rows, columns, 3), generator=generator, dtype=torch.uint8).numpy()


def run_pipeline(
    pipeline: Any, task: str, parameters: Mapping[str, Any], inputs: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Run a task with diffusers.

    Args:
        pipeline: What `load_pipeline` gave.
        task: The card's task, one that diffusers has.
        parameters: Resolved parameters of the request.
        inputs: `image` (H, W, 3) and `frames` (T, H, W, 3), uint8, and `actions`, where the task takes them.

    Returns:
        Tensors by name: `latents` (1, C, T, H, W), `pixels` (1, 3, T, H, W) in [-1, 1], and where they are made `sound`
        (channels, N) and `actions` (T, K).
    """
    names = ("num_inference_steps", "guidance_scale", "negative_prompt", "fps")
    call: dict[str, Any] = {name: parameters[name] for name in names if name in parameters}
    if "chunk_size" in parameters:
        call["action"] = _action(task, parameters, inputs)
    else:
        call |= {"height": parameters["height"], "width": parameters["width"]}
        call |= {"num_frames": parameters.get("num_frames", 1), **_shown(inputs)}
    if "condition_frames" in parameters:
        call["condition_frame_indexes_vision"] = tuple(parameters["condition_frames"])
        call["condition_video_keep"] = parameters["condition_keep"]
    with torch.no_grad():
        made = pipeline(
            PROMPT, generator=make_generator(parameters["seed"]), output_type="latent",
            enable_sound=task.endswith("_sound"), **call,
        )  # fmt: skip
        parts = {"latents": made.video, "pixels": decode_latents(pipeline.vae, made.video)}
    if made.sound is not None:
        parts["sound"] = made.sound
    if made.action is not None:
        parts["actions"] = made.action[0]
    return parts


def _shown(inputs: Mapping[str, Any]) -> dict[str, Any]:
    from PIL import Image

    if "image" in inputs:
        return {"image": Image.fromarray(inputs["image"])}
    return {"video": [Image.fromarray(frame) for frame in inputs["frames"]]} if "frames" in inputs else {}


def _action(task: str, parameters: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    module = load_reference("diffusers.pipelines.cosmos.pipeline_cosmos3_omni")
    actions = inputs.get("actions")
    return module.CosmosActionCondition(
        mode=task.removesuffix("_sound"),
        chunk_size=parameters["chunk_size"],
        domain_name=parameters["embodiment"],
        resolution_tier=int(str(parameters["resolution_tier"]).removesuffix("p")),
        view_point=parameters["view_point"],
        raw_actions=None if actions is None else torch.from_numpy(np.asarray(actions)),
        **_shown(inputs),
    )


def decode_latents(vae: Any, latents: Tensor) -> Tensor:
    """Decode normalized latents as the pipeline ends, which gives whole bytes only: pixels in [-1, 1]."""
    shape = (1, -1, 1, 1, 1)
    mean = torch.tensor(vae.config.latents_mean).view(shape)
    inverse_std = 1.0 / torch.tensor(vae.config.latents_std).view(shape)
    pixels: Tensor = vae.decode(latents / inverse_std + mean).sample
    return pixels
