"""The extension surface and the loading of plugins."""

from fastvideo_core.extend.base import (
    AttentionBackendSpec,
    ConfigSection,
    DoctorCheck,
    HookedSpec,
    InterceptorSpec,
    MethodSpec,
    NodeSpec,
    ObserverSpec,
    PluginSpec,
    ProgramTemplate,
    RewardSpec,
    SamplerSpec,
    ServerPartSpec,
    TransportSpec,
)
from fastvideo_core.extend.commands import Command
from fastvideo_core.extend.hookspecs import ENTRY_POINT_GROUP, HOOK_VERSION, hookimpl
from fastvideo_core.extend.plugins import LoadedPlugin, PluginRegistry, find_plugins, load_plugins

__all__ = [
    "ENTRY_POINT_GROUP",
    "HOOK_VERSION",
    "AttentionBackendSpec",
    "Command",
    "ConfigSection",
    "DoctorCheck",
    "HookedSpec",
    "InterceptorSpec",
    "LoadedPlugin",
    "MethodSpec",
    "NodeSpec",
    "ObserverSpec",
    "PluginRegistry",
    "PluginSpec",
    "ProgramTemplate",
    "RewardSpec",
    "SamplerSpec",
    "ServerPartSpec",
    "TransportSpec",
    "find_plugins",
    "hookimpl",
    "load_plugins",
]
