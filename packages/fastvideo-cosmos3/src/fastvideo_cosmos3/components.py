"""Component factories: how each part of a Cosmos3 card is built from its files."""

from __future__ import annotations

from typing import Any

from fastvideo_core.errors import CheckpointError
from fastvideo_core.runtime.instance import ComponentSource, LoadedComponent
from fastvideo_core.runtime.loading import load_weights
from fastvideo_core.runtime.weights.keys import names_matching, rename_by_rules
from fastvideo_cosmos3.models.config import TransformerConfig
from fastvideo_cosmos3.models.config_file import read_json_object
from fastvideo_cosmos3.models.sound import SoundConfig, SoundDecoder
from fastvideo_cosmos3.models.tokenizer import ChatTokenizer
from fastvideo_cosmos3.models.transformer import Cosmos3Transformer
from fastvideo_cosmos3.models.vae import VideoVAE
from fastvideo_cosmos3.models.vae_config import VideoVAEConfig
from fastvideo_cosmos3.models.vision import VisionPreprocessor, VisionSettings

__all__ = [
    "TRANSFORMER_KEYS",
    "VISION_KEYS",
    "build_image_processor",
    "build_sound_decoder",
    "build_tokenizer",
    "build_transformer",
    "build_vae",
    "build_vision_encoder",
    "is_transformer_name",
    "is_vision_name",
]

TRANSFORMER_KEYS = rename_by_rules(
    [
        (r"^(?:model\.)?(?:language_model\.)?", ""),
        (r"\.self_attn\.q_proj\.", ".self_attn.to_q."),
        (r"\.self_attn\.k_proj\.", ".self_attn.to_k."),
        (r"\.self_attn\.v_proj\.", ".self_attn.to_v."),
        (r"\.self_attn\.o_proj\.", ".self_attn.to_out."),
        (r"\.self_attn\.q_norm\.", ".self_attn.norm_q."),
        (r"\.self_attn\.k_norm\.", ".self_attn.norm_k."),
    ]
)
"""The transformer's tensors in all layouts: nested or flat, attention named as in diffusers or in the first release."""

VISION_KEYS = rename_by_rules([(r"^(?:model\.)?(?:visual\.)?", "")])
"""The vision encoder's tensors, flat or as part of a whole model."""

is_vision_name = names_matching(
    [r"^(?:model\.)?(?:visual\.)?(?:blocks|merger|patch_embed|pos_embed|deepstack_merger_list)\."]
)
"""Tells whether a tensor of a flat checkpoint is the vision encoder's."""


def is_transformer_name(name: str) -> bool:
    """Tell whether a tensor of a flat checkpoint is the transformer's."""
    return not is_vision_name(name)


def build_transformer(source: ComponentSource) -> LoadedComponent:
    """Load the mixture of transformers, from a folder of its own or from one that it shares with the vision encoder."""
    config = TransformerConfig.from_diffusers(read_json_object(source.folder / "transformer" / "config.json"))
    return load_weights(source, lambda: Cosmos3Transformer(config)).as_component(config)


def build_vae(source: ComponentSource) -> LoadedComponent:
    """Load the video autoencoder."""
    config = VideoVAEConfig.from_diffusers(read_json_object(source.folder / source.files.folder / "config.json"))
    return load_weights(source, lambda: VideoVAE(config)).as_component(config)


def build_sound_decoder(source: ComponentSource) -> LoadedComponent:
    """Load the sound decoder; an encoder in the same files is left out."""
    config = SoundConfig.from_diffusers(read_json_object(source.folder / source.files.folder / "config.json"))
    return load_weights(source, lambda: SoundDecoder(config)).as_component(config)


def build_tokenizer(source: ComponentSource) -> LoadedComponent:
    """Load the tokenizer."""
    return LoadedComponent(ChatTokenizer.from_folder(source.folder / source.files.folder), None)


def build_image_processor(source: ComponentSource) -> LoadedComponent:
    """Load the preprocessing of images and videos that the reasoner looks at."""
    settings = VisionSettings.from_folder(source.folder / source.files.folder)
    return LoadedComponent(VisionPreprocessor(settings), settings)


def build_vision_encoder(source: ComponentSource) -> LoadedComponent:
    """Load the vision encoder, from a folder of its own or from one that it shares with the transformer."""
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    config = Qwen3VLVisionConfig(**_vision_config(source))
    loaded = load_weights(source, lambda: Qwen3VLVisionModel(config))
    return loaded.as_component(config)


def _vision_config(source: ComponentSource) -> dict[str, Any]:
    """Return the vision encoder's configuration: of its own folder, else of the whole model's."""
    own = source.folder / "vision_encoder" / "config.json"
    if own.is_file():
        raw = read_json_object(own)
        raw = raw.get("vision_config", raw)
    else:
        raw = read_json_object(source.folder / "config.json").get("vision_config", {})
    if not raw:
        raise CheckpointError(f"{source.folder} does not say how its vision encoder is made (vision_config)")
    known = {name: value for name, value in raw.items() if name not in ("model_type", "dtype", "torch_dtype")}
    return {key: value for key, value in known.items() if not key.startswith(("_", "transformers_"))}
