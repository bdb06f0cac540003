"""A card from a folder in diffusers layout: everything is read from its JSON files, nothing is guessed from names.

What no file states (frame rate, default size, steps and guidance) is that of the published checkpoint of the same make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from fastvideo_core.card import CheckpointSource, DataRef, ModelCard, RecipeSpec
from fastvideo_core.errors import CheckpointError
from fastvideo_core.loop.samplers.scheduler_config import read_scheduler_config
from fastvideo_wan.cards.build import NUM_TRAIN_TIMESTEPS, make_card
from fastvideo_wan.cards.causal_layout import PIPELINE, causal_card_from_folder
from fastvideo_wan.cards.facts import Conditioning, WanFacts
from fastvideo_wan.cards.published import PUBLISHED
from fastvideo_wan.models.config import WanTransformerConfig
from fastvideo_wan.models.vae_config import WanVAEConfig

__all__ = ["card_from_folder", "facts_from_folder"]

PIPELINES = ("WanPipeline", "WanImageToVideoPipeline", "WanDMDPipeline")
"""Values of `_class_name` in `model_index.json` that this family knows."""

_DMD_STEPS = (1000, 757, 522)
_DMD_SHIFT: Mapping[Conditioning, float] = {"none": 8.0, "first_frame": 5.0}
"""Of FastWan 2.1 and FastWan 2.2 5B."""

_MAKE = ("loop_id", "conditioning", "num_heads", "spatial_factor", "boundary_ratio", "expand_timesteps")
"""Facts that tell the published checkpoints' makes apart; two of one make differ in their flow shift."""

_UNSTATED = ("num_frames", "height", "width", "fps", "num_inference_steps", "guidance_scale", "guidance_scale_2")
"""Facts that no file of the layout states."""


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
    if index.get("_class_name") == PIPELINE:
        return causal_card_from_folder(source, _model_id(source.location), index, configs)
    facts = facts_from_folder(source, index, configs)
    return None if facts is None else make_card(facts)


def facts_from_folder(
    source: CheckpointSource, index: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]
) -> WanFacts | None:
    """Return the facts of a checkpoint; see `card_from_folder`."""
    pipeline = index.get("_class_name")
    if pipeline not in PIPELINES:
        return None
    for folder in ("transformer", "vae", "scheduler", "text_encoder"):
        if folder not in configs:
            raise CheckpointError(f"{source.location} names a {pipeline} and has no {folder}/ with its configuration")
    transformer = WanTransformerConfig.from_diffusers(configs["transformer"])
    vae = WanVAEConfig.from_diffusers(configs["vae"])
    expand = bool(index.get("expand_timesteps", False))
    conditioning = _conditioning(source, pipeline, transformer, vae, expand=expand)
    scheduler = read_scheduler_config(configs["scheduler"])
    if scheduler.num_train_timesteps != NUM_TRAIN_TIMESTEPS:
        raise CheckpointError(
            f"{source.location}: num_train_timesteps of the scheduler is {scheduler.num_train_timesteps}; "
            f"allowed: {NUM_TRAIN_TIMESTEPS}"
        )
    facts = WanFacts(
        model_id=_model_id(source.location),
        title=f"Wan checkpoint in {source.location}",
        source=source,
        recipe=_recipe("diffusion_denoise"),
        conditioning=conditioning,
        accepts_text_only=conditioning in ("none", "first_frame"),
        spatial_factor=vae.spatial_factor,
        temporal_factor=vae.temporal_factor,
        patch=transformer.patch_size,
        boundary_ratio=_boundary(index, configs),
        expand_timesteps=expand,
        flow_shift=scheduler.shift,
        sampler=scheduler.sampler,
        sampler_options={scheduler.sampler: scheduler.options},
        license="",
        num_heads=transformer.num_attention_heads,
        max_frames=vae.temporal_factor * (transformer.rope_max_seq_len * transformer.patch_size[0] - 1) + 1,
        max_size=min(4096, vae.spatial_factor * transformer.patch_size[1] * transformer.rope_max_seq_len),
    )
    return _on_grid(_as_published(_as_few_step(facts) if pipeline == "WanDMDPipeline" else facts))


def _as_few_step(facts: WanFacts) -> WanFacts:
    """FastWan's layout names its pipeline; the release fixes steps and shift, which no file states."""
    if facts.conditioning not in _DMD_SHIFT:
        raise CheckpointError(f"{facts.source.location}: there is no few-step Wan with image channels")
    return replace(
        facts,
        recipe=_recipe("dmd_denoise"),
        guidance_scale=None,
        num_inference_steps=len(_DMD_STEPS),
        dmd_steps=_DMD_STEPS,
        flow_shift=_DMD_SHIFT[facts.conditioning],
        sampler="lcm",
        sampler_options={},
    )


def _as_published(facts: WanFacts) -> WanFacts:
    """Take what no file states from the published checkpoint of the same make; keep the usual values without one."""
    same = [known for known in PUBLISHED if all(getattr(known, name) == getattr(facts, name) for name in _MAKE)]
    if not same:
        return facts
    nearest = min(same, key=lambda known: abs(known.flow_shift - facts.flow_shift))
    return replace(facts, **{name: getattr(nearest, name) for name in _UNSTATED})


def _on_grid(facts: WanFacts) -> WanFacts:
    """Move the default size onto the checkpoint's own grid (a factor of 16 with patches of 2 gives multiples of 32)."""
    grid = facts.size_grid
    return replace(facts, height=max(grid, facts.height // grid * grid), width=max(grid, facts.width // grid * grid))


def _conditioning(
    source: CheckpointSource, pipeline: str, transformer: WanTransformerConfig, vae: WanVAEConfig, *, expand: bool
) -> Conditioning:
    plain, with_image = vae.z_dim, 2 * vae.z_dim + vae.temporal_factor
    if transformer.in_channels == plain:
        if pipeline == "WanImageToVideoPipeline" and not expand:
            raise CheckpointError(
                f"{source.location} names a {pipeline}, whose transformer takes {with_image} channels; its config says "
                f"{plain} without expand_timesteps"
            )
        return "first_frame" if expand else "none"
    if transformer.in_channels == with_image:
        return "channels_and_vision" if transformer.is_image_conditioned else "channels"
    raise CheckpointError(
        f"{source.location}: in_channels of the transformer is {transformer.in_channels}; allowed with this VAE: "
        f"{plain} (text to video) or {with_image} (image to video)"
    )


def _boundary(index: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]) -> float | None:
    ratio = index.get("boundary_ratio")
    if ratio is None:
        return None
    if "transformer_2" not in configs:
        raise CheckpointError(f"model_index.json has boundary_ratio {ratio} and there is no transformer_2/")
    return float(ratio)


def _recipe(loop_id: str) -> RecipeSpec:
    return RecipeSpec(
        method="unknown" if loop_id == "diffusion_denoise" else "dmd2",
        data_contract=DataRef(name="unknown", description="The checkpoint does not say what it was trained on."),
        assumes_loop=loop_id,
    )


def _model_id(location: str) -> str:
    name = PurePath(location).name.lower()
    cleaned = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name).strip("._-")
    return cleaned[:128] or "wan"
