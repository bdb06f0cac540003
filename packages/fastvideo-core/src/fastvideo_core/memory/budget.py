"""A device's memory as a budget with names on it: asked for before it is used, all or nothing, given back once.

Tags are names of components, of caches, or "requests". The budget allocates nothing; it says who may. It is used from
one thread, the control plane's.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from fastvideo_core.errors import ExecutionError, ParameterError, ResourceError

__all__ = ["MemoryBudget", "Reservation", "conservative_limit", "format_bytes"]

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def format_bytes(num_bytes: float) -> str:
    """Return a size in decimal units with three digits: `1.53 GB`."""
    size = float(num_bytes)
    for unit in _UNITS[:-1]:
        if abs(size) < 999.5:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} {_UNITS[-1]}"


def conservative_limit(available_bytes: int, *, headroom_share: float = 0.1, headroom_bytes: int = 0) -> int:
    """Return what may be given out of the memory that is there.

    Args:
        available_bytes: What was measured; allocators lose some of it to fragments, and other programs grow.
        headroom_share: Share that is left alone, from 0 to 1.
        headroom_bytes: Least that is left alone.
    """
    if not 0.0 <= headroom_share <= 1.0:
        raise ParameterError("not a share", field="headroom_share", value=headroom_share, allowed="0 to 1")
    return max(0, available_bytes - max(int(available_bytes * headroom_share), headroom_bytes))


class Reservation:
    """Bytes that are spoken for; a context manager that releases them.

    Attributes:
        tag: What they are for.
        num_bytes: How many; 0 once they are released.
    """

    __slots__ = ("_budget", "num_bytes", "tag")

    def __init__(self, budget: MemoryBudget, tag: str, num_bytes: int) -> None:
        self._budget: MemoryBudget | None = budget
        self.tag = tag
        self.num_bytes = num_bytes

    @property
    def is_released(self) -> bool:
        """Whether the bytes were given back."""
        return self._budget is None

    def resize(self, num_bytes: int) -> None:
        """Take more, all or nothing, or give some back.

        Raises:
            ResourceError: More than is free; nothing has changed.
            ExecutionError: It was released.
        """
        budget = self._open()
        budget.move(self.tag, num_bytes - self.num_bytes)
        self.num_bytes = num_bytes

    def release(self) -> None:
        """Give the bytes back.

        Raises:
            ExecutionError: They were given back before.
        """
        budget = self._open()
        self._budget = None
        budget.move(self.tag, -self.num_bytes)
        self.num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._budget is not None:
            self.release()

    def _open(self) -> MemoryBudget:
        if self._budget is None:
            raise ExecutionError(f"a reservation of {self.tag!r} was released before")
        return self._budget


class MemoryBudget:
    """Bytes of a device, by what they are for.

    Args:
        limit_bytes: Most bytes over all tags.
        device: Its name, for messages.

    Attributes:
        limit_bytes: Most bytes over all tags.
        device: Its name.
        used_bytes: Bytes that are spoken for.
        peak_bytes: Most there ever were.
    """

    __slots__ = ("_by_tag", "device", "limit_bytes", "peak_bytes", "used_bytes")

    def __init__(self, limit_bytes: int, *, device: str = "cpu") -> None:
        if limit_bytes < 0:
            raise ParameterError("not a size", field="limit_bytes", value=limit_bytes, allowed="0 or more")
        self.limit_bytes = limit_bytes
        self.device = device
        self.used_bytes = 0
        self.peak_bytes = 0
        self._by_tag: dict[str, int] = {}

    @property
    def free_bytes(self) -> int:
        """Bytes that can still be reserved."""
        return self.limit_bytes - self.used_bytes

    def by_tag(self) -> dict[str, int]:
        """Return the bytes by tag, the largest first."""
        return dict(sorted(self._by_tag.items(), key=lambda item: -item[1]))

    def can_reserve(self, num_bytes: int) -> bool:
        """Tell whether that many are free."""
        return self.used_bytes + num_bytes <= self.limit_bytes

    def reserve(self, tag: str, num_bytes: int) -> Reservation:
        """Take all of some bytes, or none.

        Raises:
            ResourceError: More than is free; says who has the rest.
            ParameterError: It is no size.
        """
        if num_bytes < 0:
            raise ParameterError("not a size", field="num_bytes", value=num_bytes, allowed="0 or more")
        self.move(tag, num_bytes)
        return Reservation(self, tag, num_bytes)

    def move(self, tag: str, num_bytes: int) -> None:
        """Add bytes to a tag, or take some away; callers reserve instead.

        Raises:
            ResourceError: More than is free.
        """
        used = self.used_bytes + num_bytes
        if num_bytes > 0 and used > self.limit_bytes:
            raise ResourceError(self._refusal(tag, num_bytes))
        held = self._by_tag.get(tag, 0) + num_bytes
        if held > 0:
            self._by_tag[tag] = held
        else:
            assert held == 0, "more was released than reserved"
            self._by_tag.pop(tag, None)
        self.used_bytes = used
        if used > self.peak_bytes:
            self.peak_bytes = used

    def _refusal(self, tag: str, num_bytes: int) -> str:
        holders = ", ".join(f"{name} {format_bytes(held)}" for name, held in list(self.by_tag().items())[:4])
        return (
            f"{tag} asks for {format_bytes(num_bytes)} on {self.device}; {format_bytes(self.free_bytes)} of "
            f"{format_bytes(self.limit_bytes)} are free" + (f" ({holders})" if holders else "")
        )
