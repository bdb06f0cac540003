"""What is on: the plugins that the deploy config names, with their options checked, and what a request may set of them.

Conflicts and wrong options are found here, before any card is looked at; imports neither torch nor what plugins do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import combinations
from types import MappingProxyType
from typing import Any, Generic, Self, TypeVar

from importlib_metadata import EntryPoint

from fastvideo_core.card import resolve_ref
from fastvideo_core.errors import FastVideoError, InputError, ParameterError, PluginError, describe_failure
from fastvideo_core.extend.base import (
    AttentionBackendSpec,
    HookedSpec,
    InterceptorSpec,
    MethodSpec,
    NodeSpec,
    ObserverSpec,
    PluginSpec,
    RewardSpec,
    SamplerSpec,
    ServerPartSpec,
    TransportSpec,
)
from fastvideo_core.extend.collect import Brought, collect_specs
from fastvideo_core.extend.plugins import DEFAULT_KINDS, LoadedPlugin, PluginRegistry, load_plugins

__all__ = ["NO_EXTENSIONS", "Enabled", "Extensions", "resolve_plugin_ref"]

SpecT = TypeVar("SpecT", bound=HookedSpec)

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Enabled(Generic[SpecT]):
    """An observer or interceptor that is on.

    Attributes:
        plugin: The plugin that brings it.
        spec: Its description.
        given: Options that the deploy config gives.
        options: The same, checked: an object of its model; None if it has none.
    """

    plugin: str
    spec: SpecT
    given: Mapping[str, Any]
    options: Any

    def with_request(self, given: Mapping[str, Any]) -> Any:
        """Return its options for one request, which sets some of them.

        Raises:
            ParameterError: An option that a request may not set, or a value that is not allowed.
        """
        for name, value in given.items():
            if name not in self.spec.request_options:
                near = get_close_matches(name, self.spec.request_options, n=1, cutoff=0.5)
                raise ParameterError(
                    "a request cannot set this option of the plugin",
                    field=f"plugins.{self.plugin}.{name}",
                    value=value,
                    allowed=", ".join(self.spec.request_options) or "none",
                    nearest=next(iter(near), None),
                )
        return _checked(self.plugin, self.spec, {**self.given, **given}) if given else self.options


@dataclass(frozen=True)
class Extensions:
    """All that is on.

    Attributes:
        registry: The loaded plugins, with those that failed.
        named: Plugins that were switched on by name; the others are on of themselves, and alter no computation.
        observers: Observers by name.
        interceptors: Interceptors by name; more than one may answer, in the order of their names.
        samplers: Samplers that plugins bring, by name.
        attention_backends: Attention backends that plugins bring, by name.
        transports: Transports that plugins bring, by name.
        training_methods: Training methods that plugins bring, by name.
        rewards: Rewards that plugins bring, by name.
        workflow_nodes: Node types of workflows that plugins bring, by the type's name in workflow files.
        server_parts: Parts of a server, of plugins that were switched on by name.
        attention: The attention backend that is chosen; `sdpa` is torch's own.
    """

    registry: PluginRegistry
    named: tuple[str, ...] = ()
    observers: Mapping[str, Enabled[ObserverSpec]] = field(default_factory=dict)
    interceptors: Mapping[str, Enabled[InterceptorSpec]] = field(default_factory=dict)
    samplers: Mapping[str, SamplerSpec] = field(default_factory=dict)
    attention_backends: Mapping[str, AttentionBackendSpec] = field(default_factory=dict)
    transports: Mapping[str, TransportSpec] = field(default_factory=dict)
    training_methods: Mapping[str, MethodSpec] = field(default_factory=dict)
    rewards: Mapping[str, RewardSpec] = field(default_factory=dict)
    workflow_nodes: Mapping[str, NodeSpec] = field(default_factory=dict)
    server_parts: Mapping[str, Brought[ServerPartSpec]] = field(default_factory=dict)
    attention: str = "sdpa"

    @classmethod
    def load(
        cls,
        plugins: Mapping[str, Mapping[str, Any]] = _NOTHING,
        *,
        without: Iterable[str] = (),
        strict: bool = False,
        available: Iterable[EntryPoint] | None = None,
    ) -> Self:
        """Load what is on: the installed models and commands, and plugins by name with their options.

        Args:
            plugins: Options by plugin, for those that are switched on by name.
            without: Models and commands that are switched off.
            strict: Whether a plugin that fails is an error; else it is named in the registry, and is not there.
            available: Entry points to choose from; None takes those that are installed.

        Raises:
            PluginError: A plugin is not installed or, with `strict`, fails; or two that are on cannot be together.
            ParameterError: An option that a plugin does not have, or a value that it does not allow.
        """
        registry = load_plugins(DEFAULT_KINDS, names=plugins, without=without, available=available, strict=strict)
        return cls.of(registry, plugins, strict=strict)

    @classmethod
    def of(
        cls, registry: PluginRegistry, plugins: Mapping[str, Mapping[str, Any]] = _NOTHING, *, strict: bool = False
    ) -> Self:
        """Gather what loaded plugins bring; see `load`."""
        named = tuple(sorted(plugins))
        observers, registry = _hooked(registry, "observers", ObserverSpec, plugins)
        interceptors, registry = _hooked(registry, "interceptors", InterceptorSpec, plugins)
        samplers, registry = collect_specs(registry, "samplers", SamplerSpec)
        backends, registry = collect_specs(registry, "attention_backends", AttentionBackendSpec, taken=("sdpa",))
        transports, registry = collect_specs(registry, "transports", TransportSpec, taken=("local",))
        methods, registry = collect_specs(registry, "training_methods", MethodSpec)
        rewards, registry = collect_specs(registry, "rewards", RewardSpec)
        parts, registry = collect_specs(registry, "server_parts", ServerPartSpec)
        nodes, registry = _by_node_type(*collect_specs(registry, "workflow_nodes", NodeSpec))
        if strict and registry.failed:
            raise PluginError("; ".join(f"{plugin}: {plugin.error}" for plugin in registry.failed))
        loaded = {name for name, _ in registry.manager.list_name_plugin()} - {one.name for one in registry.failed}
        _check_options_are_used(loaded, plugins, [*observers.values(), *interceptors.values()])
        _check_conflicts(interceptors)
        return cls(
            registry,
            named,
            observers,
            interceptors,
            {name: one.spec for name, one in samplers.items()},
            {name: one.spec for name, one in backends.items()},
            {name: one.spec for name, one in transports.items()},
            {name: one.spec for name, one in methods.items()},
            {name: one.spec for name, one in rewards.items()},
            nodes,
            {name: one for name, one in parts.items() if one.plugin in plugins},
        )

    @property
    def failed(self) -> tuple[LoadedPlugin, ...]:
        """Plugins that are of no use, with the reason."""
        return self.registry.failed

    @property
    def has_hooks(self) -> bool:
        """Whether any observer or interceptor is on."""
        return bool(self.observers or self.interceptors)

    def check_request(
        self, given: Mapping[str, Mapping[str, Any]], *, exact: bool, parameters: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Check what a request sets of plugins, and return the options of each interceptor for it.

        Args:
            given: The request's options, by plugin.
            exact: Whether the request asks for the reference's order of operations.
            parameters: Its resolved parameters.

        Raises:
            ParameterError: A plugin that is not on, an option that is not a request's, a value that is not allowed,
                fewer steps than an interceptor needs, or options that do not fit the parameters.
            InputError: It is exact, and something is on that alters results.
        """
        self._check_on(given)
        options = {name: one.with_request(given.get(one.plugin, _NOTHING)) for name, one in self.interceptors.items()}
        for name, one in self.interceptors.items():
            if exact and one.spec.distribution_altering:
                raise InputError(
                    f"plugin {one.plugin} is on, whose interceptor {name} alters results", field="exact", value=True,
                    allowed="false, or an engine without the plugin", nearest=False,
                )  # fmt: skip
            _check_steps(one, parameters.get("num_inference_steps"))
            _check_fit(one, options[name], parameters)
        return options

    def _check_on(self, given: Mapping[str, Mapping[str, Any]]) -> None:
        takers = sorted({one.plugin for one in self.interceptors.values()})
        for plugin, options in given.items():
            if plugin not in takers:
                why = "is on and takes no options of a request" if plugin in self.named else "is not on here"
                near = get_close_matches(plugin, takers, n=1, cutoff=0.5)
                raise ParameterError(
                    f"the plugin {why}",
                    field=f"plugins.{plugin}",
                    value=dict(options),
                    allowed=", ".join(takers) or "none: no plugin that a request could set is on",
                    nearest=next(iter(near), None),
                )


NO_EXTENSIONS = Extensions(load_plugins(available=()))
"""Nothing is on."""


def resolve_plugin_ref(plugin: str, spec: PluginSpec, field_name: str = "implementation") -> Any:
    """Import what a description names.

    Raises:
        PluginError: It is not there, or its module fails.
    """
    try:
        return resolve_ref(getattr(spec, field_name))
    except FastVideoError as error:
        reason = describe_failure(error.__cause__ or error)
        raise PluginError(
            f"{plugin}: {field_name} of {spec.name!r}, {getattr(spec, field_name)!r}: {reason}"
        ) from error


def _hooked(
    registry: PluginRegistry, hook: str, kind: type[SpecT], plugins: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Enabled[SpecT]], PluginRegistry]:
    """Return what the plugins that were named bring; others have no say in how things are computed."""
    found, registry = collect_specs(registry, hook, kind)
    return {
        name: Enabled(one.plugin, one.spec, plugins[one.plugin], _checked(one.plugin, one.spec, plugins[one.plugin]))
        for name, one in found.items()
        if one.plugin in plugins
    }, registry


def _by_node_type(
    found: Mapping[str, Brought[NodeSpec]], registry: PluginRegistry
) -> tuple[dict[str, NodeSpec], PluginRegistry]:
    """Return nodes by the type's name in workflow files; of two plugins with one for the same type the second fails."""
    nodes: dict[str, Brought[NodeSpec]] = {}
    for one in found.values():
        if one.spec.node_type in nodes:
            other = nodes[one.spec.node_type].plugin
            error = f"workflow_nodes gave one for the type {one.spec.node_type!r}, as {other} does; uninstall one"
            registry = registry.with_failure(one.plugin, error)
        else:
            nodes[one.spec.node_type] = one
    return {name: one.spec for name, one in sorted(nodes.items())}, registry


def _checked(plugin: str, spec: HookedSpec, given: Mapping[str, Any]) -> Any:
    """Return options as an object of their model, or None without one."""
    if spec.options is None:
        return None
    from pydantic import BaseModel, ValidationError

    model = resolve_plugin_ref(plugin, spec, "options")
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise PluginError(f"{plugin}: options of {spec.name!r}, {spec.options!r}, is no pydantic model")
    for name, value in given.items():
        if name not in model.model_fields:
            near = get_close_matches(name, model.model_fields, n=1, cutoff=0.5)
            raise ParameterError(
                "the plugin has no such option",
                field=f"plugins.{plugin}.{name}",
                value=value,
                allowed=", ".join(model.model_fields),
                nearest=next(iter(near), None),
            )
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ParameterError(first["msg"], field=f"plugins.{plugin}.{place}", value=first["input"]) from None


def _check_options_are_used(
    loaded: set[str], plugins: Mapping[str, Mapping[str, Any]], enabled: list[Enabled[Any]]
) -> None:
    takers = {one.plugin for one in enabled if one.spec.options is not None}
    for plugin, given in plugins.items():
        if given and plugin in loaded and plugin not in takers:
            raise ParameterError(
                "the plugin has no options", field=f"plugins.{plugin}", value=dict(given), allowed="none"
            )


def _check_conflicts(interceptors: Mapping[str, Enabled[InterceptorSpec]]) -> None:
    """Refuse interceptors that cannot be together.

    Raises:
        PluginError: With both names.
    """
    for (first, one), (second, other) in combinations(interceptors.items(), 2):
        said = [*_said(one, second), *_said(other, first)]
        if one.spec.level == other.spec.level == "block":
            said.append("both run the blocks")
        if said:
            raise PluginError(
                f"interceptors {first!r} ({one.plugin}) and {second!r} ({other.plugin}) cannot be on together: "
                f"{said[0]}; switch one off"
            )


def _said(one: Enabled[InterceptorSpec], other: str) -> list[str]:
    conflicts = one.spec.conflicts_with
    return [f"{one.spec.name} declares it"] if other in conflicts or "*" in conflicts else []


def _check_steps(one: Enabled[InterceptorSpec], num_steps: Any) -> None:
    least = one.spec.needs_steps_at_least
    if isinstance(num_steps, int) and num_steps < least:
        raise ParameterError(
            f"too few for the interceptor {one.spec.name} of plugin {one.plugin}, which is on",
            field="num_inference_steps",
            value=num_steps,
            allowed=f"{least} or more",
            nearest=least,
        )


def _check_fit(one: Enabled[InterceptorSpec], options: Any, parameters: Mapping[str, Any]) -> None:
    """Ask options that care whether they fit the request's parameters."""
    check = getattr(options, "check_parameters", None)
    if check is None:
        return
    try:
        check(parameters)
    except ParameterError as error:
        raise ParameterError(
            error.reason,
            field=f"plugins.{one.plugin}.{error.field}",
            value=error.value,
            allowed=error.allowed,
            nearest=error.nearest,
        ) from None
