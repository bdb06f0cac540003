"""Finding and loading model plugins by their entry points, with every failure named.

Loading is done here rather than by pluggy: its own loader drops a second entry point of the same name silently, stops
at the first import that fails, and accepts a misspelt hook until it is asked to check.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pluggy
from importlib_metadata import EntryPoint, entry_points

from fastvideo_core.errors import PluginError
from fastvideo_core.extend import hookspecs
from fastvideo_core.extend.hookspecs import ENTRY_POINT_GROUP, PROJECT_NAME

__all__ = ["LoadedPlugin", "PluginRegistry", "load_plugins"]


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """One entry point and what became of it.

    Attributes:
        name: `<kind>.<name>`, for instance `model.wan`.
        distribution: Distribution that brings it.
        version: Its version.
        error: Why it is not loaded; None if it is.
    """

    name: str
    distribution: str
    version: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PluginRegistry:
    """All plugins that were asked for, and the hooks of those that loaded."""

    plugins: tuple[LoadedPlugin, ...]
    manager: pluggy.PluginManager

    @property
    def failed(self) -> tuple[LoadedPlugin, ...]:
        """Plugins that did not load."""
        return tuple(plugin for plugin in self.plugins if plugin.error is not None)


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
    if available is None:
        available = entry_points(group=ENTRY_POINT_GROUP)
    wanted = sorted((e for e in available if e.name.partition(".")[0] in set(kinds)), key=lambda e: e.name)
    _refuse_duplicates(wanted)
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    loaded = tuple(_load(entry, manager) for entry in wanted)
    if strict and (failed := [plugin for plugin in loaded if plugin.error is not None]):
        raise PluginError("; ".join(f"{p.name} ({p.distribution} {p.version}): {p.error}" for p in failed))
    return PluginRegistry(loaded, manager)


def _refuse_duplicates(entries: list[EntryPoint]) -> None:
    for first, second in zip(entries, entries[1:], strict=False):
        # The same distribution can be seen twice when it is on the path twice; that is one plugin.
        if first.name == second.name and (first.value, _owner(first)) != (second.value, _owner(second)):
            raise PluginError(
                f"two plugins are named {first.name!r}: {' '.join(_owner(first))} ({first.value}) and "
                f"{' '.join(_owner(second))} ({second.value}); uninstall one"
            )


def _owner(entry: EntryPoint) -> tuple[str, str]:
    return (entry.dist.name, entry.dist.version) if entry.dist is not None else ("unknown distribution", "?")


def _load(entry: EntryPoint, manager: pluggy.PluginManager) -> LoadedPlugin:
    distribution, version = _owner(entry)
    try:
        module = entry.load()
        if not manager.has_plugin(entry.name):
            manager.register(module, name=entry.name)
        if not manager.get_hookcallers(module):
            raise PluginError(f"module {entry.value} implements no hook of {PROJECT_NAME}")
        manager.check_pending()
    except Exception as error:  # a foreign package may raise anything; it is reported by name, and the others load
        if manager.has_plugin(entry.name):
            manager.unregister(name=entry.name)
        return LoadedPlugin(entry.name, distribution, version, f"{type(error).__name__}: {error}")
    return LoadedPlugin(entry.name, distribution, version)
