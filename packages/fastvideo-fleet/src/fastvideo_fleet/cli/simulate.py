"""`fastvideo fleet simulate`: one policy on a trace."""

from __future__ import annotations

import json
from argparse import Namespace

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_core.cli.table import format_table
from fastvideo_fleet.cli.options import add_fleet_options, add_run_options, given_failures, given_fleet, given_trace

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "Run one policy on a session trace, chunk by chunk, and print what it gave."
EPILOG = """\
Latencies are in seconds from asking for a chunk to having it, waits included; cost is in dollars. All figures but the
decision times are the same in every run."""


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    add_run_options(parser)
    parser.add_argument("--policy", default="fastvideo", metavar="P", help="policy (default: fastvideo)")
    parser.add_argument("--num-gpus", type=int, metavar="N", help="GPUs at the start, or the size of a fixed fleet")
    add_fleet_options(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Simulate and print."""
    from fastvideo_fleet.cli.plot import check_plot, plot_results
    from fastvideo_fleet.control.registry import make_policy
    from fastvideo_fleet.sim.simulator import simulate

    fleet = given_fleet(args)
    policy = make_policy(args.policy, latency_weight=args.latency_weight, num_gpus=args.num_gpus)
    check_plot(args.plot)
    trace = given_trace(args)
    result = simulate(trace, fleet, policy, name=args.policy, failures=given_failures(args))
    if args.plot is not None:
        plot_results([result], args.plot)
    figures = result.to_json()
    if args.json:
        shell.say(json.dumps(figures))
    else:
        rows = [(name, f"{value:.4g}" if isinstance(value, float) else str(value)) for name, value in figures.items()]
        shell.say(format_table(rows))
    return 0
