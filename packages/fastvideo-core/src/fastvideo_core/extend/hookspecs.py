"""The extension surface. Every hook that a plugin may implement is here, with what it is given and must return.

A plugin is a module named by an entry point of group `fastvideo.plugins`; the entry's name is `<kind>.<name>`. The
module marks its functions with `hookimpl` and imports neither torch nor a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from fastvideo_core.card import CheckpointSource, ModelCard
    from fastvideo_core.extend.commands import Command

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


@hookspec
def cli_commands() -> Mapping[str, Command]:
    """Return commands for the command line, by name; a built-in command of that name hides the plugin's.

    It is called when the help is shown or a command is not built in, so the plugin's module should import little; the
    command's own module is imported when it runs.
    """
    raise AssertionError("a specification is not called")
