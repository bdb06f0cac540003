"""`fastvideo plugins list`: installed plugins, and which are on."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.setup import add_assignments, add_config_option
from fastvideo_core.cli.shell import Shell
from fastvideo_core.cli.table import format_table

if TYPE_CHECKING:
    from importlib_metadata import EntryPoint

    from fastvideo_core.extend import PluginRegistry

__all__ = ["DESCRIPTION", "EPILOG", "PluginRow", "add_arguments", "run"]

DESCRIPTION = """\
List the installed plugins: name, distribution, version, hooks, and whether each is on, or why not. A plugin that is not
on is not imported; its hooks are those that its source says."""
EPILOG = "Models and commands are on unless the deploy config says otherwise; all others are on where it names them."


@dataclass(frozen=True, slots=True)
class PluginRow:
    """One plugin.

    Attributes:
        name: `<kind>.<name>`.
        distribution: What brings it.
        version: Its version.
        hooks: Hooks that it implements; where it is not on, as far as its source says.
        state: `on`, or why not.
    """

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...]
    state: str


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    add_config_option(parser)
    add_assignments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: Namespace, shell: Shell) -> int:
    """Print the list."""
    from fastvideo_core.cli.setup import has_config
    from fastvideo_core.extend.plugins import DEFAULT_KINDS, find_plugins, load_plugins

    named: dict[str, bool] = {}
    if has_config(args):
        from fastvideo_core.deploy import resolve_config

        resolved = resolve_config(args.config, assignments=args.set)
        named = {name: one.enabled for name, one in resolved.config.plugins.items()}
    entries = find_plugins()
    installed = {entry.name for entry in entries}
    names = [name for name, is_on in named.items() if is_on and name in installed]
    registry = load_plugins(DEFAULT_KINDS, names=names, without=[name for name, is_on in named.items() if not is_on])
    rows = [_row(entry, registry, named) for entry in entries]
    rows += [PluginRow(name, "-", "-", (), "not installed") for name in sorted(set(named) - installed)]
    if args.json:
        shell.say(json.dumps({"plugins": [asdict(row) for row in rows]}, indent=2))
    elif rows:
        table = [(row.name, row.distribution, row.version, row.state, ", ".join(row.hooks)) for row in rows]
        shell.say(format_table(table, header=("plugin", "distribution", "version", "state", "hooks")))
    else:
        shell.tell("no plugins: install a package that brings some, such as fastvideo-wan")
    return 0


def _row(entry: EntryPoint, registry: PluginRegistry, named: dict[str, bool]) -> PluginRow:
    from fastvideo_core.extend.declared import declared_hooks

    found = next((plugin for plugin in registry.plugins if plugin.name == entry.name), None)
    if found is not None:
        told = f", and uses what will go: {'; '.join(found.deprecated)}" if found.deprecated else ""
        state = f"on{told}" if found.error is None else f"failed: {found.error}"
        return PluginRow(found.name, found.distribution, found.version, found.hooks, state)
    state = "off: the config says so" if named.get(entry.name) is False else "off: the config does not name it"
    distribution, version = ("?", "?") if entry.dist is None else (entry.dist.name, entry.dist.version)
    return PluginRow(entry.name, distribution, version, declared_hooks(entry), state)
