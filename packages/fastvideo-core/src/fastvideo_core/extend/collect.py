"""Gathers what the loaded plugins bring through one hook: descriptions of one kind, each name once."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastvideo_core.errors import PluginError, describe_failure
from fastvideo_core.extend.base import PluginSpec
from fastvideo_core.extend.plugins import PluginRegistry

__all__ = ["Brought", "collect_specs"]

SpecT = TypeVar("SpecT", bound=PluginSpec)


@dataclass(frozen=True, slots=True)
class Brought(Generic[SpecT]):
    """A description, and the plugin that brings it."""

    plugin: str
    spec: SpecT


def collect_specs(
    registry: PluginRegistry, hook: str, kind: type[SpecT], *, taken: Collection[str] = ()
) -> tuple[dict[str, Brought[SpecT]], PluginRegistry]:
    """Return what the plugins bring through a hook, by name, and the registry with those noted as failed that fail.

    A plugin fails that brings what another one brought, in the order of the plugins' names, or what is not of the kind.

    Args:
        registry: Loaded plugins.
        hook: A hook without arguments that gives a sequence of descriptions.
        kind: Their class.
        taken: Names that core has already.
    """
    found: dict[str, Brought[SpecT]] = {}
    for plugin, _ in sorted(registry.manager.list_name_plugin()):
        try:
            own = _specs_of(registry.call_one(plugin, hook), hook, kind)
            if doubled := sorted(own.keys() & (found.keys() | set(taken))):
                raise PluginError(f"{hook} gave names that are taken, {', '.join(doubled)}; uninstall one of the two")
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the others stay
            registry = registry.with_failure(plugin, describe_failure(error))
            continue
        found |= {name: Brought(plugin, spec) for name, spec in own.items()}
    return dict(sorted(found.items())), registry


def _specs_of(brought: Any, hook: str, kind: type[SpecT]) -> dict[str, SpecT]:
    if brought is None:
        return {}
    if isinstance(brought, (str, PluginSpec)) or not isinstance(brought, Iterable):
        raise PluginError(f"{hook} gave a {type(brought).__name__}; allowed: a sequence of {kind.__name__}")
    specs: dict[str, SpecT] = {}
    for spec in brought:
        if not isinstance(spec, kind):
            raise PluginError(f"{hook} gave a {type(spec).__name__}; allowed: {kind.__name__}")
        if spec.name in specs:
            raise PluginError(f"{hook} gave two of the name {spec.name!r}")
        specs[spec.name] = spec
    return specs
