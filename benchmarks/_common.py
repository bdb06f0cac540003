"""What the benchmarks share: arguments, side-by-side timing, the yardstick and the report.

Absolute times differ from machine to machine and from hour to hour, so a benchmark compares: `interleaved` runs all
cases in turn, in one process, and the figure is a ratio of medians. `yardstick_us` tells how fast the machine was
while it ran.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Case = Callable[[], object]


def make_parser(description: str, *, num_rounds: int = 5) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has.

    Args:
        description: One line for `--help`.
        num_rounds: Default of `--rounds`.

    Returns:
        A parser that knows `--json` and `--rounds`; add a benchmark's own options to it.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a table")
    parser.add_argument("--rounds", type=positive, default=num_rounds, help="timed rounds (default: %(default)s)")
    return parser


def positive(text: str) -> int:
    """Parse a whole number of at least one."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def time_s(case: Case) -> float:
    """Return the wall time of one call, in seconds."""
    start = time.perf_counter()
    case()
    return time.perf_counter() - start


def interleaved(cases: Mapping[str, Case], *, num_rounds: int, num_warmups: int = 1) -> dict[str, list[float]]:
    """Time several cases side by side.

    Each round runs every case once. The order turns by one place a round, so that no case always follows the same
    other one, and a machine that slows down slows all of them.

    Args:
        cases: Functions without arguments, by name.
        num_rounds: Timed calls of each case, at least 1.
        num_warmups: Calls of each case before that, not timed.

    Returns:
        Wall times in seconds, by name, in the order of the rounds.
    """
    for _ in range(num_warmups):
        for case in cases.values():
            case()
    times: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for index in range(num_rounds):
        turn = index % len(names)
        for name in names[turn:] + names[:turn]:
            times[name].append(time_s(cases[name]))
    return times


def ratio(times: Mapping[str, Sequence[float]], ours: str, theirs: str) -> float:
    """Return the median time of `ours` over the median time of `theirs`: below 1 is faster."""
    return statistics.median(times[ours]) / statistics.median(times[theirs])


def paired_ratios(times: Mapping[str, Sequence[float]], ours: str, theirs: str) -> list[float]:
    """Return the time of `ours` over that of `theirs` in each round.

    What one round has in common, such as a machine that is slow for a while, drops out; the median of these is the
    figure to give where rounds differ much.
    """
    return [one / other for one, other in zip(times[ours], times[theirs], strict=True)]


def yardstick_us(num_repeats: int = 201) -> float:
    """Return the median time of `sum(i * i for i in range(1000))`, in microseconds."""
    return 1e6 * statistics.median(time_s(lambda: sum(i * i for i in range(1000))) for _ in range(num_repeats))


def cpu_name() -> str:
    """Return the processor's name, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def installed(distribution: str) -> str | None:
    """Return a distribution's version, or None where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """Describe what the figures were measured on: processor, cores, memory and versions."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    affinity = getattr(os, "sched_getaffinity", None)
    versions = {name: installed(name) for name in ("torch", "diffusers", "transformers")}
    return {
        "cpu": cpu_name(),
        "num_cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: found for name, found in versions.items() if found is not None},
    }


def report(figures: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the figures with the yardstick and the machine: one line of JSON, or a table.

    Args:
        figures: The benchmark's results by name; floats are shown with four significant digits.
        as_json: Whether `--json` was given.
    """
    shown = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in figures.items()}
    full = {**shown, "yardstick_us": round(yardstick_us(), 2), "machine": machine()}
    if as_json:
        print(json.dumps(full))
        return
    width = max(map(len, full))
    for key, value in full.items():
        text = ", ".join(f"{name} {part}" for name, part in value.items()) if isinstance(value, dict) else value
        print(f"{key:<{width}}  {text}")
    sys.stdout.flush()
