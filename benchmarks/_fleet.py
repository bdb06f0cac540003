"""How the fleet's policies are matched: a baseline's fixed fleet against a policy, at equal cost and at equal latency.

A baseline with m GPUs costs m GPU-hours an hour and has a worst chunk latency w(m), which a run of the simulator gives.

- At equal cost: a policy that took c GPU-hours is compared with w at c, on the straight line between the two whole
  fleet sizes beside c.
- At equal latency: with the policy's worst latency x, an m with w(m) <= x is found whose neighbour below has more, by
  doubling and halving, and the cost is where the line between the two meets x. From 100 GPUs on, neighbours are 1 % of
  the fleet apart, below they are whole sizes. A baseline may have up to four times the policy's most GPUs;
  if that is not enough, its cost counts as that much, which understates what the policy saves.

The oracle is a bound: it knows the trace, moves sessions for free, and nobody waits for the batch in flight. At cost c
its latency is the least batch time whose cheapest schedule costs no more; at latency x its cost is that of the cheapest
schedule whose batches take no longer than x.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor

from fastvideo_fleet.control.registry import make_policy
from fastvideo_fleet.fleet import FleetSpec, calibrated_fleet
from fastvideo_fleet.oracle.budget import (
    Demand,
    clairvoyant_seconds,
    demand_of,
    lead_time_seconds,
    unavoidable_wait_s,
)
from fastvideo_fleet.sim.result import SimulationResult
from fastvideo_fleet.sim.simulator import simulate
from fastvideo_fleet.traces import Trace, TraceSettings, arrivals_per_second, make_trace

MOST_FLEETS = 4
"""How many times the policy's most GPUs a baseline may have."""

MEASURES = ("worst_chunk_latency_s", "worst_queue_and_batch_s")
"""The worst chunk latency, and what it is if the wait for the batch in flight does not count."""


@dataclass
class Setting:
    """One trace on one fleet, with the runs that were made of it.

    Attributes:
        calibration: GPU and model.
        max_gpus: Most GPUs of a policy.
        seed: The trace's seed.
        fleet: The fleet.
        trace: The trace.
        demand: Its demand.
        runs: Fixed fleets that were run, by baseline and size.
    """

    calibration: str
    max_gpus: int
    seed: int
    fleet: FleetSpec
    trace: Trace
    demand: Demand
    runs: dict[tuple[str, int], SimulationResult] = field(default_factory=dict)

    @classmethod
    def of(cls, calibration: str, max_gpus: int, seed: int) -> Setting:
        """Make the trace of a seed for a fleet."""
        fleet = calibrated_fleet(calibration, max_gpus)
        trace = make_trace(TraceSettings(arrivals_per_second(fleet), seed))
        return cls(calibration, max_gpus, seed, fleet, trace, demand_of(trace))

    @property
    def hours(self) -> float:
        """Length of the trace."""
        return self.trace.duration_s / 3600

    def run(self, policy: str, latency_weight: float = 1.0) -> SimulationResult:
        """Run a policy."""
        return simulate(self.trace, self.fleet, make_policy(policy, latency_weight=latency_weight), name=policy)

    def fixed(self, baseline: str, num_gpus: int) -> SimulationResult:
        """Run a baseline on a fixed fleet, once."""
        # With states of equal size, the fewest bytes are the fewest sessions: both greedy baselines decide alike.
        name = "load-aware" if baseline == "memory-aware" else baseline
        key = (name, num_gpus)
        if key not in self.runs:
            fleet = calibrated_fleet(self.calibration, max(num_gpus, self.max_gpus))
            self.runs[key] = simulate(self.trace, fleet, make_policy(name, num_gpus=num_gpus), name=name)
        return self.runs[key]

    def worst(self, baseline: str, num_gpus: int, measure: str) -> float:
        """Return a fixed fleet's worst latency."""
        return float(getattr(self.fixed(baseline, num_gpus), measure))

    def latency_at(self, baseline: str, gpu_hours: float, measure: str) -> float:
        """Return a baseline's worst latency at a cost, between whole fleets on a straight line."""
        size = max(gpu_hours / self.hours, 1.0)
        low = floor(size)
        first = self.worst(baseline, low, measure)
        return first if size == low else first + (size - low) * (self.worst(baseline, low + 1, measure) - first)

    def hours_at(self, baseline: str, latency_s: float, measure: str) -> tuple[float, bool]:
        """Return a baseline's cost at a worst latency, and whether it reaches that latency at all."""
        most = MOST_FLEETS * self.max_gpus
        low, high = 0, max(self.max_gpus // 2, 1)
        while self.worst(baseline, high, measure) > latency_s:
            if high == most:
                return most * self.hours, False
            low, high = high, min(high * 2, most)
        while high - low > max(high // 100, 1):
            middle = (low + high) // 2
            if self.worst(baseline, middle, measure) > latency_s:
                low = middle
            else:
                high = middle
        if low == 0:
            return high * self.hours, True
        above, below = self.worst(baseline, low, measure), self.worst(baseline, high, measure)
        return (low + (above - latency_s) / (above - below)) * self.hours, True


@dataclass(frozen=True)
class Oracle:
    """What hindsight gives on one setting.

    Attributes:
        hours: Least GPU-hours at which batches hold at most n sessions, by n; only what the whole fleet can keep.
        lead_hours: The same for one who knows by how much demand grows within a start-up, but not when.
        batch_s: Batch time with n sessions, by n.
        wait_s: Longest wait for a place with the whole fleet all the time.
    """

    hours: dict[int, float]
    lead_hours: dict[int, float]
    batch_s: dict[int, float]
    wait_s: float

    @classmethod
    def of(cls, setting: Setting) -> Oracle:
        """Work the schedules out."""
        one = setting.fleet.classes[0]
        most = setting.max_gpus
        levels = [n for n in range(1, one.max_sessions + 1) if n * most >= setting.demand.peak]
        wait_s = 0.0
        if not levels:
            levels = [one.max_sessions]
            wait_s = unavoidable_wait_s(setting.trace, most * one.max_sessions)
        scale = {"max_gpus": most, "start_s": one.start_s}
        return cls(
            {n: clairvoyant_seconds(setting.demand, n, **scale) / 3600 for n in levels},  # type: ignore[arg-type]
            {n: lead_time_seconds(setting.demand, n, **scale) / 3600 for n in levels},  # type: ignore[arg-type]
            {n: one.chunk_s[n] for n in levels},
            wait_s,
        )

    def latency_at(self, gpu_hours: float) -> float:
        """Return the least worst latency at a cost; that of a full worker if even that costs more."""
        within = [self.batch_s[n] for n, hours in self.hours.items() if hours <= gpu_hours]
        return self.wait_s + min(within, default=max(self.batch_s.values()))

    def hours_at(self, latency_s: float, *, is_lead: bool = False) -> float:
        """Return the least cost at a worst latency."""
        hours = self.lead_hours if is_lead else self.hours
        within = [hours[n] for n, batch in self.batch_s.items() if batch + self.wait_s <= latency_s + 1e-9]
        return min(within, default=max(hours.values()))
