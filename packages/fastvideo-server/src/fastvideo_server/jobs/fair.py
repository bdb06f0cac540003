"""Who goes next: waiting jobs, taken in turn between the keys that they belong to."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["FairQueue"]

T = TypeVar("T")


@dataclass(slots=True)
class _Lane(Generic[T]):
    """What one owner waits for.

    Attributes:
        weight: Share beside others.
        served: Work that it has been given, divided by its weight.
        waiting: Its jobs by rank, each in the order in which they came.
    """

    weight: float = 1.0
    served: float = 0.0
    waiting: dict[int, deque[T]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(map(len, self.waiting.values()))


class FairQueue(Generic[T]):
    """Hands jobs out so that each owner gets its share of the work, whatever the others pile up.

    Of the most urgent rank that anybody waits with, the owner goes next that has been given the least work for its
    weight. Who was away does not save up: it comes back with what the least served of those waiting has.

    Source: start-time fair queueing, Goyal et al. 1996, with jobs as packets.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane[T]] = {}
        self._virtual = 0.0

    def __len__(self) -> int:
        return sum(lane.size for lane in self._lanes.values())

    def put(self, item: T, *, owner: str, weight: float = 1.0, rank: int = 0) -> None:
        """Let a job wait.

        Args:
            item: The job.
            owner: Whose it is.
            weight: That one's share.
            rank: Lower goes first.
        """
        lane = self._lanes.setdefault(owner, _Lane())
        lane.weight = weight
        if not lane.size:
            lane.served = max(lane.served, self._virtual)
        lane.waiting.setdefault(rank, deque()).append(item)

    def take(self, *, cost: float = 1.0) -> T | None:
        """Return the job that goes next, or None.

        Args:
            cost: Work of a job, in any unit.
        """
        waiting = [(rank, lane) for lane in self._lanes.values() for rank, jobs in lane.waiting.items() if jobs]
        if not waiting:
            return None
        rank, lane = min(waiting, key=lambda one: (one[0], one[1].served))
        self._virtual = max(self._virtual, lane.served)
        lane.served += cost / lane.weight
        item = lane.waiting[rank].popleft()
        self._forget_idle()
        return item

    def remove(self, item: T) -> bool:
        """Take a job out; say whether it was waiting."""
        for lane in self._lanes.values():
            for jobs in lane.waiting.values():
                if item in jobs:
                    jobs.remove(item)
                    return True
        return False

    def position(self, item: T) -> int | None:
        """Return how many jobs of the same owner and rank go before one; None if it does not wait."""
        for lane in self._lanes.values():
            for jobs in lane.waiting.values():
                if item in jobs:
                    return jobs.index(item)
        return None

    def _forget_idle(self) -> None:
        """Drop owners who wait for nothing and are owed nothing, so that they do not pile up."""
        for owner in [name for name, lane in self._lanes.items() if not lane.size and lane.served <= self._virtual]:
            del self._lanes[owner]
