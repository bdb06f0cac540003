"""From a document to a flat graph: subgraphs expanded, virtual nodes and bypasses followed, links before widgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastvideo_comfy.graph.base import ACTIVE, FlatGraph, FlatNode, Link, Problem, input_name
from fastvideo_comfy.graph.document import Document
from fastvideo_comfy.graph.prompt import flatten_prompt
from fastvideo_comfy.graph.scopes import (
    INPUT_NODE,
    Scope,
    activity_of,
    as_sequence,
    build_scopes,
)
from fastvideo_comfy.graph.text import front_end_text
from fastvideo_comfy.graph.widgets import DEFAULTS, named_values

__all__ = ["NOTES", "flatten"]

NOTES = frozenset({"MarkdownNote", "Note"})
"""Types that hold text for people and do nothing."""

_VIRTUAL = frozenset({"PrimitiveNode", "Reroute"})
_WIRELESS = {
    "GetNode": "wireless links (GetNode and SetNode)",
    "SetNode": "wireless links (GetNode and SetNode)",
    "Anything Everywhere": "broadcast links (Anything Everywhere)",
    "Anything Everywhere3": "broadcast links (Anything Everywhere)",
    "Anything Everywhere?": "broadcast links (Anything Everywhere)",
    "Prompts Everywhere": "broadcast links (Anything Everywhere)",
}
"""Nodes of extensions that feed others without a link in the file, so that what is fed cannot be told from it."""


@dataclass(frozen=True, slots=True)
class _Value:
    """A value that stands where a link ends in no node of its own."""

    value: Any


_DROPPED = object()
"""The link ends in nothing: at a muted node, or at a bypassed one that has nothing to pass on."""


def flatten(document: Document) -> FlatGraph:
    """Return the flat graph of a document; what is wrong with it is in its `problems`."""
    if document.form == "api":
        return flatten_prompt(document)
    flat = FlatGraph(form="ui")
    scopes = build_scopes(document.content, flat)
    for scope in scopes:
        is_off = _instance_activity(scope)
        for node_id, node in scope.nodes.items():
            if node_id in scope.children or node["type"] in _VIRTUAL:
                continue
            flat_node = _flat_node(scope, node_id, node, flat)
            if is_off != ACTIVE:
                flat_node.activity = is_off  # type: ignore[assignment]  # one of the literals
            flat.nodes[flat_node.node_id] = flat_node
    return flat


def _instance_activity(scope: Scope) -> str:
    """Return what the instances around a node do to it: one that is muted or bypassed takes its content with it."""
    inner: Scope | None = scope
    while inner is not None and inner.instance is not None:
        if (activity := activity_of(inner.instance)) != ACTIVE:
            return activity
        inner = inner.parent
    return ACTIVE


def _flat_node(scope: Scope, node_id: Any, node: Mapping[str, Any], flat: FlatGraph) -> FlatNode:
    flat_id, kind = scope.flat_id(node_id), str(node["type"])
    title = node.get("title")
    outputs = node.get("outputs")
    result = FlatNode(
        flat_id,
        kind,
        title if isinstance(title, str) and title else kind,
        activity=activity_of(node),
        num_outputs=len(outputs) if isinstance(outputs, list) else None,
    )
    if result.activity == ACTIVE and kind in _WIRELESS:
        flat.problems.append(
            Problem(flat_id, "wireless_link", f"{_WIRELESS[kind]}: a file does not tell where they end")
        )
    if result.activity != ACTIVE or kind in NOTES:
        return result
    _fill_widgets(result, node, flat)
    _fill_links(result, scope, node, flat)
    return result


def _fill_widgets(result: FlatNode, node: Mapping[str, Any], flat: FlatGraph) -> None:
    values, named = node.get("widgets_values"), node.get("widgets_values_named")
    stored = values if isinstance(values, (list, Mapping)) else []
    names, unnamed, too_many = named_values(result.type, stored, named if isinstance(named, Mapping) else None)
    if too_many is not None:
        message = f"the file stores {len(stored)} widget values, {result.type} has {too_many}"
        problem = Problem(result.node_id, "widget_count", message, got=len(stored), allowed=f"{too_many} at most")
        flat.problems.append(problem)
    result.inputs = {**DEFAULTS.get(result.type, {}), **names}
    result.unnamed = unnamed
    if result.type == "CLIPTextEncode" and isinstance(text := result.inputs.get("text"), str):
        result.inputs["text"] = front_end_text(text, result.node_id, flat)


def _fill_links(result: FlatNode, scope: Scope, node: Mapping[str, Any], flat: FlatGraph) -> None:
    for index, slot in enumerate(as_sequence(node.get("inputs"))):
        name = input_name(slot) if isinstance(slot, Mapping) else None
        if name is None:
            flat.problems.append(Problem(result.node_id, "invalid_input", f"input {index} has no name"))
            continue
        if slot.get("link") is None:
            continue
        source = _follow_input(scope, node, index, flat)
        if isinstance(source, Link):
            result.inputs[name] = source
        elif isinstance(source, _Value):
            text = source.value
            is_text = result.type == "CLIPTextEncode" and name == "text" and isinstance(text, str)
            result.inputs[name] = front_end_text(text, result.node_id, flat) if is_text else text


def _follow_input(scope: Scope, node: Mapping[str, Any], index: int, flat: FlatGraph) -> Link | _Value | object:
    """Follow an input's link through everything that is only there to pass on, until a node or a value."""
    start = scope.flat_id(node.get("id"))
    seen: set[tuple[int, Any, Any, int]] = set()
    place: Scope = scope
    consumer: Mapping[str, Any] = node
    while True:
        slots = as_sequence(consumer.get("inputs"))
        slot = slots[index] if 0 <= index < len(slots) and isinstance(slots[index], Mapping) else {}
        link_id = slot.get("link")
        if link_id is None:
            return _DROPPED
        link = place.links.get(link_id) if isinstance(link_id, (int, str)) else None
        if link is None:
            flat.problems.append(
                Problem(start, "dangling_link", f"link {link_id!s:.40} is not in the file", input_name(slot) or "")
            )
            return _DROPPED
        key = (id(place), consumer.get("id"), link_id, index)
        if key in seen:
            flat.problems.append(Problem(start, "cycle", "its input comes from itself", input_name(slot) or ""))
            return _DROPPED
        seen.add(key)
        step = _follow_origin(place, link.origin, link.origin_slot, slot, flat, start)
        if not isinstance(step, _Through):
            return step
        place, consumer, index = step.scope, step.node, step.index


@dataclass(frozen=True, slots=True)
class _Through:
    """Where to go on: at an input of another node, perhaps in another scope."""

    scope: Scope
    node: Mapping[str, Any]
    index: int


def _follow_origin(
    scope: Scope, origin: Any, origin_slot: int, wanted: Mapping[str, Any], flat: FlatGraph, start: str
) -> Link | _Value | _Through | object:
    depth = 0
    while True:
        if origin == INPUT_NODE and scope.parent is not None:
            return _leave(scope, origin_slot)
        node = scope.nodes.get(origin)
        if node is None:
            flat.problems.append(
                Problem(start, "dangling_link", f"a link begins at node {origin!s:.40}, which is not there")
            )
            return _DROPPED
        activity = activity_of(node)
        if activity == "muted":
            return _DROPPED
        if activity == "bypassed":
            index = _bypass_index(node, origin_slot, wanted)
            return _DROPPED if index is None else _Through(scope, node, index)
        if node["type"] == "Reroute":
            return _Through(scope, node, 0)
        if node["type"] == "PrimitiveNode":
            values = as_sequence(node.get("widgets_values"))
            return _Value(values[0]) if values else _DROPPED
        child = scope.children.get(origin)
        if child is None:
            return Link(scope.flat_id(origin), origin_slot)
        inner = child.outward.get(origin_slot)
        depth += 1
        if inner is None or depth > 100:
            return _DROPPED
        scope, origin, origin_slot = child, inner.origin, inner.origin_slot


def _leave(scope: Scope, slot: int) -> _Value | _Through | object:
    """Go from a definition's input to the instance's input of the same name."""
    assert scope.definition is not None and scope.instance is not None and scope.parent is not None
    declared = as_sequence(scope.definition.get("inputs"))
    item = declared[slot] if 0 <= slot < len(declared) and isinstance(declared[slot], Mapping) else {}
    name = str(item.get("name"))
    for index, outer in enumerate(as_sequence(scope.instance.get("inputs"))):
        if isinstance(outer, Mapping) and outer.get("name") == name and outer.get("link") is not None:
            return _Through(scope.parent, scope.instance, index)
    return _Value(scope.promoted[name]) if name in scope.promoted else _DROPPED


def _bypass_index(node: Mapping[str, Any], output: int, wanted: Mapping[str, Any]) -> int | None:
    """Return the input that stands in for a bypassed node's output.

    The one of the same index where its type is the output's and the consumer's; else the first of exactly the output's
    type; else the first that the consumer takes.
    """
    inputs = [slot if isinstance(slot, Mapping) else {} for slot in as_sequence(node.get("inputs"))]
    outputs = as_sequence(node.get("outputs"))
    own = outputs[output].get("type") if 0 <= output < len(outputs) and isinstance(outputs[output], Mapping) else None
    consumed = wanted.get("type")
    types = [slot.get("type") for slot in inputs]
    if output < len(types) and _fits(types[output], own) and _fits(types[output], consumed):
        return output
    for index, kind in enumerate(types):
        if kind == own:
            return index
    return next((index for index, kind in enumerate(types) if _fits(kind, consumed)), None)


def _fits(kind: Any, other: Any) -> bool:
    """Whether two types can be linked: `*` takes all, and a type may be several joined by commas."""
    if kind == other or kind in ("*", None, 0) or other in ("*", None, 0):
        return True
    return bool(set(str(kind).upper().split(",")) & set(str(other).upper().split(",")))
