"""The seeded generator of traces."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastvideo_fleet.errors import TraceError
from fastvideo_fleet.fleet import FleetSpec
from fastvideo_fleet.traces.base import EventKind, SessionAttributes, Trace
from fastvideo_fleet.traces.demand import TRACE_LAW, SessionLaw, active_seconds_per_arrival

__all__ = ["DAY_S", "TraceSettings", "arrivals_per_second", "make_trace"]

DAY_S = 86_400.0
TARGET_UTILIZATION = 0.7
LOAD_SHARE = 0.5
"""The mean load is this share of what the whole fleet holds at the target utilization."""


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """What the generator makes.

    Attributes:
        mean_rate: Mean arrivals in a second, over all states of the modulating chain.
        seed: Seed; the same seed and settings give the same trace to the bit.
        duration_s: Length.
        wave: Depth of a daily wave on the arrivals, 0 to 1: highest at noon of each day, lowest at its start.
        state_sigma: Sigma of the log-normal spread of the state's size; 0 gives every session the nominal size.
        state_bytes: The nominal size, the median of the spread.
        model: Model of the sessions; "" is the fleet's first.
        law: Laws of arrivals and sessions.
    """

    mean_rate: float
    seed: int
    duration_s: float = 3600.0
    wave: float = 0.0
    state_sigma: float = 0.0
    state_bytes: int = 1_000_000_000
    model: str = ""
    law: SessionLaw = TRACE_LAW

    def __post_init__(self) -> None:
        """Refuse settings out of range.

        Raises:
            TraceError: With what is allowed.
        """
        bounds = {
            "mean_rate": (0, 1e6),
            "duration_s": (1, 1e8),
            "wave": (0, 1),
            "state_sigma": (0, 3),
            "seed": (0, 2**63),
        }
        for field, (low, high) in bounds.items():
            value = getattr(self, field)
            if not math.isfinite(value) or not low <= value <= high:
                raise TraceError("out of range", field=field, value=value, allowed=f"{low} to {high:g}")


def arrivals_per_second(fleet: FleetSpec, *, duration_s: float = 3600.0, law: SessionLaw = TRACE_LAW) -> float:
    """Return the mean arrival rate at which a trace loads half of a fleet at a target utilization of 0.7.

    Load is the mean number of active sessions over the trace, which starts empty, against K times the fleet's size.
    """
    capacity = sum(one.max_gpus * one.max_sessions for one in fleet.classes)
    wanted = LOAD_SHARE * TARGET_UTILIZATION * capacity
    return wanted / active_seconds_per_arrival(law, duration_s)


def make_trace(settings: TraceSettings) -> Trace:
    """Make a trace.

    Arrivals come from a Markov-modulated Poisson process whose chain starts in its stationary law. All sessions that
    are there at the end depart then.
    """
    rng = np.random.default_rng(settings.seed)
    arrivals = _thinned(rng, _arrival_times(rng, settings), settings)
    ends = np.minimum(arrivals + _lengths(rng, len(arrivals), settings.law), settings.duration_s)
    times, sessions, kinds = _spells(rng, arrivals, ends, settings.law)
    order = np.lexsort((kinds, sessions, times))
    width = len(str(max(len(arrivals) - 1, 0)))
    return Trace(
        times[order],
        sessions[order].astype(np.int32),
        kinds[order].astype(np.int8),
        tuple(f"s{index:0{width}d}" for index in range(len(arrivals))),
        _attributes(rng, len(arrivals), settings),
        settings.duration_s,
    )


def _arrival_times(rng: np.random.Generator, settings: TraceSettings) -> npt.NDArray[np.float64]:
    law = settings.law
    peak = 1.0 + settings.wave
    unit = settings.mean_rate * peak / law.mean_rate_factor
    shares = np.array(law.dwell_s) / sum(law.dwell_s)
    state = int(rng.choice(len(shares), p=shares))
    time_s, parts = 0.0, [np.empty(0)]
    while time_s < settings.duration_s:
        end = min(time_s + float(rng.exponential(law.dwell_s[state])), settings.duration_s)
        count = int(rng.poisson(unit * law.rate_factors[state] * (end - time_s)))
        parts.append(np.sort(rng.uniform(time_s, end, count)))
        time_s = end
        state = (state + 1 + int(rng.integers(len(shares) - 1))) % len(shares)
    # Times are kept to the microsecond, so that a file holds all of them.
    return np.minimum(np.round(np.concatenate(parts), 6), settings.duration_s)


def _thinned(
    rng: np.random.Generator, arrivals: npt.NDArray[np.float64], settings: TraceSettings
) -> npt.NDArray[np.float64]:
    """Keep arrivals with the daily wave's probability, relative to its peak."""
    if settings.wave == 0:
        return arrivals
    level = 1.0 - settings.wave * np.cos(2 * np.pi * arrivals / DAY_S)
    return arrivals[rng.uniform(size=len(arrivals)) * (1.0 + settings.wave) < level]


def _lengths(rng: np.random.Generator, count: int, law: SessionLaw) -> npt.NDArray[np.float64]:
    drawn = law.length_median_s * np.exp(law.length_sigma * rng.standard_normal(count))
    return np.asarray(np.round(np.minimum(drawn, law.max_length_s), 6), dtype=np.float64)


def _spells(
    rng: np.random.Generator, arrivals: npt.NDArray[np.float64], ends: npt.NDArray[np.float64], law: SessionLaw
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return times, sessions and kinds of all events, session by session in rounds: one spell of all in a round."""
    alive = np.arange(len(arrivals))
    now = arrivals.copy()
    parts = [(arrivals, alive, EventKind.ARRIVE)]
    is_active = True
    while len(alive):
        spell = (
            rng.exponential(law.active_mean_s, len(alive))
            if is_active
            else law.idle_median_s * np.exp(law.idle_sigma * rng.standard_normal(len(alive)))
        )
        now = np.round(now + spell, 6)
        stays = now < ends[alive]
        gone = alive[~stays]
        parts.append((ends[gone], gone, EventKind.DEPART))
        alive, now = alive[stays], now[stays]
        parts.append((now, alive, EventKind.IDLE if is_active else EventKind.ACTIVATE))
        is_active = not is_active
    kinds = [np.full(len(sessions), int(kind), dtype=np.int64) for _, sessions, kind in parts]
    return (
        np.concatenate([times for times, _, _ in parts]),
        np.concatenate([sessions for _, sessions, _ in parts]),
        np.concatenate(kinds),
    )


def _attributes(rng: np.random.Generator, count: int, settings: TraceSettings) -> tuple[SessionAttributes, ...]:
    if settings.state_sigma == 0:
        return (SessionAttributes(settings.model),) * count
    sizes = settings.state_bytes * np.exp(settings.state_sigma * rng.standard_normal(count))
    return tuple(SessionAttributes(settings.model, int(size)) for size in sizes)
