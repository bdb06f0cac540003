"""What a session may do next: the rules that every trace keeps, and the words for those that break them."""

from __future__ import annotations

from collections.abc import Mapping

from fastvideo_fleet.traces.base import EventKind

__all__ = ["ALLOWED_NEXT", "allowed_next", "why_not"]

ABSENT, ACTIVE, IDLE, GONE = range(4)
"""States of a session in a trace."""

_STATES = {ABSENT: "has not arrived", ACTIVE: "is active", IDLE: "is idle", GONE: "has departed"}

ALLOWED_NEXT: Mapping[int, Mapping[EventKind, int]] = {
    ABSENT: {EventKind.ARRIVE: ACTIVE},
    ACTIVE: {EventKind.IDLE: IDLE, EventKind.DEPART: GONE},
    IDLE: {EventKind.ACTIVATE: ACTIVE, EventKind.DEPART: GONE},
    GONE: {},
}
"""For each state the events that may come, and the state after them."""


def allowed_next(state: int) -> str:
    """Return the events that a session in `state` may have next, in words."""
    names = " or ".join(kind.name.lower() for kind in ALLOWED_NEXT[state])
    return names or "nothing: a session departs once"


def why_not(state: int) -> str:
    """Return what a session in `state` is, for a message."""
    return _STATES[state]
