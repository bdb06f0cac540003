"""`fastvideo fleet trace check`: what is wrong with a trace, line by line."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "Check a session trace: numbers, the order of times, and what each session may do next."
EPILOG = """\
Columns: time_s,session_id,event,attributes. Events: arrive, activate, idle, depart; a session that arrives is active.
Attributes, on the arrive line: model, state_bytes, slo_s, tenant, as name=value joined by `;`."""


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("trace", type=Path, metavar="FILE", help="session trace, CSV")


def run(args: Namespace, shell: Shell) -> int:
    """Check the trace and tell of every problem, up to a limit."""
    from fastvideo_fleet.traces.read import MAX_PROBLEMS, find_problems

    problems, trace = find_problems(args.trace)
    for problem in problems:
        shell.tell(f"error: {problem.as_error(str(args.trace))}")
    if len(problems) >= MAX_PROBLEMS:
        shell.tell(f"error: the check stopped after {MAX_PROBLEMS} problems")
    if problems:
        return 2
    shell.say(
        f"{args.trace} is valid: {trace.num_sessions} sessions, {trace.num_events} events, {trace.duration_s:g} s"
    )
    return 0
