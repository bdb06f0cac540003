"""Small fleets and traces."""

from __future__ import annotations

import numpy as np
import pytest

from fastvideo_fleet.costs import LinearChunkCost
from fastvideo_fleet.fleet import FleetSpec, WorkerClass, calibrated_fleet
from fastvideo_fleet.traces import TraceSettings, arrivals_per_second, make_trace, parse_trace


@pytest.fixture
def small_fleet():
    """Four workers of up to 3 sessions; a batch of n takes 0.5 + 0.25 n seconds, a start 4 seconds."""
    worker = WorkerClass.of(
        "gpu", "model", LinearChunkCost(0.5, 0.25), max_sessions=3, max_gpus=4, price_per_hour=3.6, start_s=4.0
    )
    return FleetSpec((worker,), migration_s=0.02, suspend_s=0.05, resume_s=0.05)


@pytest.fixture
def mixed_fleet():
    """Two kinds of GPU with one model and one with another."""
    kind = WorkerClass.of
    return FleetSpec(
        (
            kind("slow", "a", LinearChunkCost(0.6, 0.3), max_sessions=3, max_gpus=3, price_per_hour=1, start_s=3.0),
            kind("fast", "a", LinearChunkCost(0.2, 0.1), max_sessions=6, max_gpus=2, price_per_hour=5, start_s=5.0),
            kind("other", "b", LinearChunkCost(0.3, 0.2), max_sessions=4, max_gpus=2, price_per_hour=2, start_s=4.0),
        )
    )


@pytest.fixture
def make_rows():
    """Return a function that makes a trace of rows `time session event [attributes]`."""

    def make(*rows, duration_s=None):
        lines = ["time_s,session_id,event,attributes"]
        lines += [",".join((*row.split(), "", "")[:4]) for row in rows]
        return parse_trace("\n".join(lines) + "\n", origin="rows", duration_s=duration_s)

    return make


@pytest.fixture(scope="session")
def short_trace():
    """Ten minutes on eight H20 GPUs, with its fleet."""
    fleet = calibrated_fleet("h20-1.3b", 8)
    return make_trace(TraceSettings(arrivals_per_second(fleet, duration_s=600.0), 11, 600.0)), fleet


@pytest.fixture
def rng():
    return np.random.default_rng(5)
