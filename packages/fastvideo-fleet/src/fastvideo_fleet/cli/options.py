"""Flags that several commands share, and what they mean."""

from __future__ import annotations

import argparse
import math
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from fastvideo_core.cli.parser import Parser
from fastvideo_fleet.costs.calibrations import CALIBRATIONS

if TYPE_CHECKING:
    from fastvideo_fleet.fleet import FleetSpec
    from fastvideo_fleet.sim.simulator import WorkerFailure
    from fastvideo_fleet.traces.base import Trace

__all__ = ["add_fleet_options", "add_run_options", "failure", "given_fleet", "given_trace", "positive"]


def add_fleet_options(parser: Parser) -> None:
    """Add the flags that say what the fleet is made of."""
    group = parser.add_argument_group("fleet")
    group.add_argument("--max-gpus", type=int, metavar="N", help="most GPUs; needed unless --fleet is given")
    group.add_argument("--sessions-per-gpu", type=int, metavar="K", help="most sessions on one GPU")
    group.add_argument(
        "--calibration",
        metavar="NAME",
        help=f"GPU and model: {', '.join(CALIBRATIONS)} (default: h20-1.3b)",
    )
    group.add_argument("--fleet", type=Path, metavar="FILE.json", help="a fleet of several kinds of workers")


def add_run_options(parser: Parser) -> None:
    """Add the flags of a run."""
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE", help="session trace, CSV")
    parser.add_argument(
        "--latency-weight", type=float, default=1.0, metavar="W", help="what latency is worth against cost (default: 1)"
    )
    parser.add_argument(
        "--fail",
        action="append",
        default=[],
        type=failure,
        metavar="TIME:WORKER",
        help="let a worker die; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw what happened over time")


def failure(text: str) -> tuple[float, int]:
    """Read `TIME:WORKER`.

    Raises:
        argparse.ArgumentTypeError: It is something else.
    """
    first, separator, second = text.partition(":")
    try:
        time_s, worker = float(first), int(second)
    except ValueError:
        separator, time_s, worker = "", 0.0, 0
    if not separator or not math.isfinite(time_s):
        raise argparse.ArgumentTypeError(f"{text!r} is not TIME:WORKER, seconds and a worker's number from 0")
    return time_s, worker


def positive(text: str) -> float:
    """Read a number above zero.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def given_fleet(args: Namespace) -> FleetSpec:
    """Return the fleet that the flags describe.

    Raises:
        FleetError: None is described, two are, or it makes no sense.
    """
    from fastvideo_fleet.errors import FleetError
    from fastvideo_fleet.fleet import calibrated_fleet
    from fastvideo_fleet.fleet_file import read_fleet

    if args.fleet is not None:
        others = [name for name in ("max_gpus", "sessions_per_gpu", "calibration") if getattr(args, name) is not None]
        if others:
            raise FleetError(
                "the fleet's file says this already",
                field=others[0],
                value=getattr(args, others[0]),
                allowed="without --fleet",
            )
        return read_fleet(args.fleet)
    if args.max_gpus is None:
        raise FleetError("no fleet", allowed="--max-gpus N, or --fleet FILE.json")
    return calibrated_fleet(args.calibration or "h20-1.3b", args.max_gpus, sessions_per_gpu=args.sessions_per_gpu)


def given_trace(args: Namespace) -> Trace:
    """Read the trace."""
    from fastvideo_fleet.traces.read import read_trace

    return read_trace(args.trace)


def given_failures(args: Namespace) -> list[WorkerFailure]:
    """Return the failures that were asked for."""
    from fastvideo_fleet.sim.simulator import WorkerFailure

    return [WorkerFailure(time_s, worker) for time_s, worker in args.fail]
