"""`fastvideo plugins info`: what one plugin brings and needs."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_core.cli.table import format_table

if TYPE_CHECKING:
    from importlib_metadata import EntryPoint

    from fastvideo_core.extend import LoadedPlugin, PluginRegistry

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "find_entry", "run"]

DESCRIPTION = """\
Tell what an installed plugin brings, what its distribution requires, and which options it takes. Imports its module and
its models of options, and nothing else that it names."""
EPILOG = "The exit code is 1 if the plugin does not load."

_SPEC_HOOKS = (
    "observers", "interceptors", "attention_backends", "samplers", "transports", "training_methods", "rewards",
    "workflow_nodes", "program_templates", "server_parts", "doctor_checks", "config_sections",
)  # fmt: skip
"""Hooks without arguments that give descriptions."""


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("plugin", metavar="PLUGIN", help="its name, for instance model.wan")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: Namespace, shell: Shell) -> int:
    """Load the one plugin and print what it is."""
    from fastvideo_core.extend.plugins import load_plugins

    entry = find_entry(args.plugin)
    registry = load_plugins((), names=[args.plugin])
    (plugin,) = registry.plugins
    document = _document(entry, plugin, registry)
    if args.json:
        shell.say(json.dumps(document, indent=2))
    else:
        shell.say("\n".join(_lines(document)))
    return 0 if plugin.error is None else 1


def find_entry(name: str) -> EntryPoint:
    """Return the entry point of an installed plugin.

    Raises:
        InputError: None of that name is installed.
    """
    from difflib import get_close_matches

    from fastvideo_core.errors import InputError
    from fastvideo_core.extend.plugins import find_plugins

    entries = {entry.name: entry for entry in find_plugins()}
    if name not in entries:
        near = get_close_matches(name, entries, n=1, cutoff=0.4)
        allowed = ", ".join(entries) or "none is installed"
        raise InputError(
            "no such plugin is installed", field="plugin", value=name, allowed=allowed, nearest=next(iter(near), None)
        )
    return entries[name]


def _document(entry: EntryPoint, plugin: LoadedPlugin, registry: PluginRegistry) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "module": entry.value,
        "requires": list(getattr(entry.dist, "requires", None) or ()),
        "error": plugin.error,
        "hooks": list(plugin.hooks),
        "deprecated": list(plugin.deprecated),
        "brings": {} if plugin.error is not None else _brought(registry, plugin.name),
    }


def _brought(registry: PluginRegistry, name: str) -> dict[str, list[dict[str, Any]]]:
    brought = {}
    for hook in _SPEC_HOOKS:
        if specs := registry.call_one(name, hook):
            brought[hook] = [_describe(spec) for spec in specs]
    if cards := registry.call_one(name, "model_cards"):
        brought["model_cards"] = [{"name": card.model_id, "summary": card.title} for card in cards]
    if commands := registry.call_one(name, "cli_commands"):
        brought["cli_commands"] = [{"name": key, "summary": one.summary} for key, one in commands.items()]
    return brought


def _describe(spec: Any) -> dict[str, Any]:
    described = {field.name: getattr(spec, field.name) for field in fields(spec)}
    if described.get("options") is not None:
        from fastvideo_core.extend.extensions import resolve_plugin_ref

        model = resolve_plugin_ref("the plugin", spec, "options")
        described["options"] = model.model_json_schema().get("properties", {})
    return described


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    rows = [(key, document[key]) for key in ("name", "distribution", "version", "module")]
    rows += [("requires", ", ".join(document["requires"]) or "nothing"), ("hooks", ", ".join(document["hooks"]))]
    rows += [("deprecated", one) for one in document["deprecated"]]
    rows.append(("state", "loads" if document["error"] is None else f"does not load: {document['error']}"))
    yield format_table(rows)
    for hook, specs in document["brings"].items():
        yield f"\n{hook}:"
        for spec in specs:
            yield f"  {spec['name']}: {spec.get('summary', '')}".rstrip(": ")
            for key, value in spec.items():
                if key == "options" and value:
                    yield from (f"    option {name}: {_option(schema)}" for name, schema in value.items())
                elif key not in ("name", "summary", "options") and value not in (None, (), ""):
                    yield f"    {key}: {', '.join(map(str, value)) if isinstance(value, tuple) else value}"


def _option(schema: Mapping[str, Any]) -> str:
    parts = [str(schema.get("type", "any"))]
    parts += [f"default {json.dumps(schema['default'])}"] if "default" in schema else []
    parts += [str(schema["description"])] if "description" in schema else []
    return ", ".join(parts)
