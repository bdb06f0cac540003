"""Fixed calibrations that stand for the settings of the TurboServe paper. Nobody tunes them.

Source: the settings and orders of magnitude of Jiang et al. 2026, arXiv:2606.19271, sections 7.1 and 7.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from fastvideo_fleet.costs.base import LinearChunkCost
from fastvideo_fleet.errors import FleetError

__all__ = [
    "CALIBRATIONS",
    "MIGRATION_S",
    "RESUME_S",
    "STATE_BYTES",
    "SUSPEND_S",
    "WORKER_START_S",
    "Calibration",
    "calibration",
]

WORKER_START_S = 20.0
"""Seconds from the order for a worker to the moment when it serves; they are paid for."""

MIGRATION_S = 0.025
"""Seconds in which the state of a nominal session moves from GPU to GPU."""

SUSPEND_S = 0.05
RESUME_S = 0.05
"""Seconds in which the state of a nominal session moves from GPU to host, and back."""

STATE_BYTES = 1_000_000_000
"""Bytes of a nominal session; the times above grow in proportion."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """One kind of GPU with one model.

    Attributes:
        gpu: Kind of GPU.
        model: Model that the worker holds.
        cost: Batch time in seconds.
        max_sessions: Most sessions on one worker, the paper's K.
        price_per_hour: Dollars for a GPU-hour.
    """

    gpu: str
    model: str
    cost: LinearChunkCost
    max_sessions: int
    price_per_hour: float


CALIBRATIONS = {
    "h20-1.3b": Calibration("h20", "1.3b", LinearChunkCost(0.30, 0.15), 8, 1.5),
    "h20-7b": Calibration("h20", "7b", LinearChunkCost(0.35, 0.30), 4, 1.5),
    "b300-1.3b": Calibration("b300", "1.3b", LinearChunkCost(0.25, 0.06), 16, 6.0),
    "b300-7b": Calibration("b300", "7b", LinearChunkCost(0.30, 0.12), 10, 6.0),
}


def calibration(name: str) -> Calibration:
    """Return a calibration by name.

    Raises:
        FleetError: There is none of that name.
    """
    if name in CALIBRATIONS:
        return CALIBRATIONS[name]
    near = get_close_matches(name, CALIBRATIONS, n=1, cutoff=0.3)
    raise FleetError(
        "no such calibration",
        field="calibration",
        value=name,
        allowed=", ".join(CALIBRATIONS),
        nearest=next(iter(near), None),
    )
