"""`fastvideo fleet trace show`: figures of a trace."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_core.cli.table import format_table

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "Print a session trace's figures: length, sessions, load, bursts."
EPILOG = "Load is the number of active sessions, averaged over time."


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("trace", type=Path, metavar="FILE", help="session trace, CSV")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: Namespace, shell: Shell) -> int:
    """Print the figures."""
    from fastvideo_fleet.traces.read import read_trace
    from fastvideo_fleet.traces.show import summarise

    figures = asdict(summarise(read_trace(args.trace)))
    if args.json:
        shell.say(json.dumps(figures))
        return 0
    shell.say(format_table([(name, _text(value)) for name, value in figures.items()]))
    return 0


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
