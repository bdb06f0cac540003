"""`fastvideo comfy coverage`: which of many workflows compile, by family, and what is missing most often."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fastvideo_comfy.cli.common import add_model_option
from fastvideo_comfy.compiler import examine, installed_cards
from fastvideo_comfy.errors import WorkflowError
from fastvideo_comfy.files import parse_assignments
from fastvideo_comfy.fold.brought import BroughtNode, configured_nodes
from fastvideo_comfy.graph.document import read_document
from fastvideo_comfy.report import CoverageReport
from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_core.errors import InputError

__all__ = ["DESCRIPTION", "EPILOG", "Coverage", "add_arguments", "family_of", "measure", "run"]

DESCRIPTION = "Compile every workflow of a folder and print which share compiles, by family of models."
EPILOG = """\
A family is told from the names of the model files and node types of a workflow. Files that are no workflows are counted
apart."""

_FAMILIES = (
    ("partner", ("api_",)),
    ("cosmos", ("cosmos",)),
    ("wan", ("wan",)),
    ("hunyuan", ("hunyuan",)),
    ("ltx", ("ltx",)),
    ("flux", ("flux",)),
    ("qwen", ("qwen",)),
    ("minimax", ("minimax", "fasth3")),
    ("audio", ("audio_", "ace_step", "stable_audio")),
    ("3d", ("3d_", "tripo", "trellis")),
)
_NUM_MISSING = 12


@dataclass(slots=True)
class Coverage:
    """What came of many workflows.

    Attributes:
        compiles: Number of workflows by family that compile.
        total: Number of workflows by family.
        missing: How many workflows each unsupported type refuses.
        skipped: Files that are no workflows.
        reports: Reports by file.
    """

    compiles: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)
    reports: dict[str, CoverageReport] = field(default_factory=dict)


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder with workflows (.json), searched below too")
    add_model_option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON line for each workflow")


def run(args: Namespace, shell: Shell) -> int:
    """Print the table."""
    if not args.folder.is_dir():
        raise InputError("not a folder", field="FOLDER", value=str(args.folder), allowed="a folder with workflows")
    coverage = measure(args.folder, models=args.model, nodes=configured_nodes(args.config))
    if args.json:
        for name, report in sorted(coverage.reports.items()):
            reasons = [problem.line() for problem in report.problems]
            line = {"file": name, "compiles": report.is_supported, "nodes": report.counts(), "reasons": reasons}
            shell.say(json.dumps(line, ensure_ascii=False))
        return 0
    shell.say(_table(coverage))
    return 0


def measure(
    folder: Path, *, models: list[str] | None = None, nodes: Mapping[str, BroughtNode] | None = None
) -> Coverage:
    """Compile every workflow below a folder."""
    find_card, files = installed_cards(), parse_assignments(models or [])
    coverage = Coverage()
    for path in sorted(folder.rglob("*.json")):
        name = path.relative_to(folder).as_posix()
        try:
            document = read_document(path)
        except WorkflowError:
            coverage.skipped.append(name)
            continue
        report = examine(document, find_card=find_card, files=files, nodes=nodes).report
        family = family_of(name, report)
        coverage.reports[name] = report
        coverage.total[family] += 1
        coverage.compiles[family] += report.is_supported
        coverage.missing.update({node.type for node in report.of_status("unsupported")})
    return coverage


def family_of(name: str, report: CoverageReport) -> str:
    """Return the family of a workflow."""
    loaders = [str(value) for node in report.nodes for value in node.values.values() if _is_weight_file(value)]
    for places in ([name.rpartition("/")[2].lower()], [file.lower() for file in loaders]):
        for family, marks in _FAMILIES:
            if any(mark in place for mark in marks for place in places):
                return family
    return "other"


def _is_weight_file(value: object) -> bool:
    return isinstance(value, str) and value.endswith(".safetensors")


def _table(coverage: Coverage) -> str:
    shares: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for family, total in coverage.total.items():
        shares[family] = coverage.compiles[family], total
    rows = sorted(shares.items(), key=lambda item: (-item[1][1], item[0]))
    done, total = sum(coverage.compiles.values()), sum(coverage.total.values())
    lines = [f"{'family':<10} {'compile':>7} {'of':>5} {'share':>6}"]
    lines += [_line(family, *counts) for family, counts in (*rows, ("all", (done, total)))]
    named = sorted(name for name, report in coverage.reports.items() if report.is_supported)
    lines += ["", "compile: " + (", ".join(named) or "none")]
    common = ", ".join(f"{kind} {count}" for kind, count in coverage.missing.most_common(_NUM_MISSING))
    lines += ["", f"refused most often, in workflows: {common or 'nothing'}"]
    if coverage.skipped:
        lines.append(f"no workflows: {len(coverage.skipped)} files")
    return "\n".join(lines)


def _line(family: str, done: int, total: int) -> str:
    return f"{family:<10} {done:>7} {total:>5} {done / max(total, 1):>6.1%}"
