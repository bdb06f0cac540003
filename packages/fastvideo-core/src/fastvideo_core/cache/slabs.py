"""Keys and values of a stream, chunk by chunk, in a loop's state.

A `SlabTable` is a field of a `LoopState`: a list of slabs, in the order in which their chunks were made. Nothing is
ever shifted: a window slides by dropping the slabs that it no longer sees. Nothing that is written changes either: a
slab is reserved empty, committed once, and from then on only read. So states that share slabs (a fork, a snapshot of an
earlier chunk, a checkpoint that is being written) cannot disturb each other, and a step can be run again.

    table = SlabTable.of(ctx.slab_pool("kv"))                     # in Loop.init
    slab = table.reserve(SlabKey("transformer", "cond"), chunk)   # in advance, when a chunk begins; not valid yet
    ...                                                           # the plan's payload carries table.valid(...)
    table.commit(slab, {"k": k, "v": v})                          # in advance, with what the commit pass gave
    table.slide("transformer", "cond", num_sink=1, num_recent=2)  # what the next chunk does not see goes

The state codec writes the tensors of all slabs of the table. What it reads back belongs to no pool yet; the runtime
calls `attach` before the state is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

import torch

from fastvideo_core.cache.base import NOT_STORED
from fastvideo_core.cache.slab_pool import SlabLease, SlabPool
from fastvideo_core.errors import ExecutionError

__all__ = ["Slab", "SlabKey", "SlabTable"]


@dataclass(frozen=True, slots=True)
class SlabKey:
    """What the content of a slab depends on, besides the chunk.

    Attributes:
        expert: The component that made it, where there are several experts.
        branch: Guidance branch.
        prompt_version: Which of the session's prompts it was made under, from 0.
    """

    expert: str = ""
    branch: str = ""
    prompt_version: int = 0


@dataclass(slots=True, eq=False)
class Slab:
    """Keys and values of one chunk.

    Attributes:
        key: What they depend on.
        chunk: Number of the chunk in the stream, from 0.
        tensors: Content by name, for instance `k` and `v` of all layers; empty until it is committed.
        is_valid: Whether it was committed.
        lease: The slab's place in the pool; None where it belongs to none.
    """

    key: SlabKey
    chunk: int
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    is_valid: bool = False
    lease: SlabLease | None = field(default=None, metadata=NOT_STORED)

    @property
    def num_bytes(self) -> int:
        """Bytes of its content."""
        return _num_bytes(self.tensors)


@dataclass(slots=True, eq=False)
class SlabTable:
    """The slabs that a state holds.

    Attributes:
        cache: Name of the cache in the card.
        slabs: The slabs in the order in which they were reserved.
        is_training: Whether slabs that are let go stay leased as long as the table does, as the backward pass reads
            them; gradients flow through the tensors that were committed.
        retained: Slabs that were let go in training.
        pool: Where slabs come from; None for a table that was read and not attached.
    """

    cache: str
    slabs: list[Slab] = field(default_factory=list)
    is_training: bool = False
    retained: list[Slab] = field(default_factory=list)
    pool: SlabPool | None = field(default=None, metadata=NOT_STORED)

    @classmethod
    def of(cls, pool: SlabPool, *, is_training: bool = False) -> Self:
        """Return an empty table over a pool."""
        return cls(pool.name, is_training=is_training, pool=pool)

    @property
    def pages(self) -> tuple[int, ...]:
        """Numbers of the slabs in their pool, in the table's order; -1 for what belongs to no pool."""
        return tuple(-1 if slab.lease is None else slab.lease.page for slab in self.slabs)

    @property
    def num_bytes(self) -> int:
        """Bytes of the content of all slabs, shared ones included."""
        return sum(slab.num_bytes for slab in (*self.slabs, *self.retained))

    def reserve(self, key: SlabKey, chunk: int) -> Slab:
        """Take an empty slab, the last of the table, which is not valid yet.

        Raises:
            CacheFullError: The pool has none; nothing has changed.
            ExecutionError: The table is not attached to a pool.
        """
        slab = Slab(key, chunk, lease=self._take())
        self.slabs.append(slab)
        return slab

    def commit(self, slab: Slab, tensors: Mapping[str, torch.Tensor]) -> None:
        """Fill a reserved slab, once; it is valid from here on, and nobody may write to the tensors any more.

        Raises:
            ExecutionError: It is valid already or not of this table, or the content is larger than a slab.
        """
        self._index(slab)
        if slab.is_valid:
            raise ExecutionError(f"the slab of chunk {slab.chunk} of cache {self.cache!r} was committed before")
        self._check_size(tensors)
        slab.tensors, slab.is_valid = dict(tensors), True

    def replace(self, slab: Slab, key: SlabKey, tensors: Mapping[str, torch.Tensor]) -> Slab:
        """Put new content where a valid slab is, under another key: the recache pass of a prompt switch.

        The old one stays as it is for those who share it, so that this takes a free slab.

        Returns:
            The new slab, valid, at the place of the old one.

        Raises:
            CacheFullError: The pool has no free slab; nothing has changed.
            ExecutionError: The slab is not of this table, or the content is larger than a slab.
        """
        index = self._index(slab)
        self._check_size(tensors)
        fresh = Slab(key, slab.chunk, dict(tensors), is_valid=True, lease=self._take())
        self.slabs[index] = fresh
        self._let_go([slab])
        return fresh

    def valid(self, expert: str = "", branch: str = "") -> tuple[Slab, ...]:
        """Return the valid slabs of one expert and branch, by chunk: what a step may attend to."""
        found = [
            slab for slab in self.slabs if slab.is_valid and (slab.key.expert, slab.key.branch) == (expert, branch)
        ]
        return tuple(sorted(found, key=lambda slab: slab.chunk))

    def reserved(self, expert: str = "", branch: str = "") -> Slab:
        """Return the slab of one expert and branch that was reserved and not committed yet.

        A state holds no slab besides its table: what is read back would be another one.

        Raises:
            ExecutionError: There is none.
        """
        for slab in self.slabs:
            if not slab.is_valid and (slab.key.expert, slab.key.branch) == (expert, branch):
                return slab
        raise ExecutionError(f"no slab of cache {self.cache!r} is reserved for {expert!r}, {branch!r}")

    def slide(self, expert: str = "", branch: str = "", *, num_sink: int = 0, num_recent: int) -> int:
        """Let go the valid slabs of one expert and branch but the sink and the last ones.

        Args:
            expert: The expert.
            branch: The branch.
            num_sink: Chunks at the beginning of the stream, by number, that are kept for good.
            num_recent: Slabs that are kept besides them, the latest.

        Returns:
            Number of slabs let go.
        """
        moving = [slab for slab in self.valid(expert, branch) if slab.chunk >= num_sink]
        return self.drop(moving[: max(0, len(moving) - num_recent)])

    def invalidate(self) -> int:
        """Give back the slabs that were reserved and not committed: those of a chunk that is cut short.

        Returns:
            Number of slabs given back.
        """
        return self.drop([slab for slab in self.slabs if not slab.is_valid])

    def drop(self, slabs: list[Slab] | tuple[Slab, ...]) -> int:
        """Let slabs go; in training they stay leased.

        Returns:
            Number of slabs let go.

        Raises:
            ExecutionError: One is not of this table.
        """
        for slab in slabs:
            del self.slabs[self._index(slab)]
        self._let_go(list(slabs))
        return len(slabs)

    def clear(self) -> None:
        """Let go of everything, in training too: the backward pass is over."""
        self.slabs, self.retained = [], []

    def fork(self) -> SlabTable:
        """Return a table of its own that shares the valid slabs; those of a chunk in progress are the original's."""
        shared = [slab for slab in self.slabs if slab.is_valid]
        return SlabTable(self.cache, shared, self.is_training, list(self.retained), self.pool)

    def moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> SlabTable:
        """Return a table of no pool, whose content is what `move` gives for each tensor; see `attach`."""

        def copied(slab: Slab) -> Slab:
            return Slab(slab.key, slab.chunk, {name: move(one) for name, one in slab.tensors.items()}, slab.is_valid)

        kept, retained = [copied(slab) for slab in self.slabs], [copied(slab) for slab in self.retained]
        return SlabTable(self.cache, kept, self.is_training, retained)

    def attach(self, pool: SlabPool) -> None:
        """Take leases for slabs that belong to no pool, all or none: after the table was read, or moved here.

        Raises:
            CacheFullError: The pool has too few.
        """
        missing = [slab for slab in (*self.slabs, *self.retained) if slab.lease is None]
        for slab, lease in zip(missing, pool.take(len(missing)), strict=True):
            slab.lease = lease
        self.pool = pool

    def _take(self) -> SlabLease:
        if self.pool is None:
            raise ExecutionError(f"the table of cache {self.cache!r} was read and not attached to a pool")
        (lease,) = self.pool.take()
        return lease

    def _let_go(self, slabs: list[Slab]) -> None:
        if self.is_training:
            self.retained.extend(slabs)

    def _index(self, slab: Slab) -> int:
        if slab not in self.slabs:
            raise ExecutionError(f"the slab of chunk {slab.chunk} is not in this table of cache {self.cache!r}")
        return self.slabs.index(slab)

    def _check_size(self, tensors: Mapping[str, torch.Tensor]) -> None:
        size = _num_bytes(tensors)
        if self.pool is not None and size > self.pool.slab_bytes:
            raise ExecutionError(f"a slab of cache {self.cache!r} holds {self.pool.slab_bytes} bytes, not {size}")


def _num_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
