"""Commands of the command line, the built-in ones and those that plugins bring. Imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastvideo_core.errors import PluginError, describe_failure
from fastvideo_core.extend.plugins import DEFAULT_KINDS, PluginRegistry

__all__ = ["COMMAND_KINDS", "Command", "collect_commands"]

COMMAND_KINDS = DEFAULT_KINDS
"""Kinds of plugins whose commands are on without any configuration."""

_NAME = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class Command:
    """A command, or a group of commands.

    Attributes:
        summary: One line for the help text.
        module: Module with `DESCRIPTION`, `EPILOG`, `add_arguments(parser)` and `run(args, shell) -> int`; not
            imported before the command is asked for.
        subcommands: Commands of a group, in place of a module.
    """

    summary: str
    module: str = ""
    subcommands: dict[str, Command] | None = None


def collect_commands(registry: PluginRegistry) -> tuple[dict[str, Command], PluginRegistry]:
    """Return the commands that plugins bring, by name, and the registry with those noted as failed that bring none.

    A plugin that brings what another one brought, in the order of their names, fails.
    """
    commands: dict[str, Command] = {}
    for plugin, _ in sorted(registry.manager.list_name_plugin()):
        try:
            own = _commands_of(registry.call_one(plugin, "cli_commands"))
            if doubled := sorted(commands.keys() & own.keys()):
                raise PluginError(f"brings commands that another plugin brings too, {doubled}; uninstall one")
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the others' commands stay
            registry = registry.with_failure(plugin, describe_failure(error))
            continue
        commands |= own
    return dict(sorted(commands.items())), registry


def _commands_of(brought: Any) -> dict[str, Command]:
    if brought is None:
        return {}
    if not isinstance(brought, Mapping):
        raise PluginError(f"cli_commands gave a {type(brought).__name__}; allowed: a mapping of names to Command")
    for name, command in brought.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise PluginError(f"cli_commands gave the name {name!r}; allowed: lower case letters, digits and hyphens")
        if not isinstance(command, Command):
            raise PluginError(f"cli_commands gave a {type(command).__name__} for {name!r}; allowed: Command")
    return dict(brought)
