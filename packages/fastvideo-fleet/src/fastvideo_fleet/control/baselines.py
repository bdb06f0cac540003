"""The three generic strategies that the paper compares with: a fixed fleet, no migration.

Sessions that find every worker full wait in the order of their coming.

Source: Jiang et al. 2026, arXiv:2606.19271, section 7.1.
"""

from __future__ import annotations

import numpy as np

from fastvideo_fleet.control.choose import Draft, least_loaded
from fastvideo_fleet.control.view import Decision, FleetEvent, FleetView, SessionView
from fastvideo_fleet.errors import FleetError

__all__ = ["LoadAwareGreedy", "MemoryAwareGreedy", "RoundRobin", "fixed_slots"]


def fixed_slots(view: FleetView, num_gpus: int | None) -> list[int]:
    """Return the slots of a fixed fleet: all of them, or the first `num_gpus` of each class.

    Raises:
        FleetError: There are not so many.
    """
    slots: list[int] = []
    start = 0
    for one in view.spec.classes:
        count = one.max_gpus if num_gpus is None else num_gpus
        if not 1 <= count <= one.max_gpus:
            raise FleetError("no such fixed fleet", field="num_gpus", value=count, allowed=f"1 to {one.max_gpus}")
        slots += range(start, start + count)
        start += one.max_gpus
    return slots


class _FixedFleet:
    """A fixed fleet, and a queue served in order.

    Args:
        num_gpus: Workers of each class; None takes all.
    """

    def __init__(self, num_gpus: int | None = None) -> None:
        self._num_gpus = num_gpus

    def begin(self, view: FleetView) -> list[int]:
        """Return the fixed fleet."""
        return fixed_slots(view, self._num_gpus)

    def decide(self, view: FleetView, event: FleetEvent) -> Decision:
        """Place whoever waits, as far as there is room."""
        decision = Decision()
        if not view.waiting:
            return decision
        draft = Draft(view)
        full: set[int] = set()
        for index in view.waiting:
            session = view.sessions[index]
            if session.model in full:
                continue
            slot = self._choose(draft, session)
            if slot < 0:
                full.add(session.model)
                continue
            draft.add(slot)
            decision.place.append((index, slot))
        return decision

    def _choose(self, draft: Draft, session: SessionView) -> int:
        raise AssertionError("each strategy chooses in its own way")


class RoundRobin(_FixedFleet):
    """Sessions go to the workers in turn; full ones are passed over. Each worker serves in the order of coming."""

    def __init__(self, num_gpus: int | None = None) -> None:
        super().__init__(num_gpus)
        self._next: dict[int, int] = {}

    def _choose(self, draft: Draft, session: SessionView) -> int:
        slots = draft.serving(session.model)
        if len(slots) == 0:
            return -1
        has_room = draft.count[slots] < draft.view.max_count[slots]
        turn = int(np.searchsorted(slots, self._next.get(session.model, 0)))
        order = np.concatenate([np.flatnonzero(has_room[turn:]) + turn, np.flatnonzero(has_room[:turn])])
        if len(order) == 0:
            return -1
        slot = int(slots[order[0]])
        self._next[session.model] = slot + 1
        return slot


class LoadAwareGreedy(_FixedFleet):
    """Sessions go to the worker with the least load: the fewest sessions for its speed."""

    def _choose(self, draft: Draft, session: SessionView) -> int:
        return least_loaded(draft, draft.serving(session.model))


class MemoryAwareGreedy(_FixedFleet):
    """Sessions go to the worker whose memory holds the fewest bytes of session states.

    Idle sessions' states are in host memory, so they do not count. With states of equal size this is the fewest
    sessions.
    """

    def _choose(self, draft: Draft, session: SessionView) -> int:
        view = draft.view
        slots = draft.serving(session.model)
        slots = slots[draft.count[slots] < view.max_count[slots]]
        if len(slots) == 0:
            return -1
        sizes = [self._held(view, int(slot)) + int(draft.count[slot] - view.count[slot]) for slot in slots]
        return int(slots[int(np.argmin(sizes))])

    @staticmethod
    def _held(view: FleetView, slot: int) -> float:
        return sum(view.sessions[index].size for index in view.on_worker[slot])
