"""What `/object_info` says of each node type that compiles: inputs with types and ranges, outputs, category.

Inputs are written in one line each type: `name TYPE`, with a default and a range where there is one, in the order in
which files store their values; what comes after `|` may be left open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["DEFINITIONS", "Definition", "InputDefinition"]

_MAX_SEED = 2**64 - 1
_SEED = f"INT=0:0:{_MAX_SEED}:1:control"
_STEPS, _CFG, _UNIT = "INT=20:1:1000", "FLOAT=8.0:0:100:0.1", "FLOAT=1.0:0:1:0.01"
_SIZE, _BATCH = "16:16384:16", "INT=1:1:4096"
_STRENGTH = "FLOAT=1.0:-100:100:0.01"


@dataclass(frozen=True, slots=True)
class InputDefinition:
    """An input.

    Attributes:
        name: Its name.
        type: ComfyUI's type, or COMBO with the choices' name.
        choices: What it chooses from: a kind of file, or words.
        options: Default, range and the like, as ComfyUI names them.
        is_required: Whether it has to be there.
    """

    name: str
    type: str
    choices: str
    options: Mapping[str, Any]
    is_required: bool


@dataclass(frozen=True, slots=True)
class Definition:
    """A node type.

    Attributes:
        category: Where ComfyUI's menu has it.
        outputs: Types of its outputs.
        inputs: Its inputs.
        is_output: Whether it is an end of a workflow.
        display_name: What the menu calls it.
    """

    category: str
    outputs: tuple[str, ...]
    inputs: tuple[InputDefinition, ...]
    is_output: bool = False
    display_name: str = ""


def _define(category: str, outputs: str, inputs: str, *, is_output: bool = False, name: str = "") -> Definition:
    required, _, optional = inputs.partition("|")
    found = [
        _input(text.strip(), is_required=is_required)
        for part, is_required in ((required, True), (optional, False))
        for text in part.split(",")
        if text.strip()
    ]
    return Definition(category, tuple(outputs.split()), tuple(found), is_output, name)


def _input(text: str, *, is_required: bool) -> InputDefinition:
    name, _, rest = text.partition(" ")
    kind, _, said = rest.partition("=")
    kind, _, choices = kind.partition(":")
    return InputDefinition(name, kind, choices, _options(kind, said), is_required)


def _options(kind: str, said: str) -> dict[str, Any]:
    if not said:
        return {}
    if kind in ("COMBO", "STRING"):
        return {"default": said.removeprefix("multiline").strip()} | (
            {"multiline": True} if said.startswith("multiline") else {}
        )
    if kind == "BOOLEAN":
        return {"default": said == "true"}
    read = int if kind == "INT" else float
    default, *limits = said.split(":")
    options: dict[str, Any] = {"default": read(default)}
    options |= {key: read(value) for key, value in zip(("min", "max", "step"), limits, strict=False)}
    return options | ({"control_after_generate": True} if limits[3:] == ["control"] else {})


_VIDEO_SIZE = f"width INT=832:{_SIZE}, height INT=480:{_SIZE}, length INT=81:1:16384:4, batch_size {_BATCH}"
_WAN_INPUTS = f"positive CONDITIONING, negative CONDITIONING, vae VAE, {_VIDEO_SIZE}"
_SAMPLE = "sampler_name COMBO:samplers, scheduler COMBO:schedulers"
_GUIDED = "positive CONDITIONING, negative CONDITIONING, latent_image LATENT"

DEFINITIONS: Mapping[str, Definition] = {
    "BasicGuider": _define("sampling/custom_sampling/guiders", "GUIDER", "model MODEL, conditioning CONDITIONING"),
    "BasicScheduler": _define(
        "sampling/custom_sampling/schedulers", "SIGMAS",
        f"model MODEL, scheduler COMBO:schedulers, steps {_STEPS}, denoise {_UNIT}",
    ),
    "CFGGuider": _define(
        "sampling/custom_sampling/guiders", "GUIDER",
        f"model MODEL, positive CONDITIONING, negative CONDITIONING, cfg {_CFG}",
    ),
    "CLIPLoader": _define(
        "advanced/loaders", "CLIP", "clip_name COMBO:text_encoder, type COMBO:clip_types=wan | device COMBO:default",
        name="Load CLIP",
    ),
    "CLIPTextEncode": _define(
        "conditioning", "CONDITIONING", "text STRING=multiline, clip CLIP", name="CLIP Text Encode (Prompt)"
    ),
    "CLIPVisionEncode": _define(
        "conditioning", "CLIP_VISION_OUTPUT", "clip_vision CLIP_VISION, image IMAGE, crop COMBO:crops",
        name="CLIP Vision Encode",
    ),
    "CLIPVisionLoader": _define("loaders", "CLIP_VISION", "clip_name COMBO:image_encoder", name="Load CLIP Vision"),
    "ConditioningZeroOut": _define("advanced/conditioning", "CONDITIONING", "conditioning CONDITIONING"),
    "CreateVideo": _define(
        "image/video", "VIDEO", "images IMAGE, fps FLOAT=30.0:1:120:1 | audio AUDIO", name="Create Video"
    ),
    "EmptyHunyuanLatentVideo": _define("latent/video", "LATENT", _VIDEO_SIZE),
    "KSampler": _define(
        "sampling", "LATENT",
        f"model MODEL, seed {_SEED}, steps {_STEPS}, cfg {_CFG}, {_SAMPLE}, {_GUIDED}, denoise {_UNIT}",
    ),
    "KSamplerAdvanced": _define(
        "sampling", "LATENT",
        f"model MODEL, add_noise COMBO:switches, noise_seed {_SEED}, steps {_STEPS}, cfg {_CFG}, {_SAMPLE}, {_GUIDED}, "
        "start_at_step INT=0:0:10000, end_at_step INT=10000:0:10000, return_with_leftover_noise COMBO:switches=disable",
        name="KSampler (Advanced)",
    ),
    "KSamplerSelect": _define("sampling/custom_sampling/samplers", "SAMPLER", "sampler_name COMBO:samplers"),
    "LoadImage": _define("image", "IMAGE MASK", "image COMBO:images", name="Load Image"),
    "LoraLoader": _define(
        "loaders", "MODEL CLIP",
        f"model MODEL, clip CLIP, lora_name COMBO:loras, strength_model {_STRENGTH}, strength_clip {_STRENGTH}",
        name="Load LoRA",
    ),
    "LoraLoaderModelOnly": _define(
        "loaders", "MODEL", f"model MODEL, lora_name COMBO:loras, strength_model {_STRENGTH}",
    ),
    "ModelSamplingSD3": _define("advanced/model", "MODEL", "model MODEL, shift FLOAT=3.0:0:100:0.01"),
    "RandomNoise": _define("sampling/custom_sampling/noise", "NOISE", f"noise_seed {_SEED}"),
    "SamplerCustom": _define(
        "sampling/custom_sampling", "LATENT LATENT",
        f"model MODEL, add_noise BOOLEAN=true, noise_seed {_SEED}, cfg {_CFG}, positive CONDITIONING, "
        "negative CONDITIONING, sampler SAMPLER, sigmas SIGMAS, latent_image LATENT",
    ),
    "SamplerCustomAdvanced": _define(
        "sampling/custom_sampling", "LATENT LATENT",
        "noise NOISE, guider GUIDER, sampler SAMPLER, sigmas SIGMAS, latent_image LATENT",
    ),
    "SaveImage": _define(
        "image", "", "images IMAGE, filename_prefix STRING=ComfyUI", is_output=True, name="Save Image"
    ),
    "SaveVideo": _define(
        "image/video", "",
        "video VIDEO, filename_prefix STRING=video/ComfyUI, format COMBO:formats, codec COMBO:codecs",
        is_output=True, name="Save Video",
    ),
    "UNETLoader": _define(
        "advanced/loaders", "MODEL", "unet_name COMBO:transformer, weight_dtype COMBO:default",
        name="Load Diffusion Model",
    ),
    "VAEDecode": _define("latent", "IMAGE", "samples LATENT, vae VAE", name="VAE Decode"),
    "VAEDecodeTiled": _define(
        "_for_testing", "IMAGE",
        "samples LATENT, vae VAE, tile_size INT=512:64:4096:32, overlap INT=64:0:4096:32, "
        "temporal_size INT=64:8:4096:4, temporal_overlap INT=8:4:4096:4",
        name="VAE Decode (Tiled)",
    ),
    "VAELoader": _define("loaders", "VAE", "vae_name COMBO:vae", name="Load VAE"),
    "Wan22ImageToVideoLatent": _define(
        "conditioning/inpaint", "LATENT",
        "vae VAE, width INT=1280:32:16384:32, height INT=704:32:16384:32, length INT=49:1:16384:4, "
        f"batch_size {_BATCH} | start_image IMAGE",
    ),
    "WanFirstLastFrameToVideo": _define(
        "conditioning/video_models", "CONDITIONING CONDITIONING LATENT",
        f"{_WAN_INPUTS} | clip_vision_start_image CLIP_VISION_OUTPUT, clip_vision_end_image CLIP_VISION_OUTPUT, "
        "start_image IMAGE, end_image IMAGE",
    ),
    "WanImageToVideo": _define(
        "conditioning/video_models", "CONDITIONING CONDITIONING LATENT",
        f"{_WAN_INPUTS} | clip_vision_output CLIP_VISION_OUTPUT, start_image IMAGE",
    ),
    "PrimitiveInt": _define("utils/primitive", "INT", f"value INT=0:{-(2**63) + 1}:{2**63 - 1}:1:control", name="Int"),
    "PrimitiveFloat": _define("utils/primitive", "FLOAT", "value FLOAT=0.0", name="Float"),
    "PrimitiveBoolean": _define("utils/primitive", "BOOLEAN", "value BOOLEAN=false", name="Boolean"),
    "PrimitiveString": _define("utils/primitive", "STRING", "value STRING", name="String"),
    "PrimitiveStringMultiline": _define(
        "utils/primitive", "STRING", "value STRING=multiline", name="String (Multiline)"
    ),
    "StringConcatenate": _define(
        "utils/string", "STRING", "string_a STRING=multiline, string_b STRING=multiline, delimiter STRING",
        name="Concatenate",
    ),
    "StringReplace": _define(
        "utils/string", "STRING", "string STRING=multiline, find STRING=multiline, replace STRING=multiline",
        name="Replace",
    ),
    "ComfyMathExpression": _define(
        "math", "FLOAT INT BOOLEAN", "expression STRING=multiline a + b, values COMFY_AUTOGROW_V3:numbers",
        name="Math Expression",
    ),
    "ComfySwitchNode": _define(
        "logic", "COMFY_MATCHTYPE_V3", "switch BOOLEAN=false | on_false COMFY_MATCHTYPE_V3, on_true COMFY_MATCHTYPE_V3",
        name="Switch",
    ),
}  # fmt: skip
"""By node type."""
