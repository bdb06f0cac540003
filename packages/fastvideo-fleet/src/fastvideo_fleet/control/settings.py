"""Checks of the policies' settings."""

from __future__ import annotations

from dataclasses import fields
from math import isfinite
from typing import Any

from fastvideo_fleet.errors import FleetError

__all__ = ["BOUNDS", "check_settings"]

BOUNDS: dict[str, tuple[float, float]] = {
    "latency_weight": (0.01, 100.0),
    "target_utilization": (0.05, 1.0),
    "tolerance": (0.0, 0.5),
    "usual_variation": (0.01, 10.0),
    "migration_weight": (0.0, 1e6),
    "max_moves": (0, 65_536),
    "hedge": (0.0, 4.0),
    "relay_wait_s": (0.0, 3600.0),
    "max_relays": (0, 8),
    "hold_s": (0.0, 3600.0),
    "plan_every_s": (0.1, 600.0),
}
"""Least and greatest value of each number."""


def check_settings(settings: Any) -> None:
    """Refuse a setting out of its bounds.

    Raises:
        FleetError: With what is allowed.
    """
    for one in fields(settings):
        bounds, value = BOUNDS.get(one.name), getattr(settings, one.name)
        if bounds is None:
            continue
        if not isfinite(value) or not bounds[0] <= value <= bounds[1]:
            raise FleetError("out of range", field=one.name, value=value, allowed=f"{bounds[0]:g} to {bounds[1]:g}")
