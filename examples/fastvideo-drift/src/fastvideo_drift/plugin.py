"""The plugin: how the family knows a checkpoint of its own, and its command. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastvideo_core.card import CheckpointSource, ModelCard
from fastvideo_core.extend import Command, hookimpl
from fastvideo_drift.card import PIPELINE_NAME, make_card

HOOK_VERSIONS = ">=1.0,<2"


@hookimpl
def card_from_layout(source: CheckpointSource, index: Mapping[str, Any]) -> ModelCard | None:
    """Describe a checkpoint of this family."""
    return make_card(source) if index.get("_class_name") == PIPELINE_NAME else None


@hookimpl
def cli_commands() -> Mapping[str, Command]:
    """Return the command that makes weights."""
    train = Command("train a checkpoint into a folder", "fastvideo_drift.command")
    return {"drift": Command("the drift family", subcommands={"train": train})}
