from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fastvideo_core.cache import BlockPool
from fastvideo_core.errors import ExecutionError, ParameterError, ResourceError

NUM_BLOCKS = 12


class Machine(RuleBasedStateMachine):
    """The pool beside a dictionary from page to content, written through tables and read back through them."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool("kv", NUM_BLOCKS, 64)
        self.tables: list[object] = []
        self.expected: list[list[str]] = []
        self.kept: list[set[int]] = []
        self.memory: dict[int, str] = {}
        self.counter = 0

    def fresh(self) -> str:
        self.counter += 1
        return f"content {self.counter}"

    def write(self, page: int) -> str:
        self.memory[page] = content = self.fresh()
        return content

    @property
    def in_use(self) -> set[int]:
        return {page for table in self.tables for page in table.pages} | {p for kept in self.kept for p in kept}

    @rule(num_blocks=st.integers(0, 6), is_training=st.booleans())
    def reserve(self, num_blocks, is_training):
        free = NUM_BLOCKS - len(self.in_use)
        if num_blocks > free:
            with pytest.raises(
                ResourceError, match=f"{num_blocks} blocks of 64 bytes asked for, {free} of 12 are free"
            ):
                self.pool.reserve(num_blocks, is_training=is_training)
            return
        before = self.in_use
        table = self.pool.reserve(num_blocks, is_training=is_training)
        assert not set(table.pages) & before
        assert len(set(table.pages)) == num_blocks
        self.tables.append(table)
        self.expected.append([self.write(page) for page in table.pages])
        self.kept.append(set())

    def pick(self, data) -> int:
        return data.draw(st.integers(0, len(self.tables) - 1))

    @rule(data=st.data(), num_blocks=st.integers(0, 3))
    @precondition(lambda self: self.tables)
    def extend(self, data, num_blocks):
        index = self.pick(data)
        table, before = self.tables[index], self.in_use
        if num_blocks > NUM_BLOCKS - len(before):
            with pytest.raises(ResourceError):
                table.extend(num_blocks)
            return
        pages = table.extend(num_blocks)
        assert not set(pages) & before
        self.expected[index] += [self.write(page) for page in pages]

    @rule(data=st.data())
    @precondition(lambda self: self.tables)
    def fork(self, data):
        index = self.pick(data)
        self.tables.append(self.tables[index].fork())
        self.expected.append(list(self.expected[index]))
        self.kept.append(set())

    @rule(data=st.data())
    @precondition(lambda self: any(table.pages for table in self.tables))
    def overwrite(self, data):
        index = data.draw(st.sampled_from([i for i, table in enumerate(self.tables) if table.pages]))
        table = self.tables[index]
        place = data.draw(st.integers(0, len(table.pages) - 1))
        old = table.pages[place]
        is_shared = (
            sum(old in other.pages or old in kept for other, kept in zip(self.tables, self.kept, strict=True)) > 1
        )
        has_room = len(self.in_use) < NUM_BLOCKS
        if (is_shared or table.is_training) and not has_room:
            with pytest.raises(ResourceError):
                table.make_writable(place)
            return
        page, copy_from = table.make_writable(place)
        if table.is_training:
            assert copy_from == old
            self.kept[index].add(old)
        else:
            assert (copy_from is not None) == is_shared
        assert table.pages[place] == page
        self.expected[index][place] = self.write(page)

    @rule(data=st.data(), num_blocks=st.integers(0, 3))
    @precondition(lambda self: self.tables)
    def drop_front(self, data, num_blocks):
        index = self.pick(data)
        table = self.tables[index]
        if num_blocks > len(table.pages):
            with pytest.raises(ParameterError):
                table.drop_front(num_blocks)
            return
        if table.is_training:
            self.kept[index] |= set(table.pages[:num_blocks])
        table.drop_front(num_blocks)
        del self.expected[index][:num_blocks]

    @rule(data=st.data())
    @precondition(lambda self: self.tables)
    def release(self, data):
        index = self.pick(data)
        table = self.tables.pop(index)
        del self.expected[index], self.kept[index]
        table.release()
        assert table.pages == ()
        assert table.num_bytes == 0
        with pytest.raises(ExecutionError, match="released before"):
            table.release()

    @invariant()
    def content_is_each_table_s_own(self):
        for table, expected in zip(self.tables, self.expected, strict=True):
            assert [self.memory[page] for page in table.pages] == expected

    @invariant()
    def no_block_is_lost_or_given_twice(self):
        stats = self.pool.stats
        assert stats.num_free == NUM_BLOCKS - len(self.in_use)
        assert len(self.in_use) <= stats.peak_used <= NUM_BLOCKS

    def teardown(self):
        for table in self.tables:
            table.release()
        assert self.pool.num_free == NUM_BLOCKS


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40)


def test_a_fork_shares_until_it_writes():
    pool = BlockPool("kv", 4, 64)
    parent = pool.reserve(3)
    child = parent.fork()
    assert child.pages == parent.pages
    assert pool.stats.num_shared == 3
    page, copy_from = child.make_writable(1)
    assert copy_from == parent.pages[1]
    assert page not in parent.pages
    # The parent is alone with its page again, and writes in place.
    assert parent.make_writable(1) == (parent.pages[1], None)


def test_a_window_slides_without_moving_what_stays():
    pool = BlockPool("kv", 3, 64)
    table = pool.reserve(3)
    first, second, third = table.pages
    table.drop_front(1)
    (fourth,) = table.extend(1)
    assert table.pages == (second, third, fourth)
    assert fourth == first


def test_training_keeps_every_block_until_the_table_is_released():
    pool = BlockPool("kv", 4, 64)
    table = pool.reserve(2, is_training=True)
    snapshot = table.pages
    table.drop_front(1)
    page, copy_from = table.make_writable(0)
    assert copy_from == snapshot[1]
    assert page not in snapshot
    assert pool.num_free == 1
    assert table.num_bytes == 3 * 64
    assert snapshot == (0, 1)
    table.release()
    assert pool.num_free == 4


def test_memory_is_made_when_it_is_first_asked_for():
    made = []

    def make(num_blocks):
        made.append(num_blocks)
        return [0] * num_blocks

    pool = BlockPool("kv", 5, 64, make)
    table = pool.reserve(2)
    assert not made
    assert not pool.stats.is_allocated
    assert pool.storage is pool.storage
    assert made == [5]
    with pytest.raises(ExecutionError, match="2 of 5 blocks of cache 'kv' are in use"):
        pool.drop_storage()
    table.release()
    assert pool.drop_storage() == 5 * 64
    assert pool.drop_storage() == 0
    assert len(pool.storage) == 5


def test_a_pool_that_only_counts_says_so():
    with pytest.raises(ExecutionError, match="'kv' has no storage"):
        _ = BlockPool("kv", 1, 64).storage


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ParameterError, match=r"caches\.kv\.num_blocks=0"):
        BlockPool("kv", 0, 64)
    with pytest.raises(ParameterError, match=r"caches\.kv\.block_bytes=0"):
        BlockPool("kv", 1, 0)
    pool = BlockPool("kv", 2, 64)
    with pytest.raises(ParameterError, match="num_blocks=-1"):
        pool.reserve(-1)
    with pytest.raises(ParameterError, match=r"index=2.*allowed: 0 to 1"):
        pool.reserve(2).make_writable(2)
    assert pool.stats.to_json()["peak_used"] == 2
