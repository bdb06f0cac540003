"""The cards of published causal checkpoints. Figures are those of the releases; revisions pin the files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from fastvideo_core.card import CheckpointSource, DataRef, ModelCard, RecipeSpec
from fastvideo_wan.cards.causal import LOOP_ID, CausalFacts, make_causal_card
from fastvideo_wan.cards.facts import WanFacts
from fastvideo_wan.models.chunks import ChunkRule

__all__ = ["PUBLISHED_CAUSAL", "published_causal_cards"]

_PROMPTS = DataRef(name="vidprom", description="Prompts alone: the teacher says what a video of each should be.")


def _recipe(parent: str, method: str = "self_forcing") -> RecipeSpec:
    return RecipeSpec(method=method, parents=(parent,), data_contract=_PROMPTS, assumes_loop=LOOP_ID)


_STEPS = (1000, 750, 500, 250)

PUBLISHED_CAUSAL: tuple[CausalFacts, ...] = (
    CausalFacts(
        base=WanFacts(
            model_id="wan2.1-self-forcing-1.3b",
            title="Self Forcing: Wan 2.1 1.3B made causal, four steps a chunk of three latent frames, 480p",
            source=CheckpointSource(
                kind="hub",
                location="wlsaidhi/SFWan2.1-T2V-1.3B-Diffusers",
                revision="4b44356635ae5e927ca552a220f768022be76004",
            ),
            recipe=_recipe("wan2.1-t2v-1.3b"),
            guidance_scale=None,
            flow_shift=5.0,
            num_heads=12,
        ),
        rule=ChunkRule(chunk_frames=3, window_frames=21),
        steps=_STEPS,
        num_layers=30,
        width=1536,
        has_reread=False,
    ),
    CausalFacts(
        base=WanFacts(
            model_id="longlive-1.3b",
            title="LongLive: Self Forcing tuned for long streams whose prompt changes; a folder in diffusers' layout",
            source=CheckpointSource(kind="folder", location="longlive-1.3b"),
            recipe=_recipe("wan2.1-self-forcing-1.3b", method="streaming_long_tuning"),
            guidance_scale=None,
            flow_shift=5.0,
            num_frames=477,
            license="CC-BY-NC-SA-4.0",
            num_heads=12,
        ),
        rule=ChunkRule(chunk_frames=3, window_frames=12, sink_frames=3),
        steps=_STEPS,
        num_layers=30,
        width=1536,
    ),
    CausalFacts(
        base=WanFacts(
            model_id="sfwan2.2-i2v-a14b-preview",
            title="Self Forcing: Wan 2.2 A14B made causal, two experts, eight steps a chunk, from an image, 480p",
            source=CheckpointSource(
                kind="hub",
                location="FastVideo/SFWan2.2-I2V-A14B-Preview-Diffusers",
                revision="0977572ccf137da5e577d62e3231ca840151af38",
            ),
            recipe=_recipe("wan2.2-t2v-a14b"),
            guidance_scale=None,
            boundary_ratio=0.875,
            flow_shift=12.0,
            num_frames=73,
            num_heads=40,
        ),
        rule=ChunkRule(chunk_frames=3, window_frames=21, first_frames=1),
        steps=(1000, 850, 700, 550, 350, 275, 200, 125),
        num_layers=40,
        width=5120,
        has_reread=False,
        tasks=("image_to_video", "video_to_video"),
    ),
)


@cache
def published_causal_cards() -> Sequence[ModelCard]:
    """Return the cards of all published causal checkpoints."""
    return tuple(make_causal_card(facts) for facts in PUBLISHED_CAUSAL)
