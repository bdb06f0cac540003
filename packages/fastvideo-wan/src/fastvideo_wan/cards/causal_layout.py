"""A causal card from a folder in diffusers layout, whose pipeline class says that it makes streams.

What the transformer's configuration says of chunks and windows is taken; what it leaves out is as in the release that
has as many experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastvideo_core.card import CheckpointSource, DataRef, ModelCard, RecipeSpec
from fastvideo_core.errors import CheckpointError
from fastvideo_wan.cards.causal import LOOP_ID, CausalFacts, make_causal_card
from fastvideo_wan.cards.causal_published import PUBLISHED_CAUSAL
from fastvideo_wan.models.chunks import ChunkRule
from fastvideo_wan.models.config import WanTransformerConfig
from fastvideo_wan.models.vae_config import WanVAEConfig

__all__ = ["PIPELINE", "causal_card_from_folder"]

PIPELINE = "WanCausalDMDPipeline"
"""Value of `_class_name` in `model_index.json`."""

_FOLDERS = ("transformer", "vae", "scheduler", "text_encoder")


def causal_card_from_folder(
    source: CheckpointSource, model_id: str, index: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]
) -> ModelCard:
    """Return the card of a causal checkpoint.

    Args:
        source: Where it is.
        model_id: What to call it.
        index: Content of `model_index.json`.
        configs: Contents of the components' configuration files, by folder.

    Raises:
        CheckpointError: A part is missing, or the files contradict each other.
    """
    for folder in _FOLDERS:
        if folder not in configs:
            raise CheckpointError(f"{source.location} names a {PIPELINE} and has no {folder}/ with its configuration")
    transformer = WanTransformerConfig.from_diffusers(configs["transformer"])
    vae = WanVAEConfig.from_diffusers(configs["vae"])
    if transformer.in_channels != vae.z_dim:
        raise CheckpointError(
            f"{source.location}: in_channels of the transformer is {transformer.in_channels}; allowed: {vae.z_dim}"
        )
    like = _like(configs["transformer"], has_two="transformer_2" in configs)
    rule = _rule(configs["transformer"], like.rule)
    grid = vae.spatial_factor * transformer.patch_size[1]
    base = replace(
        like.base,
        model_id=model_id,
        title=f"Causal Wan checkpoint in {source.location}",
        source=source,
        recipe=RecipeSpec(
            method="unknown",
            data_contract=DataRef(name="unknown", description="The checkpoint does not say what it was trained on."),
            assumes_loop=LOOP_ID,
        ),
        spatial_factor=vae.spatial_factor,
        temporal_factor=vae.temporal_factor,
        patch=transformer.patch_size,
        boundary_ratio=None if like.base.boundary_ratio is None else _boundary(index, like.base.boundary_ratio),
        num_frames=_whole_chunks(rule, vae.temporal_factor, like.base.num_frames),
        flow_shift=float(configs["scheduler"].get("shift", like.base.flow_shift)),
        height=max(grid, like.base.height // grid * grid),
        width=max(grid, like.base.width // grid * grid),
        license="",
        num_heads=transformer.num_attention_heads,
    )
    facts = replace(
        like,
        base=base,
        rule=rule,
        num_layers=transformer.num_layers,
        width=transformer.inner_dim,
        tasks=("text_to_video", "image_to_video", "video_to_video"),
    )
    return make_causal_card(facts)


def _like(config: Mapping[str, Any], *, has_two: bool) -> CausalFacts:
    """Return the release whose settings stand for what the files leave open."""
    for facts in PUBLISHED_CAUSAL:
        if has_two == (facts.base.boundary_ratio is not None) and bool(config.get("sink_size")) == bool(
            facts.rule.sink_frames
        ):
            return facts
    raise CheckpointError("no causal release has two experts and a sink; the transformer's sink_size must be 0")


def _rule(config: Mapping[str, Any], like: ChunkRule) -> ChunkRule:
    window = int(config.get("local_attn_size", -1))
    return ChunkRule(
        chunk_frames=int(config.get("num_frames_per_block", like.chunk_frames)),
        window_frames=like.window_frames if window < 0 else window,
        sink_frames=int(config.get("sink_size", 0)),
        first_frames=like.first_frames,
    )


def _whole_chunks(rule: ChunkRule, factor: int, num_frames: int) -> int:
    """Return the number of frames of whole chunks that is next to another one."""
    latents = (num_frames - 1) / factor + 1
    num_chunks = 1 + max(0, round((latents - rule.num_frames(0)) / rule.chunk_frames))
    return factor * (rule.start(num_chunks) - 1) + 1


def _boundary(index: Mapping[str, Any], otherwise: float) -> float:
    ratio = index.get("boundary_ratio")
    return otherwise if ratio is None else float(ratio)
