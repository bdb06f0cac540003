"""The coverage report: every node and what became of it, as a table, as JSON, and in the shape of ComfyUI's errors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fastvideo_comfy.graph.base import Problem

__all__ = ["CoverageReport", "NodeCoverage", "Status"]

Status = Literal["compiled", "folded", "dead", "inert", "unsupported"]
"""`dead` nodes are ruled out by a switch that is known; `inert` ones are muted, bypassed, notes, previews, or lead to
no output."""

_ORDER: tuple[Status, ...] = ("unsupported", "compiled", "folded", "dead", "inert")
_MAX_WHY = 100


@dataclass(frozen=True, slots=True)
class NodeCoverage:
    """One node.

    Attributes:
        node_id: Its id; `outer:inner` in a subgraph.
        title: What the person named it.
        type: Its type.
        status: What became of it.
        why: The reason, where there is something to say.
        nearest: The nearest supported form, for unsupported ones.
        values: Its inputs as they come to be, links left out.
    """

    node_id: str
    title: str
    type: str
    status: Status
    why: str = ""
    nearest: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CoverageReport:
    """What became of a workflow.

    Attributes:
        name: The workflow.
        nodes: All nodes, in the file's order.
        problems: All reasons why it does not compile; none where it does.
        dependents: Output nodes that depend on a node, by node.
    """

    name: str
    nodes: tuple[NodeCoverage, ...]
    problems: tuple[Problem, ...] = ()
    dependents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_supported(self) -> bool:
        """Whether the workflow compiles."""
        return not self.problems

    def counts(self) -> dict[str, int]:
        """Return how many nodes there are of each status."""
        found = Counter(node.status for node in self.nodes)
        return {status: found[status] for status in _ORDER if found[status]}

    def of_status(self, status: Status) -> tuple[NodeCoverage, ...]:
        """Return the nodes of one status."""
        return tuple(node for node in self.nodes if node.status == status)

    def node(self, node_id: str) -> NodeCoverage:
        """Return a node by id."""
        return next(node for node in self.nodes if node.node_id == node_id)

    def errors(self) -> dict[str, Any]:
        """Return the problems in the shape in which ComfyUI's `/prompt` refuses a prompt."""
        classes = {node.node_id: node.type for node in self.nodes}
        by_node: dict[str, dict[str, Any]] = {}
        general = [problem for problem in self.problems if not problem.node]
        for problem in self.problems:
            if not problem.node:
                continue
            entry = by_node.setdefault(
                problem.node,
                {
                    "errors": [],
                    "dependent_outputs": list(self.dependents.get(problem.node, ())),
                    "class_type": classes.get(problem.node, ""),
                },
            )
            entry["errors"].append(_as_error(problem))
        first = general[0] if general else None
        error = {
            "type": first.code if first else "prompt_outputs_failed_validation",
            "message": first.message if first else "Prompt outputs failed validation",
            "details": "; ".join(problem.line() for problem in general),
            "extra_info": {},
        }
        return {"error": error, "node_errors": by_node}

    def table(self, *, is_full: bool = True) -> str:
        """Return a table for people; without `is_full` the unsupported nodes alone."""
        shown = [node for status in _ORDER for node in self.of_status(status)] if is_full else []
        rows = [("id", "type", "title", "status", "why"), *(_row(node) for node in shown)]
        lines = _aligned(rows) if shown else []
        lines += [f"- {problem.line()}" for problem in self.problems]
        counts = ", ".join(f"{count} {status}" for status, count in self.counts().items())
        verdict = "compiles" if self.is_supported else f"does not compile ({len(self.problems)} reasons)"
        return "\n".join([*lines, f"{self.name}: {verdict}; nodes: {counts or 'none'}"])

    def to_json(self) -> str:
        """Return the report as JSON."""
        nodes = [
            {
                "id": node.node_id,
                "title": node.title,
                "type": node.type,
                "status": node.status,
                "why": node.why,
                "nearest": node.nearest,
                "values": dict(node.values),
            }
            for node in self.nodes
        ]
        content = {"workflow": self.name, "compiles": self.is_supported, "nodes": nodes, **self.errors()}
        return json.dumps(content, ensure_ascii=False, indent=1, default=str)


def _as_error(problem: Problem) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if problem.input:
        extra["input_name"] = problem.input
    if problem.got is not None:
        extra["received_value"] = problem.got
    if problem.nearest:
        extra["nearest"] = problem.nearest
    details = "; ".join(part for part in (problem.input, problem.allowed and f"allowed: {problem.allowed}") if part)
    return {"type": problem.code, "message": problem.message, "details": details, "extra_info": extra}


def _row(node: NodeCoverage) -> tuple[str, ...]:
    why = "; ".join(part for part in (node.why, node.nearest and f"nearest: {node.nearest}") if part)
    cells = (node.node_id, node.type, node.title if node.title != node.type else "", node.status, why)
    return tuple(_printable(cell) for cell in cells)


def _printable(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _MAX_WHY else f"{line[: _MAX_WHY - 1]}…"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]
