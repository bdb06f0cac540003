"""Exact min-max placement under a migration budget.

Sessions matter to a worker only by their number, so a placement is a vector of counts. A worst batch time T can be
reached with at most B moves if and only if

    sum over workers of min(cap(T), K)               >= all sessions, and
    sum over workers of max(count - cap(T), 0)       <= B,

where cap(T) is the most sessions with which a worker's batch takes at most T. The first says that all fit; the second
counts the moves that any placement below T needs, since each worker has to lose its excess and a move takes away one;
moving just the excess, and placing it and the new sessions where there is room, is such a placement. Both sides are
monotone in T, and T only matters at the batch times themselves, so a binary search over them is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["MinMaxPlan", "min_max_plan"]

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MinMaxPlan:
    """The best that can be reached.

    Attributes:
        worst_s: Worst batch time.
        caps: Most sessions of each worker at that time.
        num_moves: Fewest moves that reach it.
    """

    worst_s: float
    caps: Counts
    num_moves: int

    def placed(self, count: Counts, num_new: int = 0) -> Counts:
        """Return the counts after the moves: excess goes, with the new sessions, to the first workers with room.

        Args:
            count: Sessions on each worker before, (S,).
            num_new: Sessions to place besides.
        """
        kept = np.minimum(count, self.caps)
        room = self.caps - kept
        waiting = int((count - kept).sum()) + num_new
        filled = np.minimum(np.cumsum(room), waiting)
        return np.asarray(kept + np.diff(filled, prepend=0), dtype=np.int64)


def min_max_plan(
    count: Counts, chunk_s: npt.NDArray[np.float64], *, num_new: int = 0, max_moves: int
) -> MinMaxPlan | None:
    """Return the least worst batch time for some workers, and what reaches it.

    Args:
        count: Sessions on each worker, (S,).
        chunk_s: Batch time of each worker with n sessions, infinite beyond its K, (S, K + 2); it does not fall with n.
        num_new: Sessions to place besides.
        max_moves: Most sessions that may change workers.

    Returns:
        The plan, or None if the sessions do not fit, or no placement is within the moves.
    """
    total = int(count.sum()) + num_new
    times = np.unique(chunk_s[np.isfinite(chunk_s)])
    low, high = 0, len(times) - 1
    if total == 0 or len(times) == 0:
        return None
    if not _is_reachable(count, chunk_s, float(times[high]), total, max_moves):
        return None
    while low < high:
        middle = (low + high) // 2
        if _is_reachable(count, chunk_s, float(times[middle]), total, max_moves):
            high = middle
        else:
            low = middle + 1
    worst = float(times[low])
    caps = _caps(chunk_s, worst)
    return MinMaxPlan(worst, caps, int(np.maximum(count - caps, 0).sum()))


def _caps(chunk_s: npt.NDArray[np.float64], worst_s: float) -> Counts:
    # Entry 0 is the empty worker's 0, so the number of entries within the time is one more than the sessions.
    return np.asarray((chunk_s <= worst_s).sum(axis=1) - 1, dtype=np.int64)


def _is_reachable(count: Counts, chunk_s: npt.NDArray[np.float64], worst_s: float, total: int, max_moves: int) -> bool:
    caps = _caps(chunk_s, worst_s)
    return int(caps.sum()) >= total and int(np.maximum(count - caps, 0).sum()) <= max_moves
