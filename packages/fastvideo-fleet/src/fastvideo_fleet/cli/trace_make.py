"""`fastvideo fleet trace make`: a trace from the seeded generator."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_core.errors import OutputError
from fastvideo_fleet.cli.options import add_fleet_options, given_fleet, positive

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Make a session trace: arrivals in bursts (a Markov-modulated Poisson process), sessions with active and idle spells.
By default its mean load is half of what the fleet holds at a utilization of 0.7."""
EPILOG = "The same flags give the same file to the byte."


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="CSV file to write")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed (default: 1)")
    parser.add_argument("--minutes", type=positive, default=60.0, metavar="N", help="length (default: 60)")
    parser.add_argument(
        "--rate", type=positive, metavar="R", help="mean arrivals in a second, instead of the fleet's load"
    )
    parser.add_argument(
        "--wave", type=float, default=0.0, metavar="D", help="depth of a daily wave, 0 to 1 (default: 0)"
    )
    parser.add_argument(
        "--state-sigma", type=float, default=0.0, metavar="S", help="spread of the sessions' state sizes (default: 0)"
    )
    parser.add_argument("--model", default="", help="model of the sessions (default: the fleet's first)")
    add_fleet_options(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Make the trace and write it."""
    from fastvideo_fleet.traces.make import TraceSettings, arrivals_per_second, make_trace
    from fastvideo_fleet.traces.write import format_trace

    if args.output.exists():
        raise OutputError(
            "the file exists", field="output", value=str(args.output), allowed="a new file: nothing is written over"
        )
    duration_s = 60.0 * args.minutes
    rate = args.rate if args.rate is not None else arrivals_per_second(given_fleet(args), duration_s=duration_s)
    settings = TraceSettings(
        rate, args.seed, duration_s, wave=args.wave, state_sigma=args.state_sigma, model=args.model
    )
    trace = make_trace(settings)
    try:
        args.output.write_text(format_trace(trace), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{args.output} cannot be written: {error}") from error
    shell.tell(f"{trace.num_sessions} sessions, {trace.num_events} events, mean load {trace.mean_active():.1f}")
    shell.say(str(args.output))
    return 0
