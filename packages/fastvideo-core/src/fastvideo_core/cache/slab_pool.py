"""The budget of a pool of slabs: how many there may be at a time, and which numbers are free. Imports no torch.

A slab is the keys and values of one chunk of a stream. It is reference-counted by Python itself: its lease goes back to
the pool when nobody refers to the slab any more, neither a table, nor a fork, nor a step that is still reading it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from dataclasses import asdict, dataclass

from fastvideo_core.errors import CacheFullError, ParameterError
from fastvideo_core.memory.budget import format_bytes

__all__ = ["SlabLease", "SlabPool", "SlabStats"]


@dataclass(frozen=True, slots=True)
class SlabStats:
    """State of a pool of slabs.

    Attributes:
        num_slabs: Slabs in all.
        num_free: Slabs that can be taken.
        peak_used: Most slabs that were in use at a time.
        slab_bytes: Most bytes of one.
    """

    num_slabs: int
    num_free: int
    peak_used: int
    slab_bytes: int

    def to_json(self) -> dict[str, int]:
        """Return the figures by name."""
        return asdict(self)


class SlabLease:
    """The right to one slab of a pool, held as long as anybody refers to it.

    Attributes:
        page: Number of the slab, from 0; it is given out again once the lease is gone.
    """

    __slots__ = ("__weakref__", "page")

    def __init__(self, page: int) -> None:
        self.page = page


class SlabPool:
    """A fixed number of slabs. May be used from any thread.

    Args:
        name: Name of the cache in the card.
        num_slabs: How many there are.
        slab_bytes: Most bytes of one.
    """

    def __init__(self, name: str, num_slabs: int, slab_bytes: int) -> None:
        for field, value in (("num_slabs", num_slabs), ("slab_bytes", slab_bytes)):
            if value < 1:
                raise ParameterError("too few", field=f"caches.{name}.{field}", value=value, allowed="1 or more")
        self.name = name
        self.num_slabs = num_slabs
        self.slab_bytes = slab_bytes
        # A lease may end in the middle of anything, in any thread: giving back takes no lock.
        self._unused: deque[int] = deque(range(num_slabs))
        self._peak_used = 0
        self._lock = threading.Lock()

    @property
    def num_free(self) -> int:
        """Slabs that can be taken."""
        return len(self._unused)

    @property
    def num_used(self) -> int:
        """Slabs that somebody refers to."""
        return self.num_slabs - len(self._unused)

    @property
    def stats(self) -> SlabStats:
        """Figures of now."""
        return SlabStats(self.num_slabs, self.num_free, self._peak_used, self.slab_bytes)

    def take(self, num_slabs: int = 1) -> list[SlabLease]:
        """Take some slabs, all or none.

        Raises:
            CacheFullError: Fewer are free.
        """
        with self._lock:
            if num_slabs > len(self._unused):
                raise CacheFullError(
                    f"cache {self.name!r}: {num_slabs} slabs of {format_bytes(self.slab_bytes)} asked for, "
                    f"{len(self._unused)} of {self.num_slabs} are free; close or suspend a session or keep less history"
                )
            leases = [SlabLease(self._unused.popleft()) for _ in range(num_slabs)]
            for lease in leases:
                weakref.finalize(lease, self._unused.append, lease.page).atexit = False
            self._peak_used = max(self._peak_used, self.num_used)
        return leases
