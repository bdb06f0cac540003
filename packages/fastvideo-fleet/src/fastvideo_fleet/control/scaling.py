"""How many workers, and which: a pure function of demand and prices."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fastvideo_fleet.control.choose import Draft, Slots
from fastvideo_fleet.control.view import DRAINING, OFF, READY, STARTING

__all__ = ["ScalePlan", "plan_scale"]


@dataclass(slots=True)
class ScalePlan:
    """What to do with the workers of one model.

    Attributes:
        recall: Draining slots to keep.
        start: Slots to start.
        cancel: Starting slots to give up.
        drain: Ready slots that can be done without, the emptiest first.
    """

    recall: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    cancel: list[int] = field(default_factory=list)
    drain: list[int] = field(default_factory=list)


def plan_scale(draft: Draft, slots: Slots, needed: float, rooms_of: Slots) -> ScalePlan:
    """Return how to come to room for `needed` sessions within a batch time, as cheaply as single steps can.

    Draining workers are taken back first, then the workers with the lowest price for a place are started. What can be
    given up is given up in the opposite order: starting workers, then the emptiest of the dearest ready ones. At least
    one worker is kept.

    Args:
        draft: The fleet, with what has been decided so far.
        slots: Workers of one model.
        needed: Sessions to have room for.
        rooms_of: Sessions that each slot of the fleet can have within its goal, at least 1.
    """
    view = draft.view
    rooms = rooms_of[slots]
    state = view.state[slots]
    price = view.price_of[slots] / rooms
    held = (state == READY) | (state == STARTING)
    room = int(rooms[held].sum())
    plan = ScalePlan()
    if room < needed:
        for kind, target in ((DRAINING, plan.recall), (OFF, plan.start)):
            for place in _order(np.flatnonzero(state == kind), price):
                if room >= needed:
                    break
                target.append(int(slots[place]))
                room += int(rooms[place])
        return plan
    num_held = int(held.sum())
    if room - int(rooms[held].min(initial=0)) < needed:
        return plan
    for kind, target in ((STARTING, plan.cancel), (READY, plan.drain)):
        candidates = np.flatnonzero(state == kind)
        emptiness = draft.count[slots[candidates]]
        for place in candidates[np.lexsort((-candidates, emptiness, -price[candidates]))]:
            if num_held > 1 and room - int(rooms[place]) >= needed:
                target.append(int(slots[place]))
                room -= int(rooms[place])
                num_held -= 1
    return plan


def _order(places: Slots, price: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Slots:
    """Return places by price, the lowest slot of equals first."""
    return places[np.argsort(price[places], kind="stable")]
