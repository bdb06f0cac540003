"""The plugin: `fastvideo serve`, and the `server` section of the deploy config. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastvideo_core.extend import ConfigSection, hookimpl
from fastvideo_core.extend.commands import Command

_HERE = "fastvideo_server.cli"

HOOK_VERSIONS = ">=1.0,<2"


@hookimpl
def cli_commands() -> Mapping[str, Command]:
    """Return the server's command."""
    return {"serve": Command("serve a card over HTTP", f"{_HERE}.serve")}


@hookimpl
def config_sections() -> Sequence[ConfigSection]:
    """Return the `server` section of the deploy config."""
    return [ConfigSection(name="server", implementation="fastvideo_server.config:ServerConfig")]
