"""A config at work: the plugins that it switches on, cards as it runs them, and the settings of an engine.

Whatever can be wrong in it is found here, before any weight is read, and is told with the place in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastvideo_core.card import ModelCard
from fastvideo_core.deploy.config import CardConfig
from fastvideo_core.deploy.document import Place
from fastvideo_core.deploy.resolve import Origin, ResolvedConfig
from fastvideo_core.errors import ConfigError, InputError, PluginError
from fastvideo_core.extend import ConfigSection, PluginRegistry, find_plugins
from fastvideo_core.extend.collect import collect_specs
from fastvideo_core.extend.extensions import Extensions, resolve_plugin_ref
from fastvideo_core.request.parameters import ResolvedParameters, resolve_parameters
from fastvideo_core.runtime.catalog import Catalog

if TYPE_CHECKING:
    from fastvideo_core.runtime.engine import Engine, RuntimeOptions

__all__ = ["Deployment", "check_sections", "deploy", "load_extensions"]


@dataclass(frozen=True)
class Deployment:
    """What a config means on this machine.

    Attributes:
        resolved: The config.
        extensions: Plugins that are on.
        catalog: Cards that they bring.
    """

    resolved: ResolvedConfig
    extensions: Extensions
    catalog: Catalog

    def find_card(self, name: str | None = None) -> ModelCard:
        """Return a card, the config's own where none is named.

        Raises:
            InputError: There is no such card, or what is there is none.
            CheckpointError: The folder or repository holds no known checkpoint.
        """
        card = self.catalog.find(self.resolved.config.card if name is None else name)
        if not self.extensions.samplers:
            return card
        from fastvideo_core.runtime.samplers import with_samplers

        return with_samplers(card, self.extensions)

    def parameters(self, card: ModelCard, task: str) -> dict[str, Any]:
        """Return the parameters of a task that the config sets for a card.

        Raises:
            ConfigError: No task of the card has such a parameter, or it does not allow the value.
        """
        given = self._row(card).parameters
        tasks = card.capabilities.tasks
        known = sorted({name for one in tasks.values() for name in one.parameters})
        for name, value in given.items():
            if name not in known:
                near = get_close_matches(name, known, n=1, cutoff=0.5)
                raise self._parameter_error(
                    card, name, "no task of the card has such a parameter", value=value, allowed=", ".join(known),
                    nearest=next(iter(near), None),
                )  # fmt: skip
        here = {name: value for name, value in given.items() if name in tasks[task].parameters}
        self._resolve(card, task, here)
        return here

    def parameter_origin(self, card: ModelCard, name: str) -> Origin:
        """Return where a parameter of a card came from that the config sets."""
        return self.resolved.setter(("cards", self._key(card), "parameters", name))

    def resolved_parameters(self, card: ModelCard, task: str) -> ResolvedParameters:
        """Return all parameters of a task as a request that sets none of them gets them."""
        return self._resolve(card, task, self.parameters(card, task))

    def extensions_for(self, card: ModelCard) -> Extensions:
        """Return what is on for a card.

        Raises:
            ConfigError: The config switches off for the card what is not on.
        """
        without = self._row(card).without
        for index, name in enumerate(without):
            if name not in self.extensions.named:
                place = ("cards", self._key(card), "without", str(index))
                raise self.resolved.error(
                    place, "no such plugin is on", value=name, allowed=", ".join(self.extensions.named) or "none"
                )
        one = self.extensions
        return replace(
            one,
            attention=self.attention(card),
            named=tuple(name for name in one.named if name not in without),
            observers={name: part for name, part in one.observers.items() if part.plugin not in without},
            interceptors={name: part for name, part in one.interceptors.items() if part.plugin not in without},
            server_parts={name: part for name, part in one.server_parts.items() if part.plugin not in without},
        )

    def device(self, card: ModelCard) -> str:
        """Return the device that a card runs on.

        Raises:
            ConfigError: The pool has more devices than one, or another one than the config.
        """
        config = self.resolved.config
        devices = config.pool.devices
        chosen = self._row(card).device or config.device
        place = ("pools", "main", "devices")
        if len(devices) > 1:
            raise self.resolved.error(place, "one device runs a model", value=list(devices), allowed="one device")
        if devices[0] == "auto":
            return chosen
        if chosen not in ("auto", devices[0]):
            raise self.resolved.error(place, f"device {chosen!r} is chosen elsewhere", value=devices[0], allowed=chosen)
        return devices[0]

    def precision(self, card: ModelCard) -> str | None:
        """Return the number format that a card runs in; None for the card's own.

        Raises:
            ConfigError: The card does not run in it.
        """
        config = self.resolved.config
        own = self._row(card).precision
        chosen = own or config.precision
        if chosen is not None:
            place: Place = ("precision",) if own is None else ("cards", self._key(card), "precision")
            try:
                card.check_precision(chosen)
            except InputError as error:
                raise self._translated(place, error) from error
        return chosen

    def attention(self, card: ModelCard) -> str:
        """Return the attention backend of a card.

        Raises:
            ConfigError: No plugin that is on brings it, it cannot run here, or the card takes no other than torch's.
        """
        own = self._row(card).attention
        name = own or self.resolved.config.attention
        if name != "sdpa":
            from fastvideo_core.runtime.attention import choose_attention

            place: Place = ("attention",) if own is None else ("cards", self._key(card), "attention")
            try:
                choose_attention(replace(self.extensions, attention=name), card)
            except InputError as error:
                raise self._translated(place, error) from error
        return name

    def runtime_options(self) -> RuntimeOptions:
        """Return the settings of an engine.

        Raises:
            ConfigError: The scheduler does not take them.
        """
        from fastvideo_core.runtime.engine import RuntimeOptions
        from fastvideo_core.runtime.scheduler.base import DEFAULT_CLASSES, SchedulerConfig

        config, limits = self.resolved.config, self.resolved.config.limits
        classes = dict(DEFAULT_CLASSES)
        for name, row in config.classes.items():
            given = {key: value for key, value in row.model_dump().items() if value is not None}
            classes[name] = replace(classes[name], **given)
        scheduler = SchedulerConfig(
            max_running=limits.max_running,
            max_queued=limits.max_queued,
            max_batch=limits.max_batch,
            jumbo_s=limits.jumbo_s,
            classes=classes,
        )
        return RuntimeOptions(
            scheduler=scheduler,
            num_workers=config.pool.workers,
            memory_bytes=None if limits.memory is None else int(limits.memory),
            costs_file=config.costs_file,
        )

    def open(
        self, name: str | None = None, *, device: str = "auto", precision: str | None = None, **options: Any
    ) -> Engine:
        """Load a card as the config says, and start an engine for it, whose requests take the config's parameters.

        Args:
            name: The card; None takes the config's.
            device: In place of the config's, unless it is "auto".
            precision: In place of the config's.
            **options: What else `Engine.open` takes, such as `store`.

        Raises:
            FastVideoError: As of `find_card`, `check` and `Engine.open`.
        """
        from fastvideo_core.runtime.engine import Engine

        card = self.find_card(name)
        return Engine.open(
            card,
            device=self.device(card) if device == "auto" else device,
            precision=precision or self.precision(card),
            options=self.runtime_options(),
            extensions=self.extensions_for(card),
            defaults=partial(self.parameters, card),
            **options,
        )

    def check(self, card: ModelCard) -> None:
        """Check all that the config says of a card, as opening an engine would; no weights are read.

        Raises:
            FastVideoError: The first thing that is wrong.
        """
        self.device(card)
        self.precision(card)
        self.attention(card)
        for task in card.capabilities.tasks:
            self.parameters(card, task)
        extensions = self.extensions_for(card)
        if extensions.has_hooks:
            from fastvideo_core.runtime.hooks import InstanceHooks

            InstanceHooks(extensions, card)

    def _key(self, card: ModelCard) -> str:
        """Return the name under which the config has a card: its id, its folder or its hub repository."""
        if card.model_id in self.resolved.config.cards:
            return card.model_id
        source = card.checkpoint.source
        for key in self.resolved.config.cards:
            if source.location in (key, str(Path(key).expanduser().resolve())):
                return key
        return card.model_id

    def _row(self, card: ModelCard) -> CardConfig:
        return self.resolved.config.cards.get(self._key(card), CardConfig())

    def _resolve(self, card: ModelCard, task: str, given: Mapping[str, Any]) -> ResolvedParameters:
        loops = {name: loop for name, loop in card.loops.items() if loop.is_generative}
        try:
            return resolve_parameters(card.task(task), {}, deploy=given, loops=loops)
        except InputError as error:
            if error.field not in given:
                raise
            raise self._translated(("cards", self._key(card), "parameters", str(error.field)), error) from error

    def _parameter_error(self, card: ModelCard, name: str, message: str, **details: Any) -> ConfigError:
        return self.resolved.error(("cards", self._key(card), "parameters", name), message, **details)

    def _translated(self, place: Place, error: InputError) -> ConfigError:
        return _translated(self.resolved, place, error)


def deploy(resolved: ResolvedConfig) -> Deployment:
    """Load what a config switches on, and check what its plugins have a say in.

    Raises:
        ConfigError: A plugin or a section that nobody brings, or an option that is not allowed; with the place.
        PluginError: A plugin fails and the config is strict, or two cannot be on together.
    """
    extensions = load_extensions(resolved)
    check_sections(resolved, extensions.registry)
    catalog = Catalog(extensions.registry)
    # What plugins bring besides hooks, their cards and programs, is looked at by the catalog alone.
    if resolved.config.strict and catalog.registry.failed:
        raise PluginError("; ".join(f"{plugin}: {plugin.error}" for plugin in catalog.registry.failed))
    return Deployment(resolved, replace(extensions, registry=catalog.registry), catalog)


def load_extensions(resolved: ResolvedConfig) -> Extensions:
    """Load the plugins that a config switches on; see `deploy`."""
    plugins = resolved.config.plugins
    installed = sorted({entry.name for entry in find_plugins()})
    for name in plugins:
        if name not in installed:
            near = get_close_matches(name, installed, n=1, cutoff=0.5)
            raise resolved.error(
                ("plugins", name), "no such plugin is installed", value=plugins[name].options,
                allowed=", ".join(installed) or "none", nearest=next(iter(near), None),
            )  # fmt: skip
    options = {name: one.options for name, one in plugins.items() if one.enabled}
    without = [name for name, one in plugins.items() if not one.enabled]
    try:
        return Extensions.load(options, without=without, strict=resolved.config.strict)
    except InputError as error:
        if error.field is None or not error.field.startswith("plugins."):
            raise
        name = next(one for one in options if f"{error.field}.".startswith(f"plugins.{one}."))
        rest = error.field.removeprefix(f"plugins.{name}").removeprefix(".")
        place = ("plugins", name, "options", *(rest.split(".") if rest else ()))
        raise _translated(resolved, place, error) from error


def check_sections(resolved: ResolvedConfig, registry: PluginRegistry) -> dict[str, Any]:
    """Return the sections that belong to plugins, each as an object of its owner's model.

    Raises:
        ConfigError: Nobody owns a section, or its owner does not take it.
    """
    if not resolved.sections:
        return {}
    from pydantic import ValidationError

    owners, _ = collect_specs(registry, "config_sections", ConfigSection, taken=type(resolved.config).model_fields)
    checked: dict[str, Any] = {}
    for name, content in resolved.sections.items():
        if name not in owners:
            known = [*type(resolved.config).model_fields, *owners]
            near = get_close_matches(name, known, n=1, cutoff=0.5)
            raise resolved.error(
                (name,), "no such key, and no plugin that is on owns such a section", value=content,
                allowed=", ".join(known), nearest=next(iter(near), None),
            )  # fmt: skip
        model = resolve_plugin_ref(owners[name].plugin, owners[name].spec)
        try:
            checked[name] = model.model_validate({} if content is None else content)
        except ValidationError as error:
            found = error.errors(include_url=False)[0]
            place = (name, *(str(part) for part in found["loc"]))
            fields = ", ".join(model.model_fields)
            if found["type"] == "extra_forbidden":
                near = get_close_matches(place[-1], model.model_fields, n=1, cutoff=0.5)
                raise resolved.error(
                    place, "no such key", value=found["input"], allowed=fields, nearest=next(iter(near), None)
                ) from None
            raise resolved.error(place, found["msg"], value=found["input"]) from None
    return checked


def _translated(resolved: ResolvedConfig, place: Place, error: InputError) -> ConfigError:
    """Return an error about a value as one about its place in the config."""
    return resolved.error(place, error.reason, value=error.value, allowed=error.allowed, nearest=error.nearest)
