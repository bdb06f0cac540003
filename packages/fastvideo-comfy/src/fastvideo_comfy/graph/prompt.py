"""The API form: nodes by id, inputs by name, links as `[id, slot]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastvideo_comfy.graph.base import FlatGraph, FlatNode, Link, Problem
from fastvideo_comfy.graph.document import MAX_NODES, Document
from fastvideo_comfy.graph.widgets import DEFAULTS

__all__ = ["flatten_prompt"]


def flatten_prompt(document: Document) -> FlatGraph:
    """Return the flat graph of an API form."""
    flat = FlatGraph(form="api")
    flat.problems += [Problem(node_id, "duplicate_id", "two nodes have this id") for node_id in document.doubled]
    if len(document.content) > MAX_NODES:
        flat.problems.append(Problem("", "too_many_nodes", "too many nodes", allowed=f"{MAX_NODES}"))
        return flat
    for node_id, node in document.content.items():
        kind = node.get("class_type")
        if not isinstance(kind, str):
            flat.problems.append(Problem(node_id, "invalid_node", "class_type is no text"))
            continue
        flat.nodes[node_id] = FlatNode(node_id, kind, _title(node, kind), _inputs(node, node_id, kind, flat))
    for one in flat.nodes.values():
        for name, link in one.links().items():
            if link.node not in flat.nodes:
                flat.problems.append(
                    Problem(one.node_id, "dangling_link", f"node {link.node!s:.40} is not there", name)
                )
    return flat


def _title(node: Mapping[str, Any], kind: str) -> str:
    meta = node.get("_meta")
    title = meta.get("title") if isinstance(meta, Mapping) else None
    return title if isinstance(title, str) and title else kind


def _inputs(node: Mapping[str, Any], node_id: str, kind: str, flat: FlatGraph) -> dict[str, Any]:
    given = node.get("inputs", {})
    if not isinstance(given, Mapping):
        flat.problems.append(Problem(node_id, "invalid_node", "inputs is no object"))
        return {}
    return {**DEFAULTS.get(kind, {}), **{str(name): _value(value) for name, value in given.items()}}


def _value(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and type(value[1]) is int:
        return Link(*value)
    if isinstance(value, Mapping) and "__value__" in value:
        return value["__value__"]
    return value
