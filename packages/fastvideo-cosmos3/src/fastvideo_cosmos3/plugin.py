"""The plugin of the Cosmos3 family: how it knows a checkpoint of its own, and `fastvideo chat`. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastvideo_core.extend import Command, hookimpl

if TYPE_CHECKING:
    from fastvideo_core.card import CheckpointSource, ModelCard

HOOK_VERSIONS = ">=1.0,<2"


@hookimpl
def model_cards() -> Sequence[ModelCard]:
    """Return no card: one is made of the checkpoint's own files, wherever it is."""
    return ()


@hookimpl
def card_from_layout(
    source: CheckpointSource, index: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]
) -> ModelCard | None:
    """Describe a Cosmos3 checkpoint."""
    from fastvideo_cosmos3.cards.layout import card_from_folder

    return card_from_folder(source, index, configs)


@hookimpl
def cli_commands() -> Mapping[str, Command]:
    """Return `fastvideo chat`."""
    return {
        "chat": Command(
            "ask a card that reasons, with an image or a video if you like", "fastvideo_cosmos3.commands.chat"
        )
    }
