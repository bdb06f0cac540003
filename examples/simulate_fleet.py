"""Two policies serve the same streaming sessions in the simulator: what users wait, and what the GPUs cost.

    pip install fastvideo-fleet
    python simulate_fleet.py

Nothing is needed but the package: no model, no accelerator. It takes a few seconds.
"""

from __future__ import annotations

from fastvideo_fleet.control.registry import make_policy
from fastvideo_fleet.fleet import calibrated_fleet
from fastvideo_fleet.sim.simulator import simulate
from fastvideo_fleet.traces import TraceSettings, arrivals_per_second, make_trace


def main() -> None:
    """Make a trace, run both policies on it, and print what they gave."""
    fleet = calibrated_fleet("h20-1.3b", 8)
    rate = arrivals_per_second(fleet, duration_s=900.0)
    trace = make_trace(TraceSettings(rate, seed=3, duration_s=900.0))
    print(f"{trace.num_sessions} sessions, {trace.mean_active():.1f} active on average")
    for name in ("load-aware", "fastvideo"):
        result = simulate(trace, fleet, make_policy(name), name=name)
        print(
            f"{name}: worst chunk {result.worst_chunk_latency_s:.2f} s, 99 of 100 within "
            f"{result.p99_chunk_latency_s:.2f} s, {result.gpu_cost:.2f} $"
        )


if __name__ == "__main__":
    main()
