"""The compiler: a document in, a program or a report of every reason against it out. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from fastvideo_comfy.errors import UnsupportedWorkflowError
from fastvideo_comfy.files import FileMap
from fastvideo_comfy.fold import Folder
from fastvideo_comfy.fold.brought import BroughtNode, name_widgets
from fastvideo_comfy.graph.base import ACTIVE, FlatGraph, FlatNode, Problem
from fastvideo_comfy.graph.document import Document
from fastvideo_comfy.graph.flatten import flatten
from fastvideo_comfy.live import Live, dependents_of, find_live
from fastvideo_comfy.lower.base import CardFinder, Lowering
from fastvideo_comfy.lower.outputs import Lowered, lower_output
from fastvideo_comfy.lower.support import COMPILED, INERT, OUTPUTS, is_understood, refusal
from fastvideo_comfy.program import WorkflowProgram
from fastvideo_comfy.report import CoverageReport, NodeCoverage, Status
from fastvideo_core.errors import ParameterError

__all__ = ["Compiled", "compile_workflow", "examine", "installed_cards"]

_MAX_OUTPUTS = 256

_STRUCTURAL = frozenset(
    {
        "cycle",
        "duplicate_id",
        "invalid_link",
        "invalid_node",
        "invalid_subgraph",
        "missing_definition",
        "subgraph_cycle",
        "too_many_nodes",
        "wireless_link",
    }
)
"""Problems of the file as a whole: what is not live counts too, since they may hide what would be."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of a workflow.

    Attributes:
        report: Every node.
        program: The program; None if there is a reason against it.
        graph: The flat graph, with the values that were set.
    """

    report: CoverageReport
    program: WorkflowProgram | None
    graph: FlatGraph

    def expect(self) -> WorkflowProgram:
        """Return the program.

        Raises:
            UnsupportedWorkflowError: There is none; carries the report.
        """
        if self.program is None:
            raise UnsupportedWorkflowError(self.report)
        return self.program


def installed_cards() -> CardFinder:
    """Return a finder of the installed cards, and of cards in folders."""
    from fastvideo_core.errors import FastVideoError
    from fastvideo_core.runtime.catalog import Catalog

    catalog = Catalog.installed()

    def find(name: str) -> Any:
        if name in catalog.cards:
            return catalog.cards[name]
        try:
            return catalog.find(name)
        except FastVideoError:
            return None

    return find


def compile_workflow(
    document: Document,
    *,
    find_card: CardFinder,
    files: FileMap | None = None,
    values: Mapping[tuple[str, str], Any] | None = None,
    nodes: Mapping[str, BroughtNode] | None = None,
) -> WorkflowProgram:
    """Compile a workflow.

    Args:
        document: The workflow, in either form.
        find_card: Cards by name.
        files: Cards of model files; None knows the published ones.
        values: Inputs to set, by node and input, in place of what stands or comes in there.
        nodes: Node types that plugins bring, by type.

    Raises:
        UnsupportedWorkflowError: A live node does not compile; carries every reason.
        ParameterError: There is no such node or input to set.
    """
    return examine(document, find_card=find_card, files=files, values=values, nodes=nodes).expect()


def examine(
    document: Document,
    *,
    find_card: CardFinder,
    files: FileMap | None = None,
    values: Mapping[tuple[str, str], Any] | None = None,
    nodes: Mapping[str, BroughtNode] | None = None,
) -> Compiled:
    """Compile a workflow as far as it goes, and tell what became of every node; see `compile_workflow`."""
    flat, brought = flatten(document), nodes or {}
    name_widgets(flat, brought)
    set_values(flat, values or {})
    folder = Folder(flat, brought)
    live = find_live(flat, folder)
    ctx = Lowering(flat, folder, files or FileMap(), find_card)
    for problem in _refusals(ctx, live):
        ctx.note_problem(problem)
    lowered = _lower(ctx, live)
    problems = _relevant(flat, live, ctx)
    report = CoverageReport(document.name, _coverage(ctx, live, problems), problems, dependents_of(live, problems))
    if problems:
        return Compiled(report, None, flat)
    parts = tuple(node for one in lowered for node in one.nodes)
    requests = tuple(one.request for one in lowered)
    return Compiled(report, WorkflowProgram(program_id=document.name[:128], nodes=parts, requests=requests), flat)


def set_values(flat: FlatGraph, values: Mapping[tuple[str, str], Any]) -> None:
    """Set inputs of nodes.

    Raises:
        ParameterError: There is no such node or input; names the nearest.
    """
    for (node_id, name), value in values.items():
        node = flat.nodes.get(node_id)
        if node is None:
            near = get_close_matches(node_id, flat.nodes, n=1, cutoff=0.0)
            raise ParameterError(
                "the workflow has no such node", field=f"{node_id}.{name}", value=value, nearest=next(iter(near), None)
            )
        if name not in node.inputs:
            near = get_close_matches(name, node.inputs, n=1, cutoff=0.0)
            raise ParameterError(
                f"node {node_id} ({node.type}) has no such input",
                field=f"{node_id}.{name}",
                value=value,
                allowed=", ".join(node.inputs) or "none",
                nearest=next(iter(near), None),
            )
        node.inputs[name] = value


def _refusals(ctx: Lowering, live: Live) -> list[Problem]:
    """Return a problem for each live node whose type does not compile, and note the node."""
    found = []
    for node_id in live.nodes:
        node = ctx.flat.nodes[node_id]
        reason = refusal(node.type)
        if reason is not None:
            ctx.refused.add(node_id)
            found.append(Problem(node_id, "unsupported_node", f"{node.type}: {reason[0]}", nearest=reason[1]))
        elif node.type in COMPILED:
            found += [
                Problem(node_id, "unknown_input", f"{node.type} is not known to have this input", name)
                for name in node.inputs
                if not is_understood(node.type, name)
            ]
    if not live.outputs:
        found.append(Problem("", "prompt_no_outputs", "the workflow has no output node", allowed=", ".join(OUTPUTS)))
    return found


def _lower(ctx: Lowering, live: Live) -> list[Lowered]:
    if len(live.outputs) > _MAX_OUTPUTS:
        message = f"the workflow has {len(live.outputs)} outputs"
        ctx.note_problem(Problem("", "too_many_outputs", message, allowed=f"{_MAX_OUTPUTS} at most"))
        return []
    outputs = [ctx.flat.nodes[node_id] for node_id in sorted(live.outputs, key=_numeric)]
    lowered = [
        lower_output(ctx, node, f"o{index}") for index, node in enumerate(outputs, start=1) if node.type in OUTPUTS
    ]
    return [one for one in lowered if one is not None]


def _numeric(node_id: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdecimal() else (1 << 62, part) for part in node_id.split(":"))


def _relevant(flat: FlatGraph, live: Live, ctx: Lowering) -> tuple[Problem, ...]:
    """Return the problems that count: those of nodes that take part, and those of the file as a whole."""
    taking_part = live.nodes | ctx.folder.folded
    own = [
        problem
        for problem in flat.problems
        if not problem.node or problem.node in taking_part or problem.code in (*_STRUCTURAL, "not_foldable")
    ]
    return _unique(own + ctx.problems)


def _unique(problems: list[Problem]) -> tuple[Problem, ...]:
    found: dict[str, Problem] = {}
    for problem in problems:
        found.setdefault(problem.line(), problem)
    return tuple(found.values())


def _coverage(ctx: Lowering, live: Live, problems: tuple[Problem, ...]) -> tuple[NodeCoverage, ...]:
    reasons: dict[str, list[Problem]] = {}
    for problem in problems:
        reasons.setdefault(problem.node, []).append(problem)
    return tuple(_covered(ctx, live, node, reasons.get(node.node_id, [])) for node in ctx.flat.nodes.values())


def _covered(ctx: Lowering, live: Live, node: FlatNode, reasons: list[Problem]) -> NodeCoverage:
    status, why = _status(ctx, live, node)
    nearest = ""
    if reasons:
        status = "unsupported"
        why = "; ".join(f"{one.input}: {one.message}" if one.input else one.message for one in reasons)
        nearest = next((one.nearest for one in reasons if one.nearest), "")
    return NodeCoverage(node.node_id, node.title, node.type, status, why, nearest, _values(ctx, node, status))


def _status(ctx: Lowering, live: Live, node: FlatNode) -> tuple[Status, str]:
    if node.activity != ACTIVE:
        return "inert", str(node.activity)
    if node.type in INERT:
        return "inert", INERT[node.type]
    if node.node_id in ctx.folder.folded:
        return "folded", ""
    if node.node_id in live.nodes:
        return "compiled", ctx.notes.get(node.node_id, "")
    if node.node_id in live.reachable:
        return "dead", "a switch or a value rules it out"
    return "inert", "leads to no output"


def _values(ctx: Lowering, node: FlatNode, status: Status) -> dict[str, Any]:
    """Return a node's inputs as they come to be; those of nodes that take no part stay as they stand."""
    if status in ("dead", "inert"):
        return {}
    folded = {name: ctx.folder.input(node, name) for name in node.inputs}
    return {name: one.value for name, one in folded.items() if one.is_known}
