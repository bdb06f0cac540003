"""Residual caches: what step caching keeps in a request's own state. Nothing is shared, so only bytes are counted."""

from __future__ import annotations

from fastvideo_core.cache.base import CacheHandle
from fastvideo_core.memory.budget import MemoryBudget, Reservation

__all__ = ["ResidualHandle", "ResidualPool"]


class ResidualHandle(CacheHandle):
    """Bytes that a request's state may keep."""

    __slots__ = ("_reservation",)

    def __init__(self, pool: str, reservation: Reservation) -> None:
        super().__init__(pool)
        self._reservation = reservation

    @property
    def num_bytes(self) -> int:
        """Bytes that it stands for; 0 once released."""
        return self._reservation.num_bytes

    def resize(self, num_bytes: int) -> None:
        """Take more, all or nothing, or give some back.

        Raises:
            ResourceError: More than is free; nothing has changed.
            ExecutionError: It was released.
        """
        self.check_held()
        self._reservation.resize(num_bytes)

    def _give_back(self) -> None:
        self._reservation.release()


class ResidualPool:
    """A budget of bytes for what requests keep from one step to the next.

    Args:
        name: Name in the card.
        max_bytes: Most bytes over all requests.
    """

    def __init__(self, name: str, max_bytes: int) -> None:
        self.name = name
        self._budget = MemoryBudget(max_bytes, device=f"cache {name}")

    @property
    def used_bytes(self) -> int:
        """Bytes that requests keep."""
        return self._budget.used_bytes

    @property
    def max_bytes(self) -> int:
        """The budget."""
        return self._budget.limit_bytes

    def reserve(self, request_id: str, num_bytes: int) -> ResidualHandle:
        """Take all of some bytes for a request, or none.

        Raises:
            ResourceError: More than is free; says who has the rest.
        """
        return ResidualHandle(self.name, self._budget.reserve(request_id, num_bytes))
