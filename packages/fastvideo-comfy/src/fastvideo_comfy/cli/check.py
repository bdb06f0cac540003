"""`fastvideo comfy check`: what becomes of every node."""

from __future__ import annotations

from argparse import Namespace

from fastvideo_comfy.cli.common import add_workflow_arguments, examine_file
from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "Tell for every node of a ComfyUI workflow whether it compiles, and why not."
EPILOG = """\
Statuses: compiled; folded, a value that is known; dead, ruled out by a switch; inert, bypassed, muted or without
effect; unsupported. One unsupported node that is live refuses the whole workflow. Exit code 2 if it does not
compile."""


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    add_workflow_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, with ComfyUI's `error` and `node_errors`")


def run(args: Namespace, shell: Shell) -> int:
    """Print the report."""
    report = examine_file(args).report
    shell.say(report.to_json() if args.json else report.table())
    return 0 if report.is_supported else 2
