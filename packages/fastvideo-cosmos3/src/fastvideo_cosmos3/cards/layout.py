"""A card from a folder in the published layout: everything is read from its JSON files, nothing is guessed from names.

What no file states (default size, length, steps and guidance) is that of the reference pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from fastvideo_core.card import CheckpointSource, ModelCard
from fastvideo_core.errors import CheckpointError
from fastvideo_core.loop.samplers.scheduler_config import read_scheduler_config
from fastvideo_cosmos3.cards.build import NUM_TRAIN_TIMESTEPS, make_card
from fastvideo_cosmos3.cards.facts import Cosmos3Facts
from fastvideo_cosmos3.models.config import TransformerConfig
from fastvideo_cosmos3.models.embodiments import ACTION_WIDTHS
from fastvideo_cosmos3.models.sound import SoundConfig
from fastvideo_cosmos3.models.vae_config import VideoVAEConfig

__all__ = ["PIPELINES", "card_from_folder"]

PIPELINES = ("Cosmos3OmniPipeline", "Cosmos3OmniDiffusersPipeline")
"""Values of `_class_name` in `model_index.json` that this family knows."""

_PAGE_TOKENS = 16
_FLOAT_BYTES = 4


def card_from_folder(
    source: CheckpointSource, index: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]
) -> ModelCard | None:
    """Return the card of a checkpoint, or None if it is of another family.

    Args:
        source: Where it is.
        index: Content of `model_index.json`.
        configs: Contents of the components' configuration files, by folder.

    Raises:
        CheckpointError: It is of this family, and its files contradict each other or what is supported.
    """
    pipeline = index.get("_class_name")
    if pipeline not in PIPELINES:
        return None
    for folder in ("transformer", "vae", "scheduler"):
        if folder not in configs:
            raise CheckpointError(f"{source.location} names a {pipeline} and has no {folder}/ with its configuration")
    transformer = TransformerConfig.from_diffusers(configs["transformer"])
    vae = VideoVAEConfig.from_diffusers(configs["vae"])
    if vae.z_dim != transformer.latent_channel:
        raise CheckpointError(
            f"{source.location}: the VAE has {vae.z_dim} latent channels, the transformer {transformer.latent_channel}"
        )
    # The reference's grid: latents that fill no patch are filled up, so that the VAE's own factor is enough.
    grid = vae.spatial_factor
    # All tensors may lie together in the root, as where the reasoner's own library writes them.
    is_flat = not _has_weights(source, "transformer") and _has_weights(source, "")
    sampler, shift, options = _sampler(source, index, configs["scheduler"])
    action_dim = transformer.action_dim or 0 if transformer.action_gen else 0
    return make_card(
        Cosmos3Facts(
            model_id=_model_id(source.location),
            title=f"Cosmos3 checkpoint in {source.location}",
            source=source,
            is_flat=is_flat,
            has_vision=is_flat or "vision_encoder" in configs or _has_weights(source, "vision_encoder"),
            has_sound=_has_sound(source, index, configs, transformer),
            action_dim=action_dim,
            embodiments=tuple(name for name, width in ACTION_WIDTHS.items() if width <= action_dim),
            num_heads=transformer.num_attention_heads,
            page_bytes=_FLOAT_BYTES * _PAGE_TOKENS * transformer.kv_token_numbers,
            spatial_grid=grid,
            temporal_factor=vae.temporal_factor,
            height=720 // grid * grid,
            width=1280 // grid * grid,
            sampler=sampler,
            flow_shift=shift,
            sampler_options={sampler: options},
            system_prompt=bool(index.get("default_use_system_prompt", True)),
        )
    )


def _sampler(
    source: CheckpointSource, index: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[str, float, dict[str, Any]]:
    scheduler = read_scheduler_config(config)
    if scheduler.num_train_timesteps != NUM_TRAIN_TIMESTEPS:
        raise CheckpointError(
            f"{source.location}: num_train_timesteps of the scheduler is {scheduler.num_train_timesteps}; "
            f"allowed: {NUM_TRAIN_TIMESTEPS}"
        )
    # As a card's JSON has them, which knows no tuples.
    options = {name: list(one) if isinstance(one, tuple) else one for name, one in scheduler.options.items()}
    if index.get("use_native_flow_schedule", False):
        options["grid"] = "native"
    return scheduler.sampler, scheduler.shift, options


def _has_weights(source: CheckpointSource, folder: str) -> bool:
    """Tell whether a local folder holds weights; of a hub's nothing is known but its configuration files."""
    return source.kind == "folder" and any((Path(source.location) / folder).glob("*.safetensors"))


def _has_sound(
    source: CheckpointSource, index: Mapping[str, Any], configs: Mapping[str, Any], transformer: TransformerConfig
) -> bool:
    """Tell whether sound can be made: there are heads for it, and a decoder that fits them."""
    named = index.get("sound_tokenizer") or [None]
    if not transformer.sound_gen or named[0] is None or "sound_tokenizer" not in configs:
        return False
    sound = SoundConfig.from_diffusers(configs["sound_tokenizer"])
    if sound.vocoder_input_dim != transformer.sound_dim:
        raise CheckpointError(
            f"{source.location}: the sound decoder takes {sound.vocoder_input_dim} channels, "
            f"the transformer makes {transformer.sound_dim}"
        )
    return True


def _model_id(location: str) -> str:
    name = PurePath(location).name.lower()
    cleaned = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name).strip("._-")
    return cleaned[:128] or "cosmos3"
