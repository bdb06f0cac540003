"""`fastvideo fleet compare`: all policies on one trace, in one table and one figure."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import TYPE_CHECKING

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_core.cli.table import format_table
from fastvideo_fleet.cli.options import add_fleet_options, add_run_options, given_failures, given_fleet, given_trace

if TYPE_CHECKING:
    from fastvideo_fleet.sim.result import SimulationResult

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "Run all policies on one session trace and print their figures side by side."
EPILOG = "Fixed fleets have all GPUs, unless --num-gpus says how many."

_COLUMNS = (
    ("worst_chunk_latency_s", "worst s"),
    ("p99_chunk_latency_s", "p99 s"),
    ("mean_chunk_latency_s", "mean s"),
    ("gpu_cost", "cost $"),
    ("gpu_hours", "GPU-hours"),
    ("num_migrations", "migrations"),
    ("num_suspends", "suspends"),
    ("slo_violations", "SLO violations"),
    ("decide_ms_p50", "decide p50 ms"),
    ("decide_ms_p99", "decide p99 ms"),
)


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    add_run_options(parser)
    parser.add_argument("--policies", metavar="P,P,…", help="which policies, by name (default: all)")
    parser.add_argument("--num-gpus", type=int, metavar="N", help="size of the fixed fleets")
    add_fleet_options(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Simulate all and print."""
    from fastvideo_fleet.cli.plot import check_plot, plot_results
    from fastvideo_fleet.control.registry import POLICIES, make_policy
    from fastvideo_fleet.sim.simulator import simulate

    fleet = given_fleet(args)
    names = list(POLICIES) if args.policies is None else args.policies.split(",")
    policies = {
        name: make_policy(name, latency_weight=args.latency_weight, num_gpus=args.num_gpus if _is_fixed(name) else None)
        for name in names
    }
    check_plot(args.plot)
    trace = given_trace(args)
    failures = given_failures(args)
    results = [simulate(trace, fleet, policy, name=name, failures=failures) for name, policy in policies.items()]
    if args.plot is not None:
        plot_results(results, args.plot)
    shell.say(json.dumps({one.policy: one.to_json() for one in results}) if args.json else _table(results))
    return 0


def _is_fixed(name: str) -> bool:
    return name.endswith("-no-autoscaling") or name in ("round-robin", "load-aware", "memory-aware")


def _table(results: list[SimulationResult]) -> str:
    rows = []
    for one in results:
        figures = one.to_json()
        cells = (figures[key] for key, _ in _COLUMNS)
        rows.append([one.policy, *(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells)])
    return format_table(rows, header=("policy", *(title for _, title in _COLUMNS)))
