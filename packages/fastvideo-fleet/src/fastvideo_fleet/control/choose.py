"""Where one session goes: pure functions of the view's arrays.

Array legend: S = slots of one model.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastvideo_fleet.control.view import FleetView

__all__ = ["Draft", "Slots", "first_chunk_s", "least_loaded"]

Slots = npt.NDArray[np.int64]


class Draft:
    """The counts that a decision will lead to, while it is being made.

    Attributes:
        view: The fleet as it is.
        count: Sessions of each slot, with the moves decided so far.
    """

    __slots__ = ("count", "view")

    def __init__(self, view: FleetView) -> None:
        self.view = view
        self.count = view.count.copy()

    def serving(self, model: int) -> Slots:
        """Return the slots of a model that serve, full or not."""
        return self.view.ready_slots[model]

    def next_chunk_s(self, slots: Slots) -> npt.NDArray[np.float64]:
        """Return the batch time of each slot with one session more; infinite where it is full."""
        return self.view.chunk_s[self.view.class_of[slots], self.count[slots] + 1]

    def add(self, slot: int) -> None:
        """Count a session that goes to `slot`."""
        self.count[slot] += 1

    def remove(self, slot: int) -> None:
        """Count a session that leaves `slot`."""
        self.count[slot] -= 1


def first_chunk_s(draft: Draft, slots: Slots, delay_s: float, *, only_known: bool = False) -> npt.NDArray[np.float64]:
    """Return when a session's next chunk would be done on each slot, in seconds from now.

    It can join at the first batch boundary after `delay_s`, and its batch then takes as long as one with it. The end
    of the batch in flight is known; that of a later one moves if sessions come or go before.

    Args:
        draft: The fleet, with what has been decided so far.
        slots: Slots to compare, (S,).
        delay_s: Seconds until its state is there.
        only_known: Whether slots are out of question where the batch in flight ends too early to join then.

    Returns:
        Seconds, float64 (S,); infinite where a slot is full or out of question.
    """
    view = draft.view
    boundary = view.boundary_s[slots]
    period = view.period_s[slots]
    to_ready = np.maximum(np.ceil((view.now_s + delay_s - boundary) / period), 0.0)
    done: npt.NDArray[np.float64] = boundary + to_ready * period - view.now_s + draft.next_chunk_s(slots)
    if only_known:
        to_now = np.maximum(np.ceil((view.now_s - boundary) / period), 0.0)
        done[(to_ready > to_now) & (view.count[slots] > 0)] = np.inf
    return done


def least_loaded(draft: Draft, slots: Slots) -> int:
    """Return the slot whose batches stay shortest with one session more, the lowest of equals; -1 if all are full."""
    if len(slots) == 0:
        return -1
    times = draft.next_chunk_s(slots)
    best = int(times.argmin())
    return int(slots[best]) if np.isfinite(times[best]) else -1
