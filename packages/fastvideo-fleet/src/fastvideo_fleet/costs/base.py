"""The one question that the controllers ask a cost model: how long does a chunk take with n sessions on the worker?"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Protocol

from fastvideo_fleet.errors import FleetError

__all__ = ["ChunkCost", "LinearChunkCost", "TableChunkCost", "chunk_table"]


class ChunkCost(Protocol):
    """Chunk time as a function of load.

    The sessions of a worker make their chunks in one coalesced batch, so each of the `num_sessions` chunks takes this
    long. It must not fall as sessions are added.
    """

    def chunk_seconds(self, num_sessions: int) -> float:
        """Return the seconds of one batch of `num_sessions` chunks, for one session or more."""
        ...


@dataclass(frozen=True, slots=True)
class LinearChunkCost:
    """A batch takes a constant and a part for each session.

    Attributes:
        base_s: Seconds of an empty batch: weights are read, kernels started.
        per_session_s: Seconds that each session adds.
    """

    base_s: float
    per_session_s: float

    def chunk_seconds(self, num_sessions: int) -> float:
        """Return the seconds of one batch."""
        return self.base_s + self.per_session_s * num_sessions


@dataclass(frozen=True, slots=True)
class TableChunkCost:
    """Measured batch times.

    Attributes:
        seconds: Entry i is the time of a batch of i + 1 sessions; beyond the end the last slope goes on.
    """

    seconds: tuple[float, ...]

    def chunk_seconds(self, num_sessions: int) -> float:
        """Return the seconds of one batch."""
        if num_sessions <= len(self.seconds):
            return self.seconds[num_sessions - 1]
        slope = self.seconds[-1] - self.seconds[-2] if len(self.seconds) > 1 else self.seconds[-1]
        return self.seconds[-1] + slope * (num_sessions - len(self.seconds))


def chunk_table(cost: ChunkCost, max_sessions: int) -> tuple[float, ...]:
    """Return the batch times for 0 to `max_sessions` sessions; an empty worker's is 0.

    Raises:
        FleetError: A time is not above zero and finite, or falls as sessions are added.
    """
    times = [0.0, *(float(cost.chunk_seconds(count)) for count in range(1, max_sessions + 1))]
    for count in range(1, max_sessions + 1):
        if not isfinite(times[count]) or times[count] <= 0 or times[count] < times[count - 1]:
            raise FleetError(
                f"the cost model gives {times[count]!r} s for a chunk with {count} sessions",
                allowed="finite seconds above zero that do not fall as sessions are added",
            )
    return tuple(times)
