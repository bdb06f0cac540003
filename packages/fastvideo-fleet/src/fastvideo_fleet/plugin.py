"""The plugin: `fastvideo fleet …`. Imports neither numpy nor torch."""

from __future__ import annotations

from collections.abc import Mapping

from fastvideo_core.extend import hookimpl
from fastvideo_core.extend.commands import Command

_HERE = "fastvideo_fleet.cli"

HOOK_VERSIONS = ">=1.0,<2"


@hookimpl
def cli_commands() -> Mapping[str, Command]:
    """Return the group of fleet commands."""
    trace = {
        "make": Command("make a trace with the seeded generator", f"{_HERE}.trace_make"),
        "check": Command("check a trace, line by line", f"{_HERE}.trace_check"),
        "show": Command("figures of a trace", f"{_HERE}.trace_show"),
    }
    fleet = {
        "simulate": Command("run one policy on a trace", f"{_HERE}.simulate"),
        "compare": Command("run all policies on a trace, side by side", f"{_HERE}.compare"),
        "trace": Command("make and check session traces", subcommands=trace),
    }
    return {"fleet": Command("simulate a fleet that serves streaming sessions", subcommands=fleet)}
