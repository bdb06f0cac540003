"""Writes a tiny checkpoint in the published layout; the same seed gives the same bytes.

Layouts:
    diffusers: a folder a component, the transformer's tensors under the names of diffusers.
    flat: the tensors of the transformer and of the vision encoder together in one file of the root, attention under the
        names of the original release; the other components in folders of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fastvideo_core.errors import OutputError
from fastvideo_cosmos3.models.config import TransformerConfig
from fastvideo_cosmos3.models.sound import SoundConfig, SoundDecoder
from fastvideo_cosmos3.models.transformer import Cosmos3Transformer
from fastvideo_cosmos3.models.vae import VideoVAE
from fastvideo_cosmos3.models.vae_config import VideoVAEConfig
from fastvideo_cosmos3.testing.tokenizer import SPECIAL_TOKENS, VOCAB_SIZE, write_tokenizer

__all__ = ["LAYOUTS", "write_checkpoint"]

LAYOUTS = ("diffusers", "flat")

_PIPELINE = "Cosmos3OmniPipeline"
_WEIGHTS = "diffusion_pytorch_model.safetensors"
_ORIGINAL_NAMES = {"to_q": "q_proj", "to_k": "k_proj", "to_v": "v_proj", "to_out": "o_proj", "norm_q": "q_norm",
                   "norm_k": "k_norm"}  # fmt: skip

_ENDS_RESIDUAL = re.compile(r"(?:res_unit\d|resnets\.\d+)\.conv2\.weight(?:_g)?$")
_RESIDUAL_GAIN = 0.2
_BEFORE_NORMS = re.compile(r"(?:conv_in|resample\.1)\.bias$")

_TRANSFORMER: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "vocab_size": VOCAB_SIZE, "rope_axes_dim": [4, 2, 2], "rope_theta": 10000.0,
    "latent_channel": 16, "latent_patch_size": 2, "patch_latent_dim": 64, "action_gen": True, "action_dim": 16,
    "sound_dim": 8,
}  # fmt: skip
_VAE: dict[str, Any] = {
    "base_dim": 4, "decoder_base_dim": 4, "z_dim": 16, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 1,
    "temperal_downsample": [False, True, True], "is_residual": True, "in_channels": 12, "out_channels": 12,
    "patch_size": 2, "scale_factor_temporal": 4, "scale_factor_spatial": 16,
}  # fmt: skip
_SOUND: dict[str, Any] = {
    "sampling_rate": 8000, "vocoder_input_dim": 8, "dec_dim": 8, "dec_c_mults": [1, 2], "dec_strides": [5, 32],
    "encoder_enabled": False,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "model_type": "qwen3_vl_vision", "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2,
    "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64,
    "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1], "in_channels": 3,
    "hidden_act": "gelu_pytorch_tanh",
}  # fmt: skip
_SCHEDULER: dict[str, Any] = {
    "_class_name": "UniPCMultistepScheduler", "num_train_timesteps": 1000, "prediction_type": "flow_prediction",
    "use_flow_sigmas": True, "flow_shift": 1.0, "solver_order": 2, "final_sigmas_type": "zero",
}  # fmt: skip
_PREPROCESSOR: dict[str, Any] = {
    "size": {"shortest_edge": 1024, "longest_edge": 16384}, "patch_size": 8, "temporal_patch_size": 2, "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip


def write_checkpoint(
    folder: Path, *, layout: str = "diffusers", seed: int = 0, has_sound: bool = True, **transformer: Any
) -> Path:
    """Write a checkpoint.

    Args:
        folder: A folder that is new or empty.
        layout: One of `LAYOUTS`.
        seed: Seed of the weights.
        has_sound: Whether there are sound heads and a sound decoder.
        **transformer: What differs in the transformer's configuration.

    Returns:
        The folder.

    Raises:
        OutputError: There is something in the folder.
    """
    if folder.exists() and any(folder.iterdir()):
        raise OutputError("the folder is not empty", field="folder", value=str(folder), allowed="a new folder")
    generator = torch.Generator().manual_seed(seed)
    config = {**_TRANSFORMER, "sound_gen": has_sound, **transformer}
    backbone = _weights(Cosmos3Transformer(TransformerConfig.model_validate(config)), generator)
    vision = _weights(_vision_encoder(config["hidden_size"]), generator)
    _write_backbone(folder, layout, config, backbone, vision)
    _write_vae(folder, generator)
    if has_sound:
        sound = _weights(SoundDecoder(SoundConfig.model_validate(_SOUND)), generator)
        _write_component(folder / "sound_tokenizer", {"_class_name": "Cosmos3AVAEAudioTokenizer", **_SOUND}, sound)
    _write_json(folder / "scheduler" / "scheduler_config.json", _SCHEDULER)
    _write_json(folder / "preprocessor_config.json", _PREPROCESSOR)
    _write_json(folder / "model_index.json", _index(has_sound))
    write_tokenizer(folder / "text_tokenizer")
    return folder


def _vision_encoder(width: int) -> nn.Module:
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    encoder: nn.Module = Qwen3VLVisionModel(Qwen3VLVisionConfig(**{**_VISION, "out_hidden_size": width}))
    return encoder


def _weights(module: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """Return random weights: products of unit size in, unit size out; gains near 1, what is added near 0."""
    return {name: _random(name, tensor, generator) for name, tensor in module.state_dict().items()}


def _random(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(tensor.shape, generator=generator)
    # Deep decoders of random weights magnify rounding, unless what their residual units add is small.
    gain = _RESIDUAL_GAIN if _ENDS_RESIDUAL.search(name) else 1.0
    if name.endswith("weight_g"):
        return gain * (torch.ones(tensor.shape) + 0.1 * noise)
    if "norm" in name.rpartition(".")[0].rpartition(".")[2] or name.endswith("gamma"):
        return (0.0 if name.endswith("bias") else 1.0) + 0.1 * noise
    if tensor.squeeze().ndim <= 1:
        # A norm over few channels magnifies rounding where all of them are near zero.
        return (1.0 if _BEFORE_NORMS.search(name) else 0.0) + 0.1 * noise
    return gain * noise / tensor[0].numel() ** 0.5


def _write_backbone(
    folder: Path, layout: str, config: Mapping[str, Any], backbone: dict[str, Tensor], vision: dict[str, Tensor]
) -> None:
    vision_config = {**_VISION, "out_hidden_size": config["hidden_size"]}
    root = {
        "model_type": "cosmos3_omni",
        "architectures": ["Cosmos3OmniForConditionalGeneration"],
        "text_config": _text_config(config),
        "vision_config": vision_config,
        **_special_ids(),
    }
    _write_json(folder / "config.json", root)
    described = {"_class_name": "Cosmos3OmniTransformer", **config}
    if layout == "flat":
        _write_json(folder / "transformer" / "config.json", described)
        renamed = {_original_name(name): tensor for name, tensor in backbone.items()}
        save_file({**renamed, **vision}, folder / "model.safetensors")
        return
    _write_component(folder / "transformer", described, backbone)
    _write_component(folder / "vision_encoder", vision_config, vision, weights="model.safetensors")


def _original_name(name: str) -> str:
    for ours, theirs in _ORIGINAL_NAMES.items():
        name = name.replace(f".self_attn.{ours}.", f".self_attn.{theirs}.")
    return name


def _text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "head_dim")  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"], "mrope_section": config["rope_axes_dim"],
            "mrope_interleaved": True}  # fmt: skip
    return {"model_type": "qwen3_vl_text", **{name: config[name] for name in names}, "rope_parameters": rope}


def _special_ids() -> dict[str, int]:
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
             "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}  # fmt: skip
    return {name: 256 + SPECIAL_TOKENS.index(token) for name, token in names.items()}


def _write_vae(folder: Path, generator: torch.Generator) -> None:
    config = {**_VAE, "latents_mean": [0.0] * _VAE["z_dim"], "latents_std": [1.0] * _VAE["z_dim"]}
    vae = _weights(VideoVAE(VideoVAEConfig.model_validate(config)), generator)
    _write_component(folder / "vae", {"_class_name": "AutoencoderKLWan", **config}, vae)


def _write_component(
    folder: Path, config: Mapping[str, Any], tensors: dict[str, Tensor], weights: str = _WEIGHTS
) -> None:
    _write_json(folder / "config.json", config)
    save_file(tensors, folder / weights)


def _index(has_sound: bool) -> dict[str, Any]:
    return {
        "_class_name": _PIPELINE,
        "_diffusers_version": "0.42.1",
        "default_use_system_prompt": True,
        "enable_safety_checker": False,
        "use_native_flow_schedule": True,
        "scheduler": ["diffusers", "UniPCMultistepScheduler"],
        "sound_tokenizer": ["diffusers", "Cosmos3AVAEAudioTokenizer"] if has_sound else [None, None],
        "text_tokenizer": ["transformers", "PreTrainedTokenizerFast"],
        "transformer": ["diffusers", "Cosmos3OmniTransformer"],
        "vae": ["diffusers", "AutoencoderKLWan"],
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
