"""Component factories: how each part of a Wan card is built from its files."""

from __future__ import annotations

from typing import Any

from fastvideo_core.errors import CheckpointError
from fastvideo_core.runtime.attention import takes_attention
from fastvideo_core.runtime.instance import ComponentSource, LoadedComponent
from fastvideo_core.runtime.loading import load_weights
from fastvideo_core.runtime.weights.keys import rename_by_rules
from fastvideo_wan.models.causal import CausalWanTransformer
from fastvideo_wan.models.config import WanTransformerConfig
from fastvideo_wan.models.config_file import read_config
from fastvideo_wan.models.text import PromptTokenizer
from fastvideo_wan.models.transformer import WanTransformer
from fastvideo_wan.models.vae import WanVAE
from fastvideo_wan.models.vae_config import WanVAEConfig

__all__ = [
    "VISION_KEYS",
    "build_causal_transformer",
    "build_image_encoder",
    "build_image_processor",
    "build_text_encoder",
    "build_tokenizer",
    "build_transformer",
    "build_vae",
]


VISION_KEYS = rename_by_rules([(r"^vision_model\.", "")])
"""Published vision encoders carry a prefix that newer versions of their library have dropped."""


@takes_attention
def build_transformer(source: ComponentSource) -> LoadedComponent:
    """Load a transformer."""
    config = WanTransformerConfig.from_folder(source.folder / source.files.folder)
    loaded = load_weights(source, lambda: WanTransformer(config))
    loaded.module.use_attention(source.attention)
    return loaded.as_component(config)


@takes_attention
def build_causal_transformer(source: ComponentSource) -> LoadedComponent:
    """Load a transformer for streams."""
    config = WanTransformerConfig.from_folder(source.folder / source.files.folder)
    loaded = load_weights(source, lambda: CausalWanTransformer(config))
    loaded.module.use_attention(source.attention)
    return loaded.as_component(config)


def build_vae(source: ComponentSource) -> LoadedComponent:
    """Load a VAE."""
    config = WanVAEConfig.from_folder(source.folder / source.files.folder)
    return load_weights(source, lambda: WanVAE(config)).as_component(config)


def build_tokenizer(source: ComponentSource) -> LoadedComponent:
    """Load a tokenizer."""
    return LoadedComponent(PromptTokenizer.from_folder(source.folder / source.files.folder), None)


def build_text_encoder(source: ComponentSource) -> LoadedComponent:
    """Load a UMT5 encoder."""
    from transformers.models.umt5.configuration_umt5 import UMT5Config
    from transformers.models.umt5.modeling_umt5 import UMT5EncoderModel

    config = _read_config(UMT5Config, source)
    return load_weights(source, lambda: UMT5EncoderModel(config)).as_component(config)


def build_image_encoder(source: ComponentSource) -> LoadedComponent:
    """Load a CLIP vision encoder."""
    from transformers.models.clip.configuration_clip import CLIPVisionConfig
    from transformers.models.clip.modeling_clip import CLIPVisionModel

    config = _read_config(CLIPVisionConfig, source)
    return load_weights(source, lambda: CLIPVisionModel(config)).as_component(config)


def build_image_processor(source: ComponentSource) -> LoadedComponent:
    """Load the preprocessing of the CLIP vision encoder."""
    from fastvideo_wan.models.vision import ImagePreprocessor

    processor = ImagePreprocessor.from_folder(source.folder / source.files.folder)
    return LoadedComponent(processor, None)


def _read_config(config_class: Any, source: ComponentSource) -> Any:
    folder = source.folder / source.files.folder
    read_config(folder, label=source.spec.component_id)  # without the file the library would take its own defaults
    try:
        return config_class.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / 'config.json'} cannot be used: {' '.join(str(error).split())}") from error
