"""The extension surface and the loading of plugins."""

from fastvideo_core.extend.commands import Command
from fastvideo_core.extend.hookspecs import ENTRY_POINT_GROUP, hookimpl
from fastvideo_core.extend.plugins import LoadedPlugin, PluginRegistry, load_plugins

__all__ = ["ENTRY_POINT_GROUP", "Command", "LoadedPlugin", "PluginRegistry", "hookimpl", "load_plugins"]
