"""The JSON schema of deploy configs, as this machine's plugins make it."""

from __future__ import annotations

from typing import Any

from fastvideo_core.deploy.config import DeployConfig
from fastvideo_core.extend import ConfigSection, find_plugins, load_plugins
from fastvideo_core.extend.collect import collect_specs
from fastvideo_core.extend.extensions import resolve_plugin_ref
from fastvideo_core.extend.plugins import DEFAULT_KINDS

__all__ = ["config_schema"]


def config_schema() -> dict[str, Any]:
    """Return the schema. Names of installed plugins are in it; what is not on of itself is not imported for it."""
    schema = DeployConfig.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    row = {"anyOf": [{"$ref": "#/$defs/PluginConfig"}, {"type": "null"}]}
    schema["properties"]["plugins"]["properties"] = {entry.name: row for entry in find_plugins()}
    owners, _ = collect_specs(load_plugins(DEFAULT_KINDS), "config_sections", ConfigSection)
    for name, one in owners.items():
        section = resolve_plugin_ref(one.plugin, one.spec).model_json_schema()
        schema["$defs"] |= section.pop("$defs", {})
        schema["properties"][name] = section
    return schema
