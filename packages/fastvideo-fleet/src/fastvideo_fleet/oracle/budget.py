"""Budgets with hindsight: what serving a trace costs at least, when all of it is known.

Everything here takes the demand as a step function: times, and how many sessions are active from each on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastvideo_fleet.traces.base import Trace

__all__ = [
    "Demand",
    "SlotPlan",
    "clairvoyant_seconds",
    "demand_of",
    "experienced_utilization",
    "lead_time_seconds",
    "plan_slots",
    "slot_means",
    "slot_peaks",
    "unavoidable_wait_s",
]

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Demand:
    """Active sessions over time.

    Attributes:
        time_s: When the number changes, rising.
        count: The number from then on.
        duration_s: When it ends.
    """

    time_s: Floats
    count: Counts
    duration_s: float

    @property
    def widths_s(self) -> Floats:
        """For how long each number holds."""
        return np.diff(np.append(self.time_s, self.duration_s))

    @property
    def peak(self) -> int:
        """The greatest number."""
        return int(self.count.max(initial=0))


def demand_of(trace: Trace) -> Demand:
    """Return a trace's demand, with one entry for each distinct time."""
    times = np.append(0.0, trace.time_s)
    counts = np.append(0, trace.active_counts())
    last = np.append(times[1:] != times[:-1], True)
    return Demand(times[last], counts[last], trace.duration_s)


def clairvoyant_seconds(demand: Demand, level: int, *, max_gpus: int, start_s: float) -> float:
    """Return the fewest GPU-seconds that keep at most `level` sessions on each GPU whenever the fleet allows it.

    The k-th GPU is needed whenever more than (k - 1) * level sessions are active, whatever the others do. Between two
    such times it is held, or stopped and started anew, whichever costs less; a start costs `start_s`. So each GPU's
    best schedule is known on its own, and their sum is the least of all schedules. Sessions are moved for free.
    """
    total, held = 0.0, 0
    since = [0.0] * (max_gpus + 1)
    until = [-np.inf] * (max_gpus + 1)
    for time_s, count in zip(demand.time_s.tolist(), demand.count.tolist(), strict=True):
        needed = min(-(-count // level), max_gpus)
        while held < needed:
            held += 1
            total += min(start_s, time_s - until[held])
            since[held] = time_s
        while held > needed:
            total += time_s - since[held]
            until[held] = time_s
            held -= 1
    return total + sum(demand.duration_s - since[one] for one in range(1, held + 1))


def lead_time_seconds(demand: Demand, level: int, *, max_gpus: int, start_s: float) -> float:
    """Return the fewest GPU-seconds of a controller that sees only how many GPUs are needed now.

    A GPU ordered now serves `start_s` later. So whenever k GPUs are needed, there must be as many, serving or ordered,
    as were ever needed within `start_s` of a moment at which k were; else that moment would have been missed. Those
    numbers are read from the trace itself, so no controller without knowledge of the future can know them all: this is
    what hindsight of the worst growth, but not of its time, would give.
    """
    needed = np.minimum(-(-demand.count // level), max_gpus)
    ahead = _max_ahead(demand.time_s, needed, start_s)
    wanted = np.zeros(max_gpus + 1, dtype=np.int64)
    np.maximum.at(wanted, needed, ahead)
    return float(np.dot(wanted[needed], demand.widths_s))


def _max_ahead(time_s: Floats, values: Counts, span_s: float) -> Counts:
    """Return the greatest value from each time to `span_s` later."""
    best = values.copy()
    ends = np.searchsorted(time_s, time_s + span_s, side="right")
    window: list[int] = []
    right = len(values) - 1
    # From the end, with a window of indices whose values fall: the front is the greatest of those still in reach.
    for index in range(len(values) - 1, -1, -1):
        while window and values[window[-1]] <= values[index]:
            window.pop()
        window.append(index)
        right = int(ends[index]) - 1
        while window[0] > right:
            window.pop(0)
        best[index] = values[window[0]]
    return best


def slot_means(demand: Demand, slot_s: float = 60.0) -> Floats:
    """Return the mean number of active sessions in each slot."""
    edges = np.arange(0.0, demand.duration_s + slot_s / 2, slot_s)
    total = np.append(0.0, np.cumsum(demand.count * demand.widths_s))
    at = np.interp(edges, np.append(demand.time_s, demand.duration_s), total)
    means: Floats = np.diff(at) / np.diff(edges)
    return means


def slot_peaks(demand: Demand, slot_s: float = 60.0) -> Counts:
    """Return the greatest number of active sessions in each slot."""
    num_slots = round(demand.duration_s / slot_s)
    peaks = np.zeros(num_slots, dtype=np.int64)
    starts = np.minimum((demand.time_s / slot_s).astype(np.int64), num_slots - 1)
    np.maximum.at(peaks, starts, demand.count)
    first = np.searchsorted(demand.time_s, np.arange(num_slots) * slot_s, side="right") - 1
    return np.maximum(peaks, demand.count[first])


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """The cheapest schedule of budgets.

    Attributes:
        gpus: GPUs in each slot.
        gpu_seconds: What it costs, starts included.
    """

    gpus: Counts
    gpu_seconds: float


def plan_slots(needed: Counts, *, max_gpus: int, start_s: float, slot_s: float = 60.0) -> SlotPlan:
    """Return the cheapest budgets with at least `needed` GPUs in each slot, by dynamic programming.

    A GPU that was not there in the slot before costs `start_s` more. The first slot's GPUs are started too.

    Source: the offline oracle of Jiang et al. 2026, arXiv:2606.19271, section 7.4, with the starts paid for.
    """
    budgets = np.arange(max_gpus + 1)
    starts = start_s * np.maximum(budgets[None, :] - budgets[:, None], 0)  # from row to column
    cost = np.where(budgets == 0, 0.0, np.inf)
    origins = []
    for least in needed:
        reached = cost[:, None] + starts
        origin = reached.argmin(axis=0)
        origins.append(origin)
        cost = reached[origin, budgets] + slot_s * budgets
        cost[: min(int(least), max_gpus)] = np.inf
    last = int(cost.argmin())
    path = [last]
    for origin in reversed(origins[1:]):
        path.append(int(origin[path[-1]]))
    return SlotPlan(np.array(path[::-1], dtype=np.int64), float(cost[last]))


def experienced_utilization(demand: Demand, gpus: Counts, capacity: int, slot_s: float = 60.0) -> float:
    """Return the mean over session-seconds of sessions over places, when sessions are spread as evenly as can be.

    Chunk time grows with it in a straight line, so plans of equal experienced utilization give equal mean chunk times.

    Args:
        demand: Active sessions.
        gpus: GPUs in each slot.
        capacity: Places of a GPU, K.
        slot_s: Width of a slot.
    """
    edges = np.arange(len(gpus)) * slot_s
    times = np.unique(np.concatenate([demand.time_s, edges]))
    count = demand.count[np.searchsorted(demand.time_s, times, side="right") - 1]
    held = gpus[np.searchsorted(edges, times, side="right") - 1]
    seated = np.minimum(count, held * capacity)
    each, more = np.divmod(seated, np.maximum(held, 1))
    squares = (held - more) * each**2 + more * (each + 1) ** 2
    widths = np.diff(np.append(times, demand.duration_s))
    weight = float(np.dot(seated, widths))
    return float(np.dot(squares, widths)) / (capacity * weight) if weight else 0.0


def unavoidable_wait_s(trace: Trace, places: int) -> float:
    """Return the longest wait for a place when all places of the whole fleet are there all the time.

    Sessions wait in the order of their coming. It is zero unless the trace asks for more than the fleet has.
    """
    waiting: dict[int, float] = {}
    seated: set[int] = set()
    longest = 0.0
    rows = zip(trace.time_s.tolist(), trace.session.tolist(), trace.kind.tolist(), strict=True)
    for time_s, session, kind in rows:
        if kind in (0, 1):
            waiting[session] = time_s
        elif session in waiting:
            longest = max(longest, time_s - waiting.pop(session))
        else:
            seated.discard(session)
        while waiting and len(seated) < places:
            first = next(iter(waiting))
            longest = max(longest, time_s - waiting.pop(first))
            seated.add(first)
    return longest
