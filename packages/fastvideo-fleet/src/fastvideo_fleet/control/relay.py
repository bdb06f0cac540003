"""Letting a newcomer in where a batch ends soon, by moving others on to where the next ones end.

Near a full fleet the workers with room are few, and the batch in flight on them may be long. A session that has just
had its chunk can wait for that batch as well as the newcomer can: the newcomer takes its place at the end of an earlier
batch, and it moves on. So the wait is shared, and nobody has all of it. Further sessions can share it in turn.

Array legend: N = candidate slots, in the order in which their batches in flight end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastvideo_fleet.control.choose import Draft, Slots
from fastvideo_fleet.control.view import TIE_S

__all__ = ["Relay", "best_relay"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Relay:
    """A chain of moves.

    Attributes:
        slots: The newcomer goes to the first; one session of each goes to the next, and the last has room.
        worst_s: The latest of all their next chunks, each counted from when its session asked for it.
    """

    slots: tuple[int, ...]
    worst_s: float


def best_relay(
    draft: Draft,
    slots: Slots,
    delay_s: float,
    *,
    waited_s: float,
    max_moves: int = 2,
    num_candidates: int = 16,
) -> Relay | None:
    """Return the chain with the least worst chunk latency, or the direct way if no chain gains enough.

    Each further move has to gain a migration's time. Only the batches in flight count, whose ends are known.

    Args:
        draft: The fleet, with what has been decided so far.
        slots: Slots of the session's model that serve, (S,).
        delay_s: Seconds until the newcomer's state is there.
        waited_s: Seconds for which its chunk has been asked for already.
        max_moves: Most sessions to move.
        num_candidates: Slots to pass through, and slots to end on, that are looked at.

    Returns:
        A chain, of one slot if the newcomer goes there directly; None if there is no way at all.
    """
    chosen, ends = _candidates(draft, slots, num_candidates)
    if len(chosen) == 0:
        return None
    view = draft.view
    passing = np.where(draft.count[chosen] > 0, view.chunk_s[view.class_of[chosen], draft.count[chosen]], np.inf)
    final = draft.next_chunk_s(chosen)
    gaps = ends[None, :] - ends[:, None]
    gaps[gaps < view.spec.migration_s + TIE_S] = np.inf
    reached = np.where(ends >= delay_s, waited_s + ends, np.inf)
    best: Relay | None = None
    through, done = reached + passing, reached + final
    origin = np.zeros(len(chosen), dtype=np.int64)
    before: list[Slots] = []
    """For each move but the last, where the chain that passes through a slot came from."""
    for num_moves in range(max_moves + 1):
        if num_moves:
            done, origin = _onward(through, gaps, final)
        last = int(done.argmin())
        price = view.spec.migration_s if best is not None else 0.0
        if np.isfinite(done[last]) and (best is None or done[last] < best.worst_s - price):
            path = [last] if num_moves == 0 else _path([*before, origin], last)
            best = Relay(tuple(int(chosen[place]) for place in path), float(done[last]))
        if num_moves:
            through, passed = _onward(through, gaps, passing)
            before.append(passed)
    return best


def _path(origins: list[Slots], last: int) -> list[int]:
    """Return the places of a chain from the first to the last."""
    path = [last]
    for origin in reversed(origins):
        path.append(int(origin[path[-1]]))
    return path[::-1]


def _candidates(draft: Draft, slots: Slots, count: int) -> tuple[Slots, Floats]:
    """Return the slots that the chains may use, and the seconds to the end of their batches in flight, rising."""
    view = draft.view
    # A slot that this decision has changed already may begin another batch than is known.
    slots = slots[draft.count[slots] == view.count[slots]]
    boundary, period = view.boundary_s[slots], view.period_s[slots]
    ends = boundary + np.maximum(np.ceil((view.now_s - boundary) / period), 0.0) * period - view.now_s
    order = np.argsort(ends, kind="stable")
    has_room = (draft.count[slots] < view.max_count[slots])[order]
    kept = np.full(len(order), len(order) <= 2 * count)
    kept[np.flatnonzero(has_room)[:count]] = True
    if not kept.all() and kept.any():
        # Batch ends come in clusters: slots to pass through are those that part the time best, not the first ones.
        last = ends[order[kept][-1]]
        kept[np.searchsorted(ends[order[:-1]], np.linspace(0.0, last, count))] = True
    return slots[order[kept]], ends[order[kept]]


def _onward(through: Floats, gaps: Floats, length: Floats) -> tuple[Floats, Slots]:
    """Extend every chain by one move: the least worst latency of a chain to each slot, and where it came from."""
    worst = np.maximum(through[:, None], gaps + length[None, :])
    origin = worst.argmin(axis=0)
    return worst[origin, np.arange(len(origin))], origin
