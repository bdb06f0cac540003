"""The plugin of the Wan family: its cards, and how it knows a checkpoint of its own. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastvideo_core.extend import Command, hookimpl

if TYPE_CHECKING:
    from fastvideo_core.card import CheckpointSource, ModelCard

HOOK_VERSIONS = ">=1.0,<2"


@hookimpl
def model_cards() -> Sequence[ModelCard]:
    """Return the published cards and the one that ships."""
    from fastvideo_wan.cards.causal_published import published_causal_cards
    from fastvideo_wan.cards.published import published_cards
    from fastvideo_wan.cards.shapes import shapes_cards

    return (*shapes_cards(), *published_cards(), *published_causal_cards())


@hookimpl
def hub_repositories() -> Mapping[str, str]:
    """Return the hub repositories behind the published cards."""
    from fastvideo_wan.cards.causal_published import published_causal_cards
    from fastvideo_wan.cards.published import published_cards

    cards = (*published_cards(), *published_causal_cards())
    return {card.checkpoint.source.location: card.model_id for card in cards if card.checkpoint.source.kind == "hub"}


@hookimpl
def card_from_layout(
    source: CheckpointSource, index: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]
) -> ModelCard | None:
    """Describe a Wan checkpoint in diffusers layout."""
    from fastvideo_wan.cards.layout import card_from_folder

    return card_from_folder(source, index, configs)


@hookimpl
def cli_commands() -> Mapping[str, Command]:
    """Return `fastvideo eval`."""
    return {
        "eval": Command("judge a card by videos of prompts that it was not trained on", "fastvideo_wan.commands.eval")
    }
