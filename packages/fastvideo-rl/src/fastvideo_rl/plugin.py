"""The plugin: `fastvideo rl …`. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from fastvideo_core.extend import hookimpl
from fastvideo_core.extend.commands import Command

_HERE = "fastvideo_rl.cli"

HOOK_VERSIONS = ">=1.0,<2"


@hookimpl
def cli_commands() -> Mapping[str, Command]:
    """Return the group of training commands."""
    commands = {
        "train": Command("train a card, as a config says", f"{_HERE}.train"),
        "resume": Command("go on with a run from its last checkpoint", f"{_HERE}.resume"),
        "eval": Command("score a card, or what a run has made of it, by a config's rewards", f"{_HERE}.evaluate"),
        "compare": Command("score two cards on the same prompts and seeds, side by side", f"{_HERE}.compare"),
    }
    return {"rl": Command("reinforcement learning and distillation on the serving loop", subcommands=commands)}
