"""Finding and loading plugins by their entry points, with every failure named.

Loading is done here rather than by pluggy: its own loader drops a second entry point of the same name silently, stops
at the first import that fails, and accepts a misspelt hook until it is asked to check.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pluggy
from importlib_metadata import EntryPoint, entry_points

from fastvideo_core.errors import PluginError, describe_failure
from fastvideo_core.extend import hookspecs
from fastvideo_core.extend.hookspecs import ENTRY_POINT_GROUP, PROJECT_NAME

__all__ = ["LoadedPlugin", "PluginRegistry", "load_plugins"]

_UNKNOWN_OWNER = ("unknown distribution", "?")


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """One entry point and what became of it.

    Attributes:
        name: `<kind>.<name>`, for instance `model.wan`.
        distribution: Distribution that brings it.
        version: Its version.
        error: Why it is not loaded; None if it is.
        package: The top-level package of its module.
    """

    name: str
    distribution: str
    version: str
    error: str | None = None
    package: str = ""

    def __str__(self) -> str:
        """Return name, distribution and version, for messages."""
        return f"{self.name} ({self.distribution} {self.version})"


@dataclass(frozen=True, slots=True)
class PluginRegistry:
    """All plugins that were asked for, and the hooks of those that loaded."""

    plugins: tuple[LoadedPlugin, ...]
    manager: pluggy.PluginManager

    @property
    def failed(self) -> tuple[LoadedPlugin, ...]:
        """Plugins that did not load."""
        return tuple(plugin for plugin in self.plugins if plugin.error is not None)

    @property
    def packages(self) -> frozenset[str]:
        """Top-level packages of all plugins: what their checkpoints' cards may name."""
        return frozenset(plugin.package for plugin in self.plugins)

    def call_one(self, plugin: str, hook: str) -> Any:
        """Call a hook that takes no arguments in one plugin; return None if the plugin does not implement it."""
        for implementation in getattr(self.manager.hook, hook).get_hookimpls():
            if implementation.plugin_name == plugin:
                return implementation.function()
        return None

    def with_failure(self, name: str, error: str) -> PluginRegistry:
        """Return a registry that says of a plugin why it is of no use."""
        of_name = [plugin for plugin in self.plugins if plugin.name == name] or [LoadedPlugin(name, *_UNKNOWN_OWNER)]
        others = [plugin for plugin in self.plugins if plugin.name != name]
        failed = [replace(plugin, error=error) for plugin in of_name]
        return replace(self, plugins=tuple(sorted([*others, *failed], key=lambda plugin: plugin.name)))


def load_plugins(
    kinds: Iterable[str] = ("model",), *, available: Iterable[EntryPoint] | None = None, strict: bool = False
) -> PluginRegistry:
    """Import the installed plugins of some kinds and register their hooks.

    Args:
        kinds: First parts of the entry points' names; other plugins are not imported.
        available: Entry points to choose from; None takes those that are installed.
        strict: Whether a plugin that fails is an error; else it is reported in the registry and the others load.

    Raises:
        PluginError: Two distributions bring the same plugin, or, with `strict`, one fails to load.
    """
    chosen = set(kinds)
    if available is None:
        available = entry_points(group=ENTRY_POINT_GROUP)
    wanted = _without_doubles(entry for entry in available if entry.name.partition(".")[0] in chosen)
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    registry = PluginRegistry(tuple(_load(entry, manager) for entry in wanted), manager)
    if strict and registry.failed:
        raise PluginError("; ".join(f"{plugin}: {plugin.error}" for plugin in registry.failed))
    return registry


def _without_doubles(entries: Iterable[EntryPoint]) -> list[EntryPoint]:
    """Return the entries by name; one that is seen twice, since its distribution is on the path twice, is one plugin.

    Raises:
        PluginError: Two distributions bring a plugin of the same name, or one brings two.
    """
    known = {(entry.name, entry.value, *_owner(entry)): entry for entry in entries}
    in_order = [known[key] for key in sorted(known)]
    for first, second in pairwise(in_order):
        if first.name == second.name:
            raise PluginError(
                f"two plugins are named {first.name!r}: {' '.join(_owner(first))} ({first.value}) and "
                f"{' '.join(_owner(second))} ({second.value}); uninstall one"
            )
    return in_order


def _owner(entry: EntryPoint) -> tuple[str, str]:
    return (entry.dist.name, entry.dist.version) if entry.dist is not None else _UNKNOWN_OWNER


def _load(entry: EntryPoint, manager: pluggy.PluginManager) -> LoadedPlugin:
    distribution, version = _owner(entry)
    loaded = LoadedPlugin(entry.name, distribution, version, package=entry.value.partition(":")[0].partition(".")[0])
    try:
        module = entry.load()
        if (other := manager.get_name(module)) is not None:
            raise PluginError(f"module {entry.value} is already plugin {other}")
        manager.register(module, name=entry.name)
        if not manager.get_hookcallers(module):
            raise PluginError(f"module {entry.value} implements no hook of {PROJECT_NAME}")
        manager.check_pending()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a foreign package may raise anything; the others load
        if manager.has_plugin(entry.name):
            manager.unregister(name=entry.name)
        return replace(loaded, error=describe_failure(error))
    return loaded
