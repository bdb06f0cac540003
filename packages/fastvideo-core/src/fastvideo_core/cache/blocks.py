"""Pools of equal blocks, for paged text keys and values and for slabs of chunk keys and values.

A request holds a table: a list of pages, numbers of blocks, in the order of what they contain. A fork shares the
blocks; whoever then writes to one gets a copy of his own first. Blocks never move, so a window over them slides by
dropping pages at the front. The pool counts; the tensor that the blocks are rows of is made when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from fastvideo_core.cache.base import CacheHandle
from fastvideo_core.errors import ExecutionError, ParameterError, ResourceError
from fastvideo_core.memory.budget import format_bytes

__all__ = ["BlockPool", "BlockStats", "BlockTable", "WritablePage"]


@dataclass(frozen=True, slots=True)
class BlockStats:
    """State of a pool of blocks.

    Attributes:
        num_blocks: Blocks in all.
        num_free: Blocks that can be reserved.
        num_shared: Blocks that more than one table holds.
        peak_used: Most blocks that were in use at a time.
        block_bytes: Size of one.
        is_allocated: Whether the memory behind them is there.
    """

    num_blocks: int
    num_free: int
    num_shared: int
    peak_used: int
    block_bytes: int
    is_allocated: bool

    def to_json(self) -> dict[str, int]:
        """Return the figures by name."""
        return asdict(self)


class WritablePage(NamedTuple):
    """A page that may be written to.

    Attributes:
        page: Its number.
        copy_from: The page whose content has to be copied into it first; None if it has its own.
    """

    page: int
    copy_from: int | None


class BlockTable(CacheHandle):
    """The blocks that one request, or one fork of it, holds.

    Attributes:
        is_training: Whether blocks that are dropped or written anew stay as they are until the table is released, as
            the backward pass still needs them.
    """

    __slots__ = ("_pages", "_pool", "_retained", "is_training")

    def __init__(self, pool: BlockPool, pages: list[int], *, is_training: bool) -> None:
        super().__init__(pool.name)
        self._pool = pool
        self._pages = pages
        self._retained: list[int] = []
        self.is_training = is_training

    @property
    def pages(self) -> tuple[int, ...]:
        """The pages in order: a snapshot, which later changes of the table leave alone."""
        return tuple(self._pages)

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks that it keeps from being used again."""
        return (len(self._pages) + len(self._retained)) * self._pool.block_bytes

    def extend(self, num_blocks: int) -> tuple[int, ...]:
        """Take further blocks, all or none.

        Returns:
            Their pages, which are now the last of the table.

        Raises:
            ResourceError: Fewer are free.
            ExecutionError: The table was released.
        """
        self.check_held()
        pages = self._pool._take(num_blocks)  # noqa: SLF001 - a table is the pool's own
        self._pages.extend(pages)
        return tuple(pages)

    def fork(self) -> BlockTable:
        """Return another table that shares all blocks of this one.

        Raises:
            ExecutionError: The table was released.
        """
        self.check_held()
        self._pool._share(self._pages)  # noqa: SLF001 - a table is the pool's own
        return BlockTable(self._pool, list(self._pages), is_training=self.is_training)

    def make_writable(self, index: int) -> WritablePage:
        """Make sure that nobody else, and no backward pass, reads the page at some place.

        Returns:
            The page to write to, which is now at that place.

        Raises:
            ResourceError: It takes a free block, and there is none; nothing has changed.
            ParameterError: There is no such place.
            ExecutionError: The table was released.
        """
        self.check_held()
        self._check_index(index)
        page = self._pages[index]
        if not self.is_training and self._pool._num_holders(page) == 1:  # noqa: SLF001 - a table is the pool's own
            return WritablePage(page, None)
        (fresh,) = self._pool._take(1)  # noqa: SLF001
        self._pages[index] = fresh
        self._let_go([page])
        return WritablePage(fresh, page)

    def drop_front(self, num_blocks: int) -> None:
        """Let the oldest blocks go; the others stay where they are.

        Raises:
            ParameterError: There are fewer.
            ExecutionError: The table was released.
        """
        self.check_held()
        if not 0 <= num_blocks <= len(self._pages):
            raise ParameterError(
                f"table of cache {self.pool!r}",
                field="num_blocks",
                value=num_blocks,
                allowed=f"0 to {len(self._pages)}",
            )
        dropped = self._pages[:num_blocks]
        del self._pages[:num_blocks]
        self._let_go(dropped)

    def _let_go(self, pages: list[int]) -> None:
        if self.is_training:
            self._retained.extend(pages)
        else:
            self._pool._free(pages)  # noqa: SLF001 - a table is the pool's own

    def _give_back(self) -> None:
        pages = self._pages + self._retained
        self._pages, self._retained = [], []
        self._pool._free(pages)  # noqa: SLF001 - a table is the pool's own

    def _check_index(self, index: int) -> None:
        if not 0 <= index < len(self._pages):
            raise ParameterError(
                f"table of cache {self.pool!r}", field="index", value=index, allowed=f"0 to {len(self._pages) - 1}"
            )


class BlockPool:
    """A fixed number of blocks of one size.

    Args:
        name: Name in the card.
        num_blocks: How many there are.
        block_bytes: Size of one.
        make_storage: Makes the memory behind all of them, called with their number; None if another owns it.
    """

    def __init__(
        self, name: str, num_blocks: int, block_bytes: int, make_storage: Callable[[int], Any] | None = None
    ) -> None:
        for field, value in (("num_blocks", num_blocks), ("block_bytes", block_bytes)):
            if value < 1:
                raise ParameterError("too few", field=f"caches.{name}.{field}", value=value, allowed="1 or more")
        self.name = name
        self.num_blocks = num_blocks
        self.block_bytes = block_bytes
        self._make_storage = make_storage
        self._storage: Any = None
        self._holders = [0] * num_blocks
        # The last one freed is the first one used again: its memory is the likeliest to be near.
        self._unused = list(range(num_blocks - 1, -1, -1))
        self._peak_used = 0

    @property
    def num_free(self) -> int:
        """Blocks that can be reserved."""
        return len(self._unused)

    @property
    def storage(self) -> Any:
        """The memory behind the blocks, made now if it is not there yet.

        Raises:
            ExecutionError: The pool only counts.
        """
        if self._storage is None:
            if self._make_storage is None:
                raise ExecutionError(f"cache {self.name!r} has no storage of its own: it was made without a maker")
            self._storage = self._make_storage(self.num_blocks)
        return self._storage

    def drop_storage(self) -> int:
        """Let the memory go until it is needed again; its content is lost.

        Returns:
            Bytes let go.

        Raises:
            ExecutionError: Blocks are in use.
        """
        num_used = self.num_blocks - self.num_free
        if num_used:
            raise ExecutionError(f"{num_used} of {self.num_blocks} blocks of cache {self.name!r} are in use")
        was_there, self._storage = self._storage is not None, None
        return self.num_blocks * self.block_bytes if was_there else 0

    @property
    def stats(self) -> BlockStats:
        """Figures of now."""
        return BlockStats(
            num_blocks=self.num_blocks,
            num_free=self.num_free,
            num_shared=sum(count > 1 for count in self._holders),
            peak_used=self._peak_used,
            block_bytes=self.block_bytes,
            is_allocated=self._storage is not None,
        )

    def reserve(self, num_blocks: int, *, is_training: bool = False) -> BlockTable:
        """Take some blocks, all or none.

        Args:
            num_blocks: How many; 0 makes a table that is extended later.
            is_training: Whether no block may be used again, nor written to twice, until the table is released.

        Raises:
            ResourceError: Fewer are free.
            ParameterError: It is no number of blocks.
        """
        return BlockTable(self, self._take(num_blocks), is_training=is_training)

    def _take(self, num_blocks: int) -> list[int]:
        if num_blocks < 0:
            raise ParameterError("not a number of blocks", field="num_blocks", value=num_blocks, allowed="0 or more")
        if num_blocks > len(self._unused):
            raise ResourceError(
                f"cache {self.name!r}: {num_blocks} blocks of {format_bytes(self.block_bytes)} asked for, "
                f"{len(self._unused)} of {self.num_blocks} are free"
            )
        start = len(self._unused) - num_blocks
        pages = self._unused[start:][::-1]
        del self._unused[start:]
        for page in pages:
            self._holders[page] = 1
        self._peak_used = max(self._peak_used, self.num_blocks - len(self._unused))
        return pages

    def _share(self, pages: list[int]) -> None:
        for page in pages:
            self._holders[page] += 1

    def _free(self, pages: list[int]) -> None:
        for page in pages:
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._unused.append(page)
            assert self._holders[page] >= 0, f"block {page} of {self.name} was freed twice"

    def _num_holders(self, page: int) -> int:
        return self._holders[page]
