from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fastvideo_core.cache import WeightCache, WeightLoader
from fastvideo_core.errors import ExecutionError, ParameterError, ResourceError

SIZES = {"a": 10, "b": 20, "c": 30, "d": 40}


class Disk:
    """Counts what moves; the same weights are told apart by where they are."""

    def __init__(self) -> None:
        self.reads: list[str] = []

    def loader(self, name, *, failing=False):
        def read():
            self.reads.append(name)
            if failing:
                raise OSError("unreadable")
            return ("host", name)

        def to_device(value):
            assert value == ("host", name)
            return ("device", name)

        def to_host(value):
            assert value == ("device", name)
            return ("host", name)

        return WeightLoader(SIZES[name], read, to_device, to_host)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk()
        self.cache = WeightCache("adapters", 60, 50)
        self.handles: list[tuple[object, str]] = []

    names = st.sampled_from(list(SIZES))

    @rule(name=names)
    def acquire(self, name):
        held = {name for _, name in self.handles}
        if sum(SIZES[other] for other in held | {name}) > 60:
            with pytest.raises(ResourceError, match=f"{name} needs {SIZES[name]} bytes"):
                self.cache.acquire(name, self.disk.loader(name))
            return
        self.handles.append((self.cache.acquire(name, self.disk.loader(name)), name))

    @rule(name=names)
    def prefetch(self, name):
        assert self.cache.prefetch(name, self.disk.loader(name))

    @rule(name=names)
    def drop(self, name):
        assert self.cache.drop(name) == (name not in {held for _, held in self.handles})

    @rule(data=st.data())
    @precondition(lambda self: self.handles)
    def release(self, data):
        held = data.draw(st.sampled_from(self.handles))
        self.handles.remove(held)
        held[0].release()
        with pytest.raises(ExecutionError):
            held[0].release()

    @invariant()
    def held_weights_are_on_the_device(self):
        for handle, name in self.handles:
            assert handle.value == ("device", name)
            assert handle.num_bytes == SIZES[name]

    @invariant()
    def budgets_are_kept(self):
        stats = self.cache.stats
        assert stats.device_bytes == sum(SIZES[name] for name in self.cache._device) <= 60
        assert stats.host_bytes == sum(SIZES[name] for name in self.cache._host) <= 50
        assert not set(self.cache._device) & set(self.cache._host)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=30)


def test_the_least_recently_used_goes_to_host_memory_and_comes_back_without_the_disk():
    disk, cache = Disk(), WeightCache("adapters", 40, 40)
    cache.acquire("a", disk.loader("a")).release()
    cache.acquire("b", disk.loader("b")).release()
    cache.acquire("a", disk.loader("a")).release()
    cache.acquire("c", disk.loader("c")).release()  # b was used longest ago
    assert (cache.stats.device_bytes, cache.stats.host_bytes, cache.stats.demotions) == (40, 20, 1)
    cache.acquire("b", disk.loader("b")).release()
    assert disk.reads == ["a", "b", "c"]
    assert (cache.stats.device_hits, cache.stats.host_hits, cache.stats.reads) == (1, 1, 3)


def test_without_host_memory_weights_are_read_again():
    disk, cache = Disk(), WeightCache("adapters", 30)
    for name in "aca":
        cache.acquire(name, disk.loader(name)).release()
    assert disk.reads == ["a", "c", "a"]
    assert cache.stats.to_json()["drops"] == 2


def test_weights_that_cannot_be_read_leave_nothing_behind():
    disk, cache = Disk(), WeightCache("adapters", 30, 30)
    with pytest.raises(OSError, match="unreadable"):
        cache.acquire("a", disk.loader("a", failing=True))
    assert (cache.stats.device_bytes, cache.stats.reads) == (0, 0)
    assert cache.acquire("a", disk.loader("a")).value == ("device", "a")


def test_a_refusal_keeps_what_was_prefetched():
    disk, cache = Disk(), WeightCache("adapters", 40, 40)
    held = cache.acquire("c", disk.loader("c"))
    cache.prefetch("b", disk.loader("b"))
    with pytest.raises(ResourceError, match=r"b needs 20 bytes; of 40 bytes on the device, 30 bytes are in use"):
        cache.acquire("b", disk.loader("b"))
    held.release()
    cache.acquire("b", disk.loader("b"))
    assert disk.reads == ["c", "b"]


def test_what_does_not_fit_into_host_memory_is_not_prefetched():
    disk, cache = Disk(), WeightCache("adapters", 40, 5)
    assert not cache.prefetch("a", disk.loader("a"))
    assert not disk.reads
    with pytest.raises(ParameterError, match="host_bytes=-1"):
        WeightCache("adapters", 1, -1)
