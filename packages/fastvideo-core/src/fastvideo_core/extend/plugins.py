"""Finding and loading plugins by their entry points, with every failure named.

Loading is done here rather than by pluggy: its own loader drops a second entry point of the same name silently, stops
at the first import that fails, and accepts a misspelt hook until it is asked to check.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

import pluggy
from importlib_metadata import EntryPoint, entry_points

from fastvideo_core.errors import PluginError, describe_failure
from fastvideo_core.extend import hookspecs
from fastvideo_core.extend.hookspecs import ENTRY_POINT_GROUP, PROJECT_NAME
from fastvideo_core.extend.requirements import hook_problem, requirement_problem

__all__ = ["DEFAULT_KINDS", "LoadedPlugin", "PluginRegistry", "find_plugins", "load_plugins"]

DEFAULT_KINDS = ("command", "model")
"""Kinds of plugins that are on without a deploy config: they bring something new and change nothing else."""

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
        hooks: Hooks that it implements.
        deprecated: Those of them that will go, each with what takes its place.
    """

    name: str
    distribution: str
    version: str
    error: str | None = None
    package: str = ""
    hooks: tuple[str, ...] = ()
    deprecated: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The first part of its name."""
        return self.name.partition(".")[0]

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


def find_plugins(available: Iterable[EntryPoint] | None = None) -> list[EntryPoint]:
    """Return the entry points of all installed plugins, by name; nothing is imported.

    Args:
        available: Entry points to choose from; None takes those that are installed.

    Raises:
        PluginError: Two distributions bring a plugin of the same name, or one brings two.
    """
    return _without_doubles(entry_points(group=ENTRY_POINT_GROUP) if available is None else available)


def load_plugins(
    kinds: Iterable[str] = ("model",),
    *,
    names: Iterable[str] = (),
    without: Iterable[str] = (),
    available: Iterable[EntryPoint] | None = None,
    strict: bool = False,
    check_requirements: bool = True,
) -> PluginRegistry:
    """Import the installed plugins of some kinds, and others by name, and register their hooks.

    What a distribution requires is compared with what is installed before its plugin is imported.

    Args:
        kinds: First parts of the entry points' names; other plugins are not imported.
        names: Plugins that are wanted besides these.
        without: Plugins that are not wanted.
        available: Entry points to choose from; None takes those that are installed.
        strict: Whether a plugin that fails is an error; else it is reported in the registry and the others load.
        check_requirements: Whether to read what the distributions require; a command line's help can do without.

    Raises:
        PluginError: Two distributions bring the same plugin, one that is wanted by name is not installed, or, with
            `strict`, one fails to load.
    """
    chosen, wanted, unwanted = set(kinds), set(names), set(without)
    if available is None:
        available = entry_points(group=ENTRY_POINT_GROUP)
    # The doubles among those that nobody wants are none of our business.
    offered = list(available)
    entries = [one for one in offered if one.name in wanted or one.name.partition(".")[0] in chosen]
    entries = _without_doubles(one for one in entries if one.name not in unwanted)
    _check_installed(wanted - unwanted, offered)
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    loaded = tuple(_load(entry, manager, check_requirements=check_requirements) for entry in entries)
    registry = PluginRegistry(loaded, manager)
    if strict and registry.failed:
        raise PluginError("; ".join(f"{plugin}: {plugin.error}" for plugin in registry.failed))
    return registry


def _check_installed(wanted: set[str], offered: list[EntryPoint]) -> None:
    installed = sorted({entry.name for entry in offered})
    for name in sorted(wanted - set(installed)):
        near = get_close_matches(name, installed, n=1, cutoff=0.5)
        hint = f"; nearest: {near[0]}" if near else ""
        raise PluginError(f"no plugin {name!r} is installed; installed: {', '.join(installed) or 'none'}{hint}")


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


def _load(entry: EntryPoint, manager: pluggy.PluginManager, *, check_requirements: bool) -> LoadedPlugin:
    distribution, version = _owner(entry)
    loaded = LoadedPlugin(entry.name, distribution, version, package=entry.value.partition(":")[0].partition(".")[0])
    try:
        if check_requirements and (problem := requirement_problem(entry.dist)) is not None:
            raise PluginError(problem)
        module = entry.load()
        if (problem := hook_problem(getattr(module, "HOOK_VERSIONS", None))) is not None:
            raise PluginError(problem)
        if (other := manager.get_name(module)) is not None:
            raise PluginError(f"module {entry.value} is already plugin {other}")
        manager.register(module, name=entry.name)
        if not (callers := manager.get_hookcallers(module)):
            raise PluginError(f"module {entry.value} implements no hook of {PROJECT_NAME}")
        manager.check_pending()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a foreign package may raise anything; the others load
        if manager.has_plugin(entry.name):
            manager.unregister(name=entry.name)
        return replace(loaded, error=describe_failure(error))
    hooks = tuple(sorted(caller.name for caller in callers))
    remedies = {name: getattr(getattr(hookspecs, name), "fastvideo_deprecated", None) for name in hooks}
    return replace(loaded, hooks=hooks, deprecated=tuple(f"{name}: {one}" for name, one in remedies.items() if one))
