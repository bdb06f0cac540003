"""The plugin: `fastvideo comfy …`. Imports little, and no torch."""

from __future__ import annotations

from collections.abc import Mapping

from fastvideo_core.extend import hookimpl
from fastvideo_core.extend.commands import Command

_HERE = "fastvideo_comfy.cli"

HOOK_VERSIONS = ">=1.0,<2"


@hookimpl
def cli_commands() -> Mapping[str, Command]:
    """Return the group of ComfyUI commands."""
    comfy = {
        "check": Command("what becomes of every node of a workflow", f"{_HERE}.check"),
        "compile": Command("compile a workflow to a program", f"{_HERE}.compile"),
        "run": Command("run a workflow, or a product made of one", f"{_HERE}.run"),
        "coverage": Command("which workflows of a folder compile", f"{_HERE}.coverage"),
    }
    return {"comfy": Command("compile and run ComfyUI workflows", subcommands=comfy)}
