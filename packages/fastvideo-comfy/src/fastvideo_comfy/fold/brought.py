"""Node types that plugins bring: each computes values of values, as those of the compiler's own do that are folded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastvideo_comfy.fold.rules import FoldError
from fastvideo_comfy.graph.base import FlatGraph
from fastvideo_comfy.lower.support import refusal
from fastvideo_core.errors import PluginError, describe_failure
from fastvideo_core.extend import NodeSpec
from fastvideo_core.extend.extensions import resolve_plugin_ref

__all__ = ["BroughtNode", "check_nodes", "configured_nodes", "name_widgets"]

_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "BOOLEAN": ((bool,), "true or false"),
    "FLOAT": ((int, float), "a number"),
    "INT": ((int,), "an integer"),
    "STRING": ((str,), "text"),
}
"""Types of values in workflow files; all others are of things that exist only while a workflow runs."""


class BroughtNode:
    """A node type of a plugin.

    Args:
        spec: Its description.

    Attributes:
        spec: The same.

    Raises:
        PluginError: The type is the compiler's own, or an input or output is no value.
    """

    def __init__(self, spec: NodeSpec) -> None:
        if refusal(spec.node_type) is None:
            raise PluginError(f"workflow node {spec.name!r}: the type {spec.node_type!r} is the compiler's own")
        kinds = [*spec.inputs, *((f"output {index}", kind) for index, kind in enumerate(spec.outputs))]
        for name, kind in kinds:
            if kind not in _TYPES:
                raise PluginError(
                    f"workflow node {spec.name!r}: {name} is of type {kind!r}; allowed: {', '.join(_TYPES)}"
                )
        self.spec = spec

    def __call__(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values of its outputs.

        Raises:
            FoldError: A value is missing or of another type, or the plugin does not take it.
            PluginError: The plugin fails, or gives something else than it declares.
        """
        types = dict(self.spec.inputs)
        for name in inputs:
            if name not in types:
                raise FoldError("it has no such input", input_name=name, allowed=", ".join(types) or "none")
        given = {name: _checked(inputs.get(name), kind, name) for name, kind in types.items()}
        compute: Callable[..., Any] = resolve_plugin_ref("workflow node", self.spec)
        try:
            outputs = tuple(compute(given))
        except ValueError as error:
            raise FoldError(str(error)) from error
        except Exception as error:
            raise PluginError(f"workflow node {self.spec.name!r} failed: {describe_failure(error)}") from error
        kinds = self.spec.outputs
        if len(outputs) != len(kinds) or not all(_is_of(*pair) for pair in zip(outputs, kinds, strict=True)):
            raise PluginError(f"workflow node {self.spec.name!r} gave {outputs!r}; it declares {', '.join(kinds)}")
        return outputs


def check_nodes(nodes: Mapping[str, NodeSpec]) -> dict[str, BroughtNode]:
    """Return nodes by type, ready to be evaluated.

    Raises:
        PluginError: One cannot be.
    """
    return {kind: BroughtNode(spec) for kind, spec in nodes.items()}


def configured_nodes(config: Path | None = None) -> dict[str, BroughtNode]:
    """Return the nodes of the plugins that a deploy config switches on, and of installed models and commands.

    Args:
        config: The file; None takes the one that the environment names, or none.

    Raises:
        ConfigError: Something in it is not allowed.
        PluginError: A plugin fails, or brings a node that cannot be evaluated.
    """
    from fastvideo_core.deploy import resolve_config
    from fastvideo_core.deploy.deployment import load_extensions

    return check_nodes(load_extensions(resolve_config(config)).workflow_nodes)


def name_widgets(flat: FlatGraph, nodes: Mapping[str, BroughtNode]) -> None:
    """Give the widget values of brought types their names, in the order of the description, if that has as many."""
    for node in flat.nodes.values():
        names = [name for name, _ in nodes[node.type].spec.inputs] if node.type in nodes else []
        if len(node.unnamed) <= len(names):
            node.inputs = {**dict(zip(names, node.unnamed, strict=False)), **node.inputs}
            node.unnamed = ()


def _checked(value: Any, kind: str, name: str) -> Any:
    if not _is_of(value, kind):
        missing = "the value is missing" if value is None else "not a value of its type"
        raise FoldError(missing, input_name=name, got=value, allowed=_TYPES[kind][1])
    return value


def _is_of(value: Any, kind: str) -> bool:
    types, _ = _TYPES[kind]
    return isinstance(value, types) and (kind == "BOOLEAN" or not isinstance(value, bool))
