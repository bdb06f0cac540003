"""The cards of published Wan checkpoints. Figures are those of the releases; revisions pin the files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from fastvideo_core.card import CheckpointSource, DataRef, ModelCard, RecipeSpec
from fastvideo_wan.cards.build import make_card
from fastvideo_wan.cards.facts import WanFacts

__all__ = ["PUBLISHED", "published_cards"]

_DATA = DataRef(name="wan-pretraining", license="not published", description="Images and videos of the Wan team.")


def _hub(repository: str, revision: str) -> CheckpointSource:
    return CheckpointSource(kind="hub", location=repository, revision=revision)


_BASE = RecipeSpec(method="base", data_contract=_DATA, assumes_loop="diffusion_denoise")

PUBLISHED: tuple[WanFacts, ...] = (
    WanFacts(
        model_id="wan2.1-t2v-1.3b",
        title="Wan 2.1 text to video, 1.3 billion parameters, 480p",
        source=_hub("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "0fad780a534b6463e45facd96134c9f345acfa5b"),
        recipe=_BASE,
        num_heads=12,
    ),
)


@cache
def published_cards() -> Sequence[ModelCard]:
    """Return the cards of all published checkpoints."""
    return tuple(make_card(facts) for facts in PUBLISHED)
