"""What is live: reachable from an output once switches and values are folded."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastvideo_comfy.fold import Folder
from fastvideo_comfy.graph.base import ACTIVE, FlatGraph, Problem
from fastvideo_comfy.lower.support import is_output

__all__ = ["Live", "dependents_of", "find_live"]


@dataclass(slots=True)
class Live:
    """Nodes by what they take part in.

    Attributes:
        outputs: Output nodes.
        nodes: Nodes that have to run for some output; not those that are folded away.
        reachable: Nodes behind some output in the file, whether or not they turn out to be dead.
        behind: Nodes that each output needs, by output.
    """

    outputs: list[str] = field(default_factory=list)
    nodes: set[str] = field(default_factory=set)
    reachable: set[str] = field(default_factory=set)
    behind: dict[str, set[str]] = field(default_factory=dict)


def find_live(flat: FlatGraph, folder: Folder) -> Live:
    """Walk from every output to what it needs."""
    live = Live()
    for node in flat.nodes.values():
        if node.activity == ACTIVE and is_output(node.type, node.num_outputs):
            live.outputs.append(node.node_id)
    for output in live.outputs:
        live.behind[output] = _behind(flat, folder, output)
        live.nodes |= live.behind[output]
    live.reachable = _reachable(flat, live.outputs)
    return live


def _behind(flat: FlatGraph, folder: Folder, output: str) -> set[str]:
    found, waiting = {output}, [output]
    while waiting:
        node = flat.nodes[waiting.pop()]
        for name in node.links():
            source = folder.input(node, name).source
            if source is not None and source.node not in found and source.node in flat.nodes:
                found.add(source.node)
                waiting.append(source.node)
    return found


def _reachable(flat: FlatGraph, outputs: list[str]) -> set[str]:
    found, waiting = set(outputs), list(outputs)
    while waiting:
        for link in flat.nodes[waiting.pop()].links().values():
            if link.node in flat.nodes and link.node not in found:
                found.add(link.node)
                waiting.append(link.node)
    return found


def dependents_of(live: Live, problems: tuple[Problem, ...]) -> dict[str, tuple[str, ...]]:
    """Return the outputs that depend on each node with a problem."""
    nodes = {problem.node for problem in problems if problem.node}
    return {
        node: tuple(output for output in live.outputs if node in live.behind[output] and node != output)
        for node in nodes
    }
