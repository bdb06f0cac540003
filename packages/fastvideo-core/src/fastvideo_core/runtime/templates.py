"""Program templates: programs that plugins bring, offered as tasks of every card that can run them.

A template's task has the inputs that its program takes and the outputs that it makes. Its parameters are those of the
card's tasks; the template's own model gives some of them other defaults and narrower bounds, or adds further ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastvideo_core.card import InputSpec, ModelCard, ParameterSpec, TaskSpec, resolve_ref
from fastvideo_core.errors import CardError, PluginError, describe_failure
from fastvideo_core.extend import PluginRegistry, ProgramTemplate
from fastvideo_core.extend.collect import collect_specs
from fastvideo_core.extend.extensions import resolve_plugin_ref
from fastvideo_core.program.base import ArtifactNode, InlineProgram, InputEdge, ModelLoopNode

__all__ = ["Template", "load_templates", "with_templates"]

_TYPES = ("integer", "number", "string", "boolean")
_LIMITS = {"minimum": "minimum", "maximum": "maximum", "multipleOf": "multiple_of"}
_IGNORED = {"title", "type", "default", "description", "enum", "const", "anyOf"}


@dataclass(frozen=True, slots=True)
class Template:
    """A template whose program is there.

    Attributes:
        plugin: The plugin that brings it.
        spec: Its description.
        program: The program.
        parameters: What its model says of parameters.
    """

    plugin: str
    spec: ProgramTemplate
    program: InlineProgram
    parameters: Mapping[str, ParameterSpec]


def load_templates(registry: PluginRegistry) -> tuple[dict[str, Template], PluginRegistry]:
    """Return the templates of the loaded plugins by name, and the registry with those noted as failed that fail."""
    found, registry = collect_specs(registry, "program_templates", ProgramTemplate)
    templates: dict[str, Template] = {}
    for name, one in found.items():
        try:
            templates[name] = _load(one.plugin, one.spec)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the others' templates stay
            registry = registry.with_failure(one.plugin, describe_failure(error))
    failed = {plugin.name for plugin in registry.failed}
    return {name: one for name, one in templates.items() if one.plugin not in failed}, registry


def with_templates(card: ModelCard, templates: Mapping[str, Template]) -> ModelCard:
    """Return a card that offers as tasks those templates whose programs it can run.

    Raises:
        PluginError: A template has the name of a task that the card has, or parameters that do not fit the card's.
    """
    offered = {name: task for name, one in templates.items() if (task := _task(card, one)) is not None}
    if not offered:
        return card
    own = card.capabilities.tasks
    if doubled := sorted(own.keys() & offered.keys()):
        raise PluginError(
            f"{templates[doubled[0]].plugin} brings a program template {doubled[0]!r}, and card {card.model_id} has a "
            "task of that name"
        )
    components = {
        name: part.model_copy(update={"required_for": (*part.required_for, *_users(name, card, templates, offered))})
        if part.required_for
        else part
        for name, part in card.components.items()
    }
    capabilities = card.capabilities.model_copy(update={"tasks": {**own, **offered}})
    return card.model_copy(update={"capabilities": capabilities, "components": components})


def _load(plugin: str, spec: ProgramTemplate) -> Template:
    program = resolve_plugin_ref(plugin, spec)
    if not isinstance(program, InlineProgram):
        raise PluginError(f"program template {spec.name!r}: {spec.implementation!r} is no program")
    if spec.parameters is None:
        return Template(plugin, spec, program, {})
    from pydantic import BaseModel

    model = resolve_plugin_ref(plugin, spec, "parameters")
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise PluginError(f"program template {spec.name!r}: {spec.parameters!r} is no pydantic model")
    schema = model.model_json_schema().get("properties", {})
    where = f"program template {spec.name!r}"
    return Template(plugin, spec, program, {key: _parameter(f"{where}: {key}", one) for key, one in schema.items()})


def _parameter(where: str, schema: Mapping[str, Any]) -> ParameterSpec:
    """Return a field of the model as a parameter.

    Raises:
        PluginError: It is of a kind, or has a bound, that parameters do not have.
    """
    kinds = [one for one in schema.get("anyOf", (schema,)) if one.get("type") != "null"]
    if len(kinds) != 1 or kinds[0].get("type") not in _TYPES:
        allowed = f"{', '.join(_TYPES)}, or one of these or null"
        raise PluginError(f"{where} is of no kind that a parameter has; allowed: {allowed}")
    (kind,) = kinds
    if unknown := sorted(set(kind) - _IGNORED - set(_LIMITS)):
        raise PluginError(f"{where} says {', '.join(unknown)}; allowed: {', '.join(_LIMITS)}, enum")
    choices = kind.get("enum") or ([kind["const"]] if "const" in kind else None)
    return ParameterSpec(
        type=kind["type"],
        default=schema.get("default"),
        is_nullable="anyOf" in schema,
        description=schema.get("description", ""),
        choices=None if choices is None else tuple(choices),
        **{name: kind[key] for key, name in _LIMITS.items() if key in kind},
    )


def _task(card: ModelCard, template: Template) -> TaskSpec | None:
    """Return a template as a task of a card; None if the card cannot run it."""
    try:
        template.program.check_against(card)
    except CardError:
        return None
    like = _tasks_like(card, template.program)
    known = {name: spec for task in reversed(like) for name, spec in task.inputs.items()}
    wanted = [edge.name for edge in _input_edges(template.program)]
    if any(name not in known for name in wanted):
        return None
    inputs: dict[str, InputSpec] = {name: known[name] for name in dict.fromkeys(wanted)}
    parameters = {name: spec for task in reversed(like) for name, spec in task.parameters.items()}
    artifacts = [node for node in template.program.nodes if isinstance(node, ArtifactNode)]
    if not artifacts:
        return None
    return TaskSpec(
        program=template.spec.implementation,
        inputs=inputs,
        outputs={node.node_id: node.modality for node in artifacts},
        parameters={
            **parameters,
            **{name: _narrowed(template, name, parameters.get(name), own) for name, own in template.parameters.items()},
        },
        description=template.spec.summary,
    )


def _narrowed(template: Template, name: str, base: ParameterSpec | None, own: ParameterSpec) -> ParameterSpec:
    """Return a template's parameter: of one that the card has, what both allow, with the template's default.

    Raises:
        PluginError: The card's loops do not take what the template says of it.
    """
    if base is None:
        return own
    where = f"program template {template.spec.name!r} of {template.plugin}: {name}"
    if own.type != base.type or (own.is_nullable and not base.is_nullable):
        raise PluginError(f"{where} is of another type than the card's, {base.type}")
    limits = {
        "minimum": max((one for one in (base.minimum, own.minimum) if one is not None), default=None),
        "maximum": min((one for one in (base.maximum, own.maximum) if one is not None), default=None),
    }
    given = {key: getattr(own, key) for key in ("default", "description", "choices") if getattr(own, key)}
    narrowed = base.model_copy(update={**limits, **given})
    try:
        return ParameterSpec.model_validate(narrowed.model_dump())
    except ValueError as error:
        raise PluginError(f"{where} does not fit the card's: {describe_failure(error)}") from error


def _tasks_like(card: ModelCard, program: InlineProgram) -> list[TaskSpec]:
    """Return the card's tasks, the likest first: those that run most of the program's loops, and its default task."""
    capabilities, loops = card.capabilities, set(program.loop_ids())

    def rank(name: str) -> tuple[int, bool]:
        own = set(resolve_ref(capabilities.tasks[name].program).loop_ids())
        return len(loops & own), name == capabilities.default_task

    return [capabilities.tasks[name] for name in sorted(capabilities.tasks, key=rank, reverse=True)]


def _input_edges(program: InlineProgram) -> list[InputEdge]:
    loops = [node for node in program.nodes if isinstance(node, ModelLoopNode)]
    return [edge for node in loops for edge in node.inputs.values() if isinstance(edge, InputEdge)]


def _users(
    component: str, card: ModelCard, templates: Mapping[str, Template], offered: Mapping[str, TaskSpec]
) -> list[str]:
    """Return the templates whose programs run a loop that uses a component."""
    loops = {name: templates[name].program.loop_ids() for name in offered}
    return [name for name, ids in loops.items() if any(component in card.loops[loop].components for loop in ids)]
