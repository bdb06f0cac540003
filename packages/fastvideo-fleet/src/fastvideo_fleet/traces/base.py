"""A trace in memory: events as columns, sessions as a table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

__all__ = ["EventKind", "SessionAttributes", "Trace"]


class EventKind(IntEnum):
    """What happens to a session. An arriving session is active; it may go idle, come back, and departs once."""

    ARRIVE = 0
    ACTIVATE = 1
    IDLE = 2
    DEPART = 3


@dataclass(frozen=True, slots=True)
class SessionAttributes:
    """What the controllers may know of a session when it arrives.

    Attributes:
        model: Model that it needs; "" is the fleet's first.
        state_bytes: Size of its state; 0 is the fleet's nominal size.
        slo_s: Most seconds that a chunk should take; 0 is the batch time of a full worker.
        tenant: Whose session it is.
    """

    model: str = ""
    state_bytes: int = 0
    slo_s: float = 0.0
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """Session events in the order of their times.

    Attributes:
        time_s: Seconds from the start, float64, not falling.
        session: Index of the session, int32.
        kind: `EventKind`, int8.
        ids: Names of the sessions, by index.
        attributes: Attributes of the sessions, by index.
        duration_s: When the trace ends; at least the last event's time.
    """

    time_s: npt.NDArray[np.float64]
    session: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int8]
    ids: tuple[str, ...]
    attributes: tuple[SessionAttributes, ...]
    duration_s: float

    @property
    def num_events(self) -> int:
        """Number of events."""
        return len(self.time_s)

    @property
    def num_sessions(self) -> int:
        """Number of sessions."""
        return len(self.ids)

    def active_counts(self) -> npt.NDArray[np.int64]:
        """Return how many sessions are active after each event."""
        is_active = np.zeros(self.num_sessions, dtype=bool)
        steps = np.zeros(self.num_events, dtype=np.int64)
        starts = np.isin(self.kind, (EventKind.ARRIVE, EventKind.ACTIVATE))
        for index, (session, start) in enumerate(zip(self.session.tolist(), starts.tolist(), strict=True)):
            if start:
                steps[index] = 1
            elif is_active[session]:
                steps[index] = -1
            is_active[session] = start
        return np.cumsum(steps)

    def mean_active(self) -> float:
        """Return the mean number of active sessions over the trace's duration."""
        if self.num_events == 0:
            return 0.0
        widths = np.diff(np.append(self.time_s, self.duration_s))
        return float(np.dot(self.active_counts(), widths) / self.duration_s)
