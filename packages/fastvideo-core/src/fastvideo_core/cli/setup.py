"""The deploy config as commands meet it: `--config FILE`, `--set key=value`, and environment variables."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastvideo_core.cli.jobs import DEFAULT_SUFFIX, find_card
from fastvideo_core.cli.options import is_config_key
from fastvideo_core.cli.parser import Parser, assignment
from fastvideo_core.cli.shell import Shell

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard
    from fastvideo_core.deploy import Deployment
    from fastvideo_core.extend.extensions import Extensions
    from fastvideo_core.runtime.engine import RuntimeOptions

__all__ = [
    "CONFIG_VARIABLES",
    "Setup",
    "add_assignments",
    "add_config_option",
    "config_assignments",
    "has_config",
    "read_setup",
]

CONFIG_VARIABLES = ("FASTVIDEO_CONFIG", "FASTVIDEO__")
"""The variable that names the config, and how those begin that set a value of it."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What the deploy config says; without one, the defaults and no plugin that alters anything.

    Attributes:
        deployment: The config at work; None if nobody has set anything.
    """

    deployment: Deployment | None = None

    def find_card(self, name: str | None, *, default: str | None = None) -> ModelCard:
        """Return the card that was asked for, or the config's, or the default one; see `jobs.find_card`."""
        if self.deployment is None:
            return find_card(name, default=default)
        is_set = ("card",) in self.deployment.resolved.origins
        return self.deployment.find_card(default if name is None and not is_set else name)

    def device(self, card: ModelCard, asked: str) -> str:
        """Return the device; `auto` leaves it to the config."""
        return asked if self.deployment is None or asked != "auto" else self.deployment.device(card)

    def precision(self, card: ModelCard, asked: str | None) -> str | None:
        """Return the number format; None leaves it to the config, and then to the card."""
        return asked if self.deployment is None or asked is not None else self.deployment.precision(card)

    def parameters(self, card: ModelCard, task: str) -> Mapping[str, Any]:
        """Return the parameters that the config sets for a task."""
        return {} if self.deployment is None else self.deployment.parameters(card, task)

    def extensions(self, card: ModelCard) -> Extensions | None:
        """Return the plugins that are on for a card."""
        return None if self.deployment is None else self.deployment.extensions_for(card)

    def runtime_options(self) -> RuntimeOptions | None:
        """Return the settings of an engine; None takes its own."""
        return None if self.deployment is None else self.deployment.runtime_options()

    def max_running(self, default: int) -> int:
        """Return how many requests may be in progress at a time."""
        if self.deployment is None or self.deployment.resolved.setter(("limits", "max_running")).layer == "default":
            return default
        return self.deployment.resolved.config.limits.max_running

    def tell_failures(self, shell: Shell) -> None:
        """Tell of the plugins that failed, where the config lets the others go on."""
        for plugin in () if self.deployment is None else self.deployment.extensions.failed:
            shell.tell(f"warning: {plugin} failed: {plugin.error}")

    @property
    def folder(self) -> Path:
        """Folder of results that are given no name."""
        return Path("outputs") if self.deployment is None else self.deployment.resolved.config.output.folder

    @property
    def suffix(self) -> str:
        """Extension of these."""
        return (
            DEFAULT_SUFFIX
            if self.deployment is None
            else f".{self.deployment.resolved.config.output.format.lstrip('.')}"
        )


def add_config_option(parser: Parser) -> None:
    """Add `--config`."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="deploy config: plugins, cards, devices, limits (default: the file that FASTVIDEO_CONFIG names, or none)",
    )


def add_assignments(parser: Parser) -> None:
    """Add `--set`, for commands that take keys of the config without a card's own parameters."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=assignment,
        metavar="KEY=VALUE",
        help="a value in place of the file's; VALUE is JSON, or text where it is no JSON; may be repeated",
    )


def config_assignments(args: Namespace) -> list[tuple[str, Any]]:
    """Return those of `--set` that are for the config; see `is_config_key`."""
    return [(name, value) for name, value in args.set if is_config_key(name)]


def has_config(args: Namespace) -> bool:
    """Say whether anybody has set a value of the deploy config: a file, the environment, or `--set`."""
    is_given = args.config is not None or bool(config_assignments(args))
    return is_given or any(name.startswith(CONFIG_VARIABLES) for name in os.environ)


def read_setup(args: Namespace) -> Setup:
    """Read the deploy config, if there is any, and load the plugins that it switches on.

    Raises:
        ConfigError: Something in it is not allowed.
        PluginError: A plugin fails.
    """
    if not has_config(args):
        return Setup()
    from fastvideo_core.deploy import deploy, resolve_config

    resolved = resolve_config(args.config, assignments=config_assignments(args))
    return Setup() if resolved.is_default else Setup(deploy(resolved))
