"""Slabs: reserved, committed once, shared, let go; a pool that is full; what the state codec makes of a table."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from fastvideo_core.cache import SlabPool
from fastvideo_core.cache.slabs import Slab, SlabKey, SlabTable
from fastvideo_core.errors import CacheFullError, ExecutionError, ParameterError, ResourceError
from fastvideo_core.loop.state import LoopState, decode_state, encode_state

KEY = SlabKey("transformer", "cond")
NUM_SLABS = 6


def content(value: float) -> dict[str, torch.Tensor]:
    return {"k": torch.full((2, 3), float(value)), "v": torch.full((2, 3), -float(value))}


def filled(pool: SlabPool, num_chunks: int, **fields) -> SlabTable:
    table = SlabTable.of(pool, **fields)
    for chunk in range(num_chunks):
        table.commit(table.reserve(KEY, chunk), content(chunk))
    return table


def test_a_slab_is_seen_once_it_is_committed():
    pool = SlabPool("kv", 2, 48)
    table = SlabTable.of(pool)
    slab = table.reserve(KEY, 0)
    assert (table.valid("transformer", "cond"), pool.num_free) == ((), 1)
    table.commit(slab, content(1))
    assert table.valid("transformer", "cond") == (slab,)
    assert table.valid("transformer", "uncond") == ()
    assert table.num_bytes == 48
    with pytest.raises(ExecutionError, match="committed before"):
        table.commit(slab, content(2))


def test_a_chunk_that_is_cut_short_leaves_nothing():
    pool = SlabPool("kv", 3, 48)
    table = filled(pool, 1)
    table.reserve(KEY, 1)
    assert table.invalidate() == 1
    assert (pool.num_free, [slab.chunk for slab in table.slabs]) == (2, [0])


def test_a_window_slides_by_dropping_and_keeps_its_sink():
    pool = SlabPool("kv", NUM_SLABS, 48)
    table = filled(pool, 6)
    before = {slab.chunk: page for slab, page in zip(table.slabs, table.pages, strict=True)}
    assert table.slide("transformer", "cond", num_sink=1, num_recent=2) == 3
    assert [slab.chunk for slab in table.valid("transformer", "cond")] == [0, 4, 5]
    assert table.pages == (before[0], before[4], before[5])  # nothing was moved
    assert pool.num_free == 3


def test_experts_and_branches_have_windows_of_their_own():
    pool = SlabPool("kv", NUM_SLABS, 48)
    table = SlabTable.of(pool)
    for expert in ("high", "low"):
        for chunk in range(2):
            table.commit(table.reserve(SlabKey(expert, "cond"), chunk), content(chunk))
    assert table.slide("high", "cond", num_recent=1) == 1
    assert (len(table.valid("high", "cond")), len(table.valid("low", "cond"))) == (1, 2)


def test_a_full_pool_refuses_and_changes_nothing():
    pool = SlabPool("kv", 2, 48)
    table = filled(pool, 2)
    with pytest.raises(CacheFullError, match="cache 'kv': 1 slabs of 48 bytes asked for, 0 of 2 are free"):
        table.reserve(KEY, 2)
    with pytest.raises(ResourceError):
        table.replace(table.slabs[0], KEY, content(9))
    assert [slab.chunk for slab in table.slabs] == [0, 1]


def test_a_fork_shares_and_neither_sees_what_the_other_does():
    pool = SlabPool("kv", NUM_SLABS, 48)
    table = filled(pool, 3)
    table.reserve(KEY, 3)
    fork = table.fork()
    assert pool.num_used == 4
    assert len(fork.slabs) == 3  # the chunk in progress is the original's
    changed = fork.replace(fork.slabs[2], SlabKey("transformer", "cond", prompt_version=1), content(7))
    table.slide("transformer", "cond", num_recent=1)
    assert [slab.tensors["k"][0, 0].item() for slab in table.valid("transformer", "cond")] == [2]
    assert fork.valid("transformer", "cond")[2] is changed
    assert [slab.chunk for slab in fork.valid("transformer", "cond")] == [0, 1, 2]
    del table
    assert pool.num_used == 3


def test_what_a_step_reads_stays_until_it_has_ended():
    pool = SlabPool("kv", 1, 48)
    table = filled(pool, 1)
    read_by_a_step = table.valid("transformer", "cond")
    table.drop(read_by_a_step)
    assert pool.num_free == 0
    del read_by_a_step
    assert pool.num_free == 1


def test_training_recycles_nothing_and_keeps_gradients():
    pool = SlabPool("kv", 4, 48)
    table = SlabTable.of(pool, is_training=True)
    weight = torch.ones(1, requires_grad=True)
    for chunk in range(3):
        table.commit(table.reserve(KEY, chunk), {"k": weight * chunk})
    table.slide("transformer", "cond", num_recent=1)
    assert (pool.num_free, len(table.retained)) == (1, 2)
    sum(slab.tensors["k"].sum() for slab in (*table.retained, *table.slabs)).backward()
    assert weight.grad is not None and weight.grad.item() == 3
    table.clear()
    assert pool.num_free == 4


def test_content_that_does_not_fit_is_refused():
    pool = SlabPool("kv", 1, 47)
    table = SlabTable.of(pool)
    slab = table.reserve(KEY, 0)
    with pytest.raises(ExecutionError, match="holds 47 bytes, not 48"):
        table.commit(slab, content(0))
    with pytest.raises(ExecutionError, match="is not in this table"):
        table.drop([Slab(KEY, 0)])


def test_a_pool_has_slabs():
    for wrong in ((0, 1), (1, 0)):
        with pytest.raises(ParameterError, match=r"caches\.kv\."):
            SlabPool("kv", *wrong)


@dataclass(slots=True)
class Stream(LoopState):
    table: SlabTable
    chunk: int = 0
    other: list[SlabTable] = field(default_factory=list)


def test_a_table_is_written_with_its_blocks_and_attached_where_it_is_read():
    pool, elsewhere = SlabPool("kv", 4, 48), SlabPool("kv", 2, 48)
    table = filled(pool, 2)
    data = encode_state(Stream(table))
    read = decode_state(data, Stream).table
    assert read.pages == (-1, -1)
    with pytest.raises(ExecutionError, match="was read and not attached"):
        read.reserve(KEY, 2)
    read.attach(elsewhere)
    assert elsewhere.num_free == 0
    for mine, theirs in zip(table.slabs, read.slabs, strict=True):
        assert (mine.key, mine.chunk, mine.is_valid) == (theirs.key, theirs.chunk, theirs.is_valid)
        assert all(torch.equal(mine.tensors[name], theirs.tensors[name]) for name in ("k", "v"))
    assert encode_state(Stream(read)) == data
    with pytest.raises(CacheFullError):
        decode_state(data, Stream).table.attach(elsewhere)


class Tables(RuleBasedStateMachine):
    """Tables over one pool, against a model: which (chunk, value) each sees, and how many slabs are referred to."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = SlabPool("kv", NUM_SLABS, 48)
        self.model: dict[int, list[tuple[int, float]]] = {}
        self.live: dict[int, SlabTable] = {}
        self.next_value = 1.0

    def _slots(self) -> int:
        return len({id(slab) for table in self.live.values() for slab in table.slabs})

    def _name(self, table: SlabTable) -> int:
        name = max(self.live, default=-1) + 1
        self.live[name] = table
        return name

    @rule(target=tables)
    def make(self) -> int:
        name = self._name(SlabTable.of(self.pool))
        self.model[name] = []
        return name

    @rule(name=tables, is_cut_short=st.booleans())
    def add_chunk(self, name: int, is_cut_short: bool) -> None:
        table, seen = self.live[name], self.model[name]
        chunk = seen[-1][0] + 1 if seen else 0
        if self._slots() == NUM_SLABS:
            with pytest.raises(CacheFullError):
                table.reserve(KEY, chunk)
            return
        slab = table.reserve(KEY, chunk)
        if is_cut_short:
            del slab
            table.invalidate()
            return
        table.commit(slab, content(self.next_value))
        seen.append((chunk, self.next_value))
        self.next_value += 1

    @rule(name=tables, num_sink=st.integers(0, 2), num_recent=st.integers(0, 3))
    def slide(self, name: int, num_sink: int, num_recent: int) -> None:
        self.live[name].slide("transformer", "cond", num_sink=num_sink, num_recent=num_recent)
        seen = self.model[name]
        sink = [one for one in seen if one[0] < num_sink]
        rest = [one for one in seen if one[0] >= num_sink]
        self.model[name] = sink + (rest[-num_recent:] if num_recent else [])

    @rule(name=tables)
    def recache_the_last(self, name: int) -> None:
        table, seen = self.live[name], self.model[name]
        if not seen or self._slots() == NUM_SLABS:
            return
        table.replace(table.valid("transformer", "cond")[-1], KEY, content(self.next_value))
        seen[-1] = (seen[-1][0], self.next_value)
        self.next_value += 1

    @rule(target=tables, name=tables)
    def fork(self, name: int) -> int:
        fork = self._name(self.live[name].fork())
        self.model[fork] = list(self.model[name])
        return fork

    @rule(name=consumes(tables))
    def close(self, name: int) -> None:
        del self.live[name], self.model[name]

    @invariant()
    def each_sees_its_own(self) -> None:
        for name, table in self.live.items():
            found = [(slab.chunk, slab.tensors["k"][0, 0].item()) for slab in table.valid("transformer", "cond")]
            assert found == self.model[name]

    @invariant()
    def exactly_what_is_referred_to_is_leased(self) -> None:
        assert self.pool.num_used == self._slots()
        pages = [page for table in self.live.values() for page in table.pages]
        assert len(set(pages)) == self.pool.num_used

    def teardown(self) -> None:
        self.live.clear()
        gc.collect()
        assert self.pool.num_free == NUM_SLABS


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
