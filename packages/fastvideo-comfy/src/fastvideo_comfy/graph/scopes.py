"""Graphs of the UI form with their nodes and links indexed, and the instances of subgraphs within them.

Every instance of a subgraph is a scope of its own; a node's flat id is the ids of all instances around it and its own,
joined by colons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastvideo_comfy.graph.base import ACTIVE, Activity, FlatGraph, Problem
from fastvideo_comfy.graph.document import MAX_NODES

__all__ = ["INPUT_NODE", "OUTPUT_NODE", "RawLink", "Scope", "activity_of", "as_sequence", "build_scopes"]

INPUT_NODE = -10
OUTPUT_NODE = -20
"""Ids of the two ends of a definition, which stand for the instance's inputs and outputs."""

_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class RawLink:
    """A link as files have it."""

    origin: Any
    origin_slot: int
    target: Any
    target_slot: int


@dataclass(slots=True)
class Scope:
    """One graph: the workflow's own, or one instance of a subgraph.

    Attributes:
        prefix: What the flat ids of its nodes begin with.
        nodes: Nodes by id.
        links: Links by id.
        outward: Links into the definition's output node, by slot.
        definition: The subgraph; None for the workflow's own graph.
        instance: The node that stands for it outside.
        parent: The graph that this node is in.
        children: Instances in this graph, by node id.
        promoted: Values that the instance gives to inputs, by the definition's input; they hide the inner ones.
    """

    prefix: str
    nodes: dict[Any, Mapping[str, Any]] = field(default_factory=dict)
    links: dict[Any, RawLink] = field(default_factory=dict)
    outward: dict[int, RawLink] = field(default_factory=dict)
    definition: Mapping[str, Any] | None = None
    instance: Mapping[str, Any] | None = None
    parent: Scope | None = None
    children: dict[Any, Scope] = field(default_factory=dict)
    promoted: dict[str, Any] = field(default_factory=dict)

    def flat_id(self, node_id: Any) -> str:
        """Return the flat id of one of its nodes."""
        return f"{self.prefix}{node_id}"


def as_sequence(value: Any) -> Sequence[Any]:
    """Return a list as it is and anything else as an empty one."""
    return value if isinstance(value, list) else ()


def activity_of(node: Mapping[str, Any]) -> Activity:
    """Return whether a node takes part: mode 2 is muted, 4 is bypassed."""
    return {2: "muted", 4: "bypassed"}.get(node.get("mode"), ACTIVE)  # type: ignore[arg-type,return-value]


def build_scopes(workflow: Mapping[str, Any], flat: FlatGraph) -> list[Scope]:
    """Index a workflow and all instances of its subgraphs; problems are noted in `flat`.

    Returns:
        The scopes, each after the one around it.
    """
    definitions = _definitions(workflow, flat)
    root = Scope("")
    _index(root, workflow, flat)
    scopes, num_nodes = [root], len(root.nodes)
    waiting: list[tuple[Scope, tuple[str, ...]]] = [(root, ())]
    while waiting:
        scope, path = waiting.pop()
        for node_id, node in scope.nodes.items():
            name = node.get("type")
            if not isinstance(name, str) or (name not in definitions and not _looks_like_uuid(name)):
                continue
            child = _instantiate(scope, node_id, node, definitions, path, flat)
            if child is None:
                continue
            num_nodes += len(child.nodes)
            if num_nodes > MAX_NODES:
                flat.problems.append(Problem("", "too_many_nodes", "too many nodes", allowed=f"{MAX_NODES}"))
                return scopes
            scope.children[node_id] = child
            scopes.append(child)
            waiting.append((child, (*path, name)))
    return scopes


def _definitions(workflow: Mapping[str, Any], flat: FlatGraph) -> dict[str, Mapping[str, Any]]:
    holder = workflow.get("definitions")
    found: dict[str, Mapping[str, Any]] = {}
    for item in as_sequence(holder.get("subgraphs") if isinstance(holder, Mapping) else None):
        if not isinstance(item, Mapping) or not isinstance(item.get("id"), str):
            flat.problems.append(Problem("", "invalid_subgraph", "a subgraph definition has no id"))
        elif item["id"] in found:
            flat.problems.append(Problem("", "duplicate_id", f"two subgraphs have the id {item['id']}"))
        else:
            found[item["id"]] = item
    return found


def _instantiate(
    scope: Scope,
    node_id: Any,
    node: Mapping[str, Any],
    definitions: Mapping[str, Mapping[str, Any]],
    path: tuple[str, ...],
    flat: FlatGraph,
) -> Scope | None:
    name, flat_id = str(node["type"]), scope.flat_id(node_id)
    definition = definitions.get(name)
    problem = None
    if definition is None:
        problem = Problem(flat_id, "missing_definition", f"the workflow has no definition of subgraph {name}")
    elif name in path or len(path) >= _MAX_DEPTH:
        problem = Problem(flat_id, "subgraph_cycle", f"subgraph {name} contains itself")
    if problem is not None or definition is None:
        if activity_of(node) == ACTIVE and problem is not None:
            flat.problems.append(problem)
        return None
    child = Scope(f"{flat_id}:", definition=definition, instance=node, parent=scope)
    _index(child, definition, flat)
    child.promoted = _promoted(child, node, flat_id, flat)
    return child


def _promoted(child: Scope, node: Mapping[str, Any], flat_id: str, flat: FlatGraph) -> dict[str, Any]:
    """Return what an instance's own values say.

    Without `proxyWidgets` they stand in the order of the definition's inputs that end in a widget, and hide the inner
    values. With it the instance stores none, and the inner values hold.
    """
    values, properties = as_sequence(node.get("widgets_values")), node.get("properties")
    if not values or (isinstance(properties, Mapping) and "proxyWidgets" in properties):
        return {}
    assert child.definition is not None
    names = [name for name, item in _named_inputs(child.definition) if _ends_in_widget(child, item)]
    if len(values) > len(names):
        message = f"the instance stores {len(values)} values for {len(names)} widgets"
        flat.problems.append(Problem(flat_id, "widget_count", message, allowed=f"{len(names)} at most"))
        return {}
    return dict(zip(names, values, strict=False))


def _named_inputs(definition: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    items = as_sequence(definition.get("inputs"))
    return [(str(item.get("name")), item) for item in items if isinstance(item, Mapping)]


def _ends_in_widget(child: Scope, item: Mapping[str, Any]) -> bool:
    """Whether some inner input that a definition's input feeds has a widget, whose value the instance then stores."""
    return any(_slot_has_widget(child, link_id) for link_id in as_sequence(item.get("linkIds")))


def _slot_has_widget(child: Scope, link_id: Any) -> bool:
    link = child.links.get(link_id) if isinstance(link_id, (int, str)) else None
    target = child.nodes.get(link.target) if link is not None else None
    slots = as_sequence(target.get("inputs")) if target is not None else ()
    if link is None or not 0 <= link.target_slot < len(slots):
        return False
    slot = slots[link.target_slot]
    return isinstance(slot, Mapping) and bool(slot.get("widget"))


def _index(scope: Scope, graph: Mapping[str, Any], flat: FlatGraph) -> None:
    for node in as_sequence(graph.get("nodes")):
        node_id = node.get("id") if isinstance(node, Mapping) else None
        if not isinstance(node_id, (int, str)) or isinstance(node_id, bool) or not isinstance(node.get("type"), str):
            where = "" if node_id is None or not isinstance(node_id, (int, str)) else scope.flat_id(node_id)
            flat.problems.append(Problem(where, "invalid_node", "a node without an id or a type"))
        elif node_id in scope.nodes:
            flat.problems.append(Problem(scope.flat_id(node_id), "duplicate_id", "two nodes have this id"))
        else:
            scope.nodes[node_id] = node
    for item in as_sequence(graph.get("links")):
        _index_link(scope, item, flat)


def _index_link(scope: Scope, item: Any, flat: FlatGraph) -> None:
    """Take in a link, which is an array at the top level and an object in subgraphs; some files have either."""
    if isinstance(item, Mapping):
        fields = [item.get(key) for key in ("id", "origin_id", "origin_slot", "target_id", "target_slot")]
    else:
        fields = list(as_sequence(item))[:5]
    if len(fields) < 5 or not all(isinstance(value, (int, str)) for value in fields):
        flat.problems.append(Problem(scope.prefix.rstrip(":"), "invalid_link", f"not a link: {str(item)[:80]}"))
        return
    link_id, origin, origin_slot, target, target_slot = fields
    if not isinstance(origin_slot, int) or not isinstance(target_slot, int):
        flat.problems.append(Problem(scope.prefix.rstrip(":"), "invalid_link", f"link {link_id} has no slot numbers"))
        return
    link = RawLink(origin, origin_slot, target, target_slot)
    scope.links[link_id] = link
    if target == OUTPUT_NODE:
        scope.outward[target_slot] = link


def _looks_like_uuid(name: str) -> bool:
    return len(name) == 36 and name.count("-") == 4 and all(c in "0123456789abcdefABCDEF-" for c in name)
