"""The extension surface. Every hook that a plugin may implement is here, with what it is given and must return.

A plugin is a module named by an entry point of group `fastvideo.plugins`; the entry's name is `<kind>.<name>`. The
module marks its functions with `hookimpl` and imports neither torch nor a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pluggy

from fastvideo_core.card import CheckpointSource, ModelCard

__all__ = ["ENTRY_POINT_GROUP", "PROJECT_NAME", "hookimpl", "hookspec"]

PROJECT_NAME = "fastvideo"
ENTRY_POINT_GROUP = "fastvideo.plugins"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@hookspec
def model_cards() -> Sequence[ModelCard]:
    """Return the cards that the plugin brings."""
    raise AssertionError("a specification is not called")


@hookspec(firstresult=True)
def card_from_layout(
    source: CheckpointSource, index: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]
) -> ModelCard | None:
    """Describe a checkpoint in a layout of this family, or return None if it is of another family.

    Args:
        source: Where the checkpoint is.
        index: Content of its `model_index.json`.
        configs: Content of each component's `config.json` (or `scheduler_config.json`), by folder.
    """
    raise AssertionError("a specification is not called")


@hookspec
def hub_repositories() -> Mapping[str, str]:
    """Return the hub repositories that the plugin's cards stand for: repository to card id."""
    raise AssertionError("a specification is not called")
