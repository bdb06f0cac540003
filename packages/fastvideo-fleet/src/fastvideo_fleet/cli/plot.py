"""The figure of one or several runs: sessions, GPUs, load, worst chunk latency and migrations over time."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastvideo_core.errors import OutputError, ResourceError
from fastvideo_fleet.sim.result import SimulationResult

__all__ = ["check_plot", "plot_results"]

_SUFFIXES = (".png", ".svg", ".pdf")
_PANELS = (
    ("num_active", "active sessions"),
    ("num_gpus", "GPUs held"),
    ("load", "load (sessions / places)"),
    ("worst_latency_s", "worst chunk latency (s)"),
    ("num_migrations", "migrations so far"),
)


def check_plot(path: Path | None) -> None:
    """Refuse a figure that could not be drawn, before any work.

    Raises:
        OutputError: A suffix that is no picture's, a folder that is not there, a file that is.
        ResourceError: matplotlib is not installed.
    """
    if path is None:
        return
    if path.suffix.lower() not in _SUFFIXES:
        raise OutputError(
            "no picture", field="plot", value=str(path), allowed="a file name that ends in " + ", ".join(_SUFFIXES)
        )
    if not path.parent.is_dir():
        raise OutputError("no such folder", field="plot", value=str(path), allowed="a file in a folder that exists")
    if path.exists():
        raise OutputError(
            "the file exists", field="plot", value=str(path), allowed="a new file: nothing is written over"
        )
    if find_spec("matplotlib") is None:
        raise ResourceError("--plot needs matplotlib: pip install 'fastvideo-fleet[plot]'")


def plot_results(results: Sequence[SimulationResult], path: Path) -> None:
    """Draw the runs into one file; latencies on a logarithmic axis, since waits for a full fleet are long."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 12), layout="constrained")
    panels: Any = figure.subplots(len(_PANELS), 1, sharex=True)
    for panel, (name, title) in zip(panels, _PANELS, strict=True):
        shown = results[:1] if name == "num_active" else results
        for one in shown:
            panel.plot(one.series.time_s / 60, getattr(one.series, name), label=one.policy, linewidth=1.0)
        panel.set_ylabel(title)
        panel.grid(alpha=0.3)
    if all((one.series.worst_latency_s > 0).any() for one in results):
        panels[3].set_yscale("log")
    panels[-1].set_xlabel("time (min)")
    panels[1].legend(fontsize="small", ncols=2)
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error}") from error
