"""The plugin: `fastvideo serve`, its clients, and the `server` section of the deploy config. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastvideo_core.extend import ConfigSection, hookimpl
from fastvideo_core.extend.commands import Command

_HERE = "fastvideo_server.cli"

HOOK_VERSIONS = ">=1.0,<2"


@hookimpl
def cli_commands() -> Mapping[str, Command]:
    """Return the server's command, and those that speak to a server."""
    return {
        "serve": Command("serve a card over HTTP", f"{_HERE}.serve"),
        "submit": Command("hand a prompt to a server", f"{_HERE}.submit"),
        "status": Command("jobs of a server, or one of them", f"{_HERE}.status"),
        "watch": Command("follow a server's job to its end", f"{_HERE}.watch"),
        "cancel": Command("cancel a server's jobs and delete them", f"{_HERE}.cancel"),
    }


@hookimpl
def config_sections() -> Sequence[ConfigSection]:
    """Return the `server` section of the deploy config."""
    return [ConfigSection(name="server", implementation="fastvideo_server.config:ServerConfig")]
