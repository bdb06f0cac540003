"""How the fleet's policies are matched: a baseline's fixed fleet against a policy, at equal cost and at equal latency.

A baseline with m GPUs costs m GPU-hours an hour and has a worst chunk latency w(m), which a run of the simulator gives.

- At equal cost: a policy that took c GPU-hours is compared with w at c, on the straight line between the two whole
  fleet sizes beside c.
- At equal latency: with the policy's worst latency x, an m with w(m) <= x is found whose neighbour below has more, by
  doubling and halving, and the cost is where the line between the two meets x. From 100 GPUs on, neighbours are 1 % of
  the fleet apart, below they are whole sizes. A baseline may have up to four times the policy's most GPUs;
  if that is not enough, its cost counts as that much, which understates what the policy saves.

Oracles, all with hindsight of the trace:

- The oracle is the paper's, with starts paid for: in each minute it holds what keeps the minute's peak at n sessions a
  GPU, at the least cost by dynamic programming. Its latency is the batch time of n; nobody waits for a batch in flight.
- The clairvoyant bound is stronger: it holds GPUs for the very moments at which they are needed.
- `foresight` is what the policy itself gets in the simulator if it knows demand one lead time ahead.
- `known-rates` is what it gets if it knows the true arrival rates of quiet times and bursts, but not their moments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor

import numpy as np

from fastvideo_fleet.control.fastvideo import FastVideo
from fastvideo_fleet.control.registry import make_policy
from fastvideo_fleet.control.view import FleetView, Policy
from fastvideo_fleet.fleet import FleetSpec, calibrated_fleet
from fastvideo_fleet.oracle.budget import (
    Demand,
    clairvoyant_seconds,
    demand_of,
    lead_time_seconds,
    plan_slots,
    slot_peaks,
    unavoidable_wait_s,
)
from fastvideo_fleet.sim.result import SimulationResult
from fastvideo_fleet.sim.simulator import simulate
from fastvideo_fleet.traces import Trace, TraceSettings, arrivals_per_second, make_trace
from fastvideo_fleet.traces.demand import TRACE_LAW

MOST_FLEETS = 4
"""How many times the policy's most GPUs a baseline may have."""

MEASURES = ("worst_chunk_latency_s", "worst_queue_and_batch_s")
"""The worst chunk latency, and what it is if the wait for the batch in flight does not count."""


class Foresight(FastVideo):
    """The policy with room for the most demand that there will be until an ordered worker serves, and no more.

    Args:
        demand: The trace's.
    """

    def __init__(self, demand: Demand) -> None:
        super().__init__()
        self._demand = demand

    def _needed(self, view: FleetView, index: int, model: object) -> float:
        span = self._models[index].detector.lead_s
        times = self._demand.time_s
        first, last = np.searchsorted(times, [view.now_s, view.now_s + span], side="right")
        return float(self._demand.count[max(first - 1, 0) : last].max())


class KnownRates(FastVideo):
    """The policy with the true rate of bursts in place of a learnt one.

    Args:
        burst_rate: In 1/s.
    """

    def __init__(self, burst_rate: float) -> None:
        super().__init__()
        self._rate = burst_rate

    def begin(self, view: FleetView) -> list[int]:
        """Begin as the policy does, with the true rate."""
        started = super().begin(view)
        for model in self._models:
            model.detector.arrivals = _Known(self._rate)  # type: ignore[assignment]
        return started


@dataclass(frozen=True)
class _Known:
    burst_rate: float

    def update(self, num_arrivals: int) -> None:
        """Learn nothing."""


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
        """Run a policy, or one of the two that know more."""
        made: Policy
        if policy == "foresight":
            made = Foresight(self.demand)
        elif policy == "known-rates":
            made = KnownRates(arrivals_per_second(self.fleet) / TRACE_LAW.mean_rate_factor * TRACE_LAW.rate_factors[-1])
        else:
            made = make_policy(policy, latency_weight=latency_weight)
        return simulate(self.trace, self.fleet, made, name=policy)

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
        hours: Least GPU-hours at which batches hold at most n sessions, by kind and n; only what the whole fleet can
            keep. Kinds are `oracle` (budgets of whole minutes), `clairvoyant` (of any time), and `lead` (for one who
            knows by how much demand grows within a start-up, but not when).
        batch_s: Batch time with n sessions, by n.
        wait_s: Longest wait for a place with the whole fleet all the time.
    """

    hours: dict[str, dict[int, float]]
    batch_s: dict[int, float]
    wait_s: float

    @classmethod
    def of(cls, setting: Setting) -> Oracle:
        """Work the schedules out."""
        one, demand, most = setting.fleet.classes[0], setting.demand, setting.max_gpus
        levels = [n for n in range(1, one.max_sessions + 1) if n * most >= demand.peak]
        wait_s = 0.0
        if not levels:
            levels = [one.max_sessions]
            wait_s = unavoidable_wait_s(setting.trace, most * one.max_sessions)
        peaks, start_s = slot_peaks(demand), one.start_s
        hours: dict[str, dict[int, float]] = {"oracle": {}, "clairvoyant": {}, "lead": {}}
        for n in levels:
            needed = np.minimum(-(-peaks // n), most)
            hours["oracle"][n] = plan_slots(needed, max_gpus=most, start_s=start_s).gpu_seconds / 3600
            hours["clairvoyant"][n] = clairvoyant_seconds(demand, n, max_gpus=most, start_s=start_s) / 3600
            hours["lead"][n] = lead_time_seconds(demand, n, max_gpus=most, start_s=start_s) / 3600
        return cls(hours, {n: one.chunk_s[n] for n in levels}, wait_s)

    def latency_at(self, gpu_hours: float, kind: str) -> float:
        """Return the least worst latency at a cost; that of a full worker if even that costs more."""
        within = [self.batch_s[n] for n, hours in self.hours[kind].items() if hours <= gpu_hours]
        return self.wait_s + min(within, default=max(self.batch_s.values()))

    def hours_at(self, latency_s: float, kind: str) -> float:
        """Return the least cost at a worst latency."""
        hours = self.hours[kind]
        within = [hours[n] for n, batch in self.batch_s.items() if batch + self.wait_s <= latency_s + 1e-9]
        return min(within, default=max(hours.values()))
