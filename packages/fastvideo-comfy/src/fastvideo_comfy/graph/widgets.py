"""Names for the positional widget values of the UI form.

Most files store values without names, and the order is each node type's own. The table gives it, for the types that
this package reads values of. `~` stands for a value that is no input of the node: what to do with a seed after a run,
or an upload button.

A stored vector may be shorter than the table, as files of older versions are: defaults fill in. A longer one belongs to
a version that this table does not know, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["CONTROL", "DEFAULTS", "WIDGETS", "named_values", "widget_names"]

CONTROL = "~"

_SAMPLE = f"seed {CONTROL} steps cfg sampler_name scheduler denoise"
_ADVANCED = (
    f"add_noise noise_seed {CONTROL} steps cfg sampler_name scheduler "
    "start_at_step end_at_step return_with_leftover_noise"
)
_SIZE = "width height length batch_size"

_TABLE: Mapping[str, str] = {
    "KSampler": _SAMPLE,
    "KSamplerAdvanced": _ADVANCED,
    "UNETLoader": "unet_name weight_dtype",
    "CLIPLoader": "clip_name type device",
    "VAELoader": "vae_name",
    "CLIPVisionLoader": "clip_name",
    "CheckpointLoaderSimple": "ckpt_name",
    "CLIPTextEncode": "text",
    "CLIPVisionEncode": "crop",
    "ConditioningZeroOut": "",
    "ModelSamplingSD3": "shift",
    "LoraLoaderModelOnly": "lora_name strength_model",
    "LoraLoader": "lora_name strength_model strength_clip",
    "EmptyHunyuanLatentVideo": _SIZE,
    "WanImageToVideo": _SIZE,
    "WanFirstLastFrameToVideo": _SIZE,
    "Wan22ImageToVideoLatent": _SIZE,
    "WanFunInpaintToVideo": _SIZE,
    "WanFunControlToVideo": _SIZE,
    "WanVaceToVideo": f"{_SIZE} strength",
    "CosmosPredict2ImageToVideoLatent": _SIZE,
    "CosmosImageToVideoLatent": _SIZE,
    "EmptyCosmosLatentVideo": _SIZE,
    "TrimVideoLatent": "trim_amount",
    "VAEDecode": "",
    "VAEDecodeTiled": "tile_size overlap temporal_size temporal_overlap",
    "VAEDecodeAudio": "",
    "CreateVideo": "fps bit_depth color_space codec",
    "SaveVideo": "filename_prefix format codec",
    "SaveWEBM": "filename_prefix codec fps crf",
    "SaveAnimatedWEBP": "filename_prefix fps lossless quality method",
    "SaveImage": "filename_prefix",
    "PreviewImage": "",
    "LoadImage": f"image {CONTROL}",
    "LoadVideo": f"file {CONTROL}",
    "KSamplerSelect": "sampler_name",
    "BasicScheduler": "scheduler steps denoise",
    "ManualSigmas": "sigmas",
    "RandomNoise": f"noise_seed {CONTROL}",
    "DisableNoise": "",
    "CFGGuider": "cfg",
    "BasicGuider": "",
    "SamplerCustom": f"add_noise noise_seed {CONTROL} cfg",
    "SamplerCustomAdvanced": "",
    "SplitSigmas": "step",
    "PrimitiveInt": f"value {CONTROL}",
    "PrimitiveFloat": "value",
    "PrimitiveBoolean": "value",
    "PrimitiveString": "value",
    "PrimitiveStringMultiline": "value",
    "ComfySwitchNode": "switch",
    "ComfyMathExpression": "expression",
    "StringConcatenate": "string_a string_b delimiter",
    "StringReplace": "string find replace",
    "MiniMaxH3SigmaShift": "video_shift audio_shift",
    "ResolutionSelector": "aspect_ratio megapixels multiple",
}

WIDGETS: Mapping[str, tuple[str, ...]] = {name: tuple(text.split()) for name, text in _TABLE.items()}
"""Widgets by node type, in the order in which files store them."""

_BY_LENGTH: Mapping[tuple[str, int], tuple[str, ...]] = {
    ("SaveVideo", 4): ("filename_prefix", "format", "format.codec", "codec"),
    ("SaveVideo", 5): ("filename_prefix", "format", "format.codec", "codec", "codec.encoding"),
}
"""Orders that the number of values tells: newer versions put a value in between."""

_RENAMED: Mapping[str, Mapping[str, str]] = {
    "MiniMaxH3SigmaShift": {"shift_video": "video_shift", "shift_audio": "audio_shift"},
}
"""Names that versions of a node gave to a widget, and the table's."""

_OWN_DEFAULTS: dict[str, dict[str, Any]] = {
    "KSampler": {"denoise": 1.0},
    "KSamplerAdvanced": {
        "add_noise": "enable",
        "start_at_step": 0,
        "end_at_step": 10000,
        "return_with_leftover_noise": "disable",
    },
    "UNETLoader": {"weight_dtype": "default"},
    "CLIPLoader": {"type": "stable_diffusion", "device": "default"},
    "CLIPVisionEncode": {"crop": "center"},
    "LoraLoaderModelOnly": {"strength_model": 1.0},
    "LoraLoader": {"strength_model": 1.0, "strength_clip": 1.0},
    "CreateVideo": {"fps": 30.0},
    "SaveVideo": {"filename_prefix": "video/ComfyUI", "format": "auto", "codec": "auto"},
    "SaveImage": {"filename_prefix": "ComfyUI"},
    "BasicScheduler": {"denoise": 1.0},
    "SamplerCustom": {"add_noise": True},
    "CFGGuider": {"cfg": 8.0},
    "ModelSamplingSD3": {"shift": 3.0},
    "VAEDecodeTiled": {"tile_size": 512, "overlap": 64, "temporal_size": 64, "temporal_overlap": 8},
    "StringConcatenate": {"string_a": "", "string_b": "", "delimiter": ""},
    "StringReplace": {"string": "", "find": "", "replace": ""},
}
_ONE_VIDEO: dict[str, dict[str, Any]] = {
    name: {"batch_size": 1}
    for name in (
        "EmptyHunyuanLatentVideo",
        "WanImageToVideo",
        "WanFirstLastFrameToVideo",
        "Wan22ImageToVideoLatent",
        "WanVaceToVideo",
        "CosmosPredict2ImageToVideoLatent",
    )
}

DEFAULTS: Mapping[str, Mapping[str, Any]] = {**_OWN_DEFAULTS, **_ONE_VIDEO}
"""What a node takes where neither a link nor the file gives a value: the type's own defaults."""


def widget_names(node_type: str, num_values: int) -> tuple[str, ...] | None:
    """Return the names of a type's stored values, in order; None for types outside of the table."""
    return _BY_LENGTH.get((node_type, num_values), WIDGETS.get(node_type))


def named_values(
    node_type: str, values: Sequence[Any] | Mapping[str, Any], named: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], tuple[Any, ...], int | None]:
    """Name a node's stored values.

    Args:
        node_type: Its type.
        values: What the file stores: a vector, or in some files a mapping.
        named: The same with names, where the file has them; it is followed where it has as many values.

    Returns:
        Values by name; values that have no name, since the type is not in the table; and, where the vector is longer
        than the type has widgets, the most that it may have.
    """
    if isinstance(values, Mapping):
        return _cleaned(node_type, values), (), None
    if named is not None and len(named) == len(values):
        return _cleaned(node_type, named), (), None
    names = widget_names(node_type, len(values))
    if names is None:
        return {}, tuple(values), None
    if len(values) > len(names):
        return {}, (), len(names)
    pairs = zip(names, values, strict=False)
    return {name: value for name, value in pairs if name != CONTROL}, (), None


def _cleaned(node_type: str, named: Mapping[str, Any]) -> dict[str, Any]:
    renamed = _RENAMED.get(node_type, {})
    controls = {name for name, place in zip(named, WIDGETS.get(node_type, ()), strict=False) if place == CONTROL}
    dropped = controls | {"control_after_generate", "upload"}
    return {renamed.get(name, name): value for name, value in named.items() if name not in dropped}
