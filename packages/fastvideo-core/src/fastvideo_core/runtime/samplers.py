"""Samplers that plugins bring: what a model's loops may take, and what a card then lets requests ask for."""

from __future__ import annotations

from collections.abc import Mapping

from fastvideo_core.card import ModelCard, ParameterSpec
from fastvideo_core.errors import PluginError
from fastvideo_core.extend.extensions import Extensions, resolve_plugin_ref
from fastvideo_core.loop.samplers import SAMPLERS, Sampler, extend_samplers

__all__ = ["load_samplers", "with_samplers"]

_PARAMETER = "sampler"


def load_samplers(extensions: Extensions | None) -> Mapping[str, Sampler]:
    """Return core's samplers, and those of the plugins that are on.

    Raises:
        PluginError: One cannot be imported, is no sampler, or has another name than its description or a taken one.
    """
    if extensions is None or not extensions.samplers:
        return SAMPLERS
    extra = []
    for name, spec in extensions.samplers.items():
        sampler = resolve_plugin_ref(f"sampler {name}", spec)
        if not isinstance(sampler, Sampler) or sampler.name != name:
            raise PluginError(f"sampler {name!r}: {spec.implementation!r} is no sampler of that name")
        extra.append(sampler)
    return extend_samplers(extra)


def with_samplers(card: ModelCard, extensions: Extensions | None) -> ModelCard:
    """Return a card whose tasks take the plugins' samplers too, wherever they let requests choose one."""
    pinned = any(_PARAMETER in loop.pinned for loop in card.loops.values())
    if extensions is None or not extensions.samplers or pinned:
        return card
    names = tuple(extensions.samplers)
    tasks, own = {}, _own_parameters(extensions)
    for task_name, task in card.capabilities.tasks.items():
        spec = task.parameters.get(_PARAMETER)
        if spec is not None and spec.choices is not None:
            wider = spec.model_copy(update={"choices": tuple(dict.fromkeys([*spec.choices, *names]))})
            task = task.model_copy(update={"parameters": {**own, **task.parameters, _PARAMETER: wider}})
        tasks[task_name] = task
    return card.model_copy(update={"capabilities": card.capabilities.model_copy(update={"tasks": tasks})})


def _own_parameters(extensions: Extensions) -> dict[str, ParameterSpec]:
    """Return the parameters of all samplers that plugins bring.

    Raises:
        PluginError: What one names is none, or two mean different things by one name.
    """
    own: dict[str, ParameterSpec] = {}
    for name, spec in extensions.samplers.items():
        if spec.parameters is None:
            continue
        for key, parameter in dict(resolve_plugin_ref(f"sampler {name}", spec, "parameters")).items():
            if not isinstance(parameter, ParameterSpec):
                raise PluginError(f"sampler {name!r}: parameter {key!r} is no ParameterSpec")
            if own.setdefault(key, parameter) != parameter:
                raise PluginError(f"sampler {name!r}: parameter {key!r} is another sampler's, with another meaning")
    return own
