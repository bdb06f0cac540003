from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fastvideo_core.cache import CacheKey, FeatureCache
from fastvideo_core.cache.features import ClaimState
from fastvideo_core.errors import ExecutionError, ParameterError

MAX_BYTES = 100


def key_of(name, **fields):
    return CacheKey("model", "text_encoder", input_hashes=(("text", str(name)),), **fields)


def filled(cache, name, num_bytes=10, **fields):
    return cache.claim(key_of(name, **fields)).fill(f"value {name}", num_bytes)


class Machine(RuleBasedStateMachine):
    """The cache beside a plain account of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = FeatureCache("text", MAX_BYTES)
        self.handles: list[tuple[object, str, int]] = []
        self.claims: list[tuple[object, str]] = []

    names = st.sampled_from("abcdefg")
    versions = st.sampled_from(["w1", "w2"])

    @rule(name=names, version=versions)
    def claim(self, name, version):
        key = key_of(name, weights_version=version)
        was_there = key in self.cache
        is_computing = any(other.key == key and other.state is ClaimState.COMPUTE for other, _ in self.claims)
        claim = self.cache.claim(key)
        expected = ClaimState.HIT if was_there else ClaimState.WAIT if is_computing else ClaimState.COMPUTE
        assert claim.state is expected
        self.claims.append((claim, f"{name}{version}"))

    def some_claim(self, data, *states):
        able = [pair for pair in self.claims if pair[0].state in states]
        return data.draw(st.sampled_from(able)) if able else None

    @rule(data=st.data(), num_bytes=st.integers(0, 60))
    def fill(self, data, num_bytes):
        pair = self.some_claim(data, ClaimState.COMPUTE)
        if pair is not None:
            claim, name = pair
            self.claims.remove(pair)
            waiting = [other for other, _ in self.claims if other.key == claim.key]
            handle = claim.fill(f"value {name}", num_bytes)
            self.handles.append((handle, name, num_bytes))
            assert all(other.state is ClaimState.HIT for other in waiting)

    @rule(data=st.data())
    def take(self, data):
        pair = self.some_claim(data, ClaimState.HIT)
        if pair is not None:
            self.claims.remove(pair)
            handle = pair[0].take()
            self.handles.append((handle, pair[1], handle.num_bytes))

    @rule(data=st.data())
    def abandon(self, data):
        pair = self.some_claim(data, *ClaimState)
        if pair is not None:
            self.claims.remove(pair)
            waiting = [other for other, _ in self.claims if other.key == pair[0].key]
            had_duty = pair[0].state is ClaimState.COMPUTE
            pair[0].abandon()
            pair[0].abandon()
            assert not (had_duty and waiting) or waiting[0].state is ClaimState.COMPUTE

    @rule(data=st.data())
    @precondition(lambda self: self.handles)
    def release(self, data):
        held = data.draw(st.sampled_from(self.handles))
        self.handles.remove(held)
        held[0].release()
        with pytest.raises(ExecutionError):
            held[0].release()

    @rule(version=st.none() | versions)
    def invalidate(self, version):
        self.cache.invalidate("model", weights_version=version)
        for name in "abcdefg":
            for other in ("w1", "w2"):
                assert version not in (None, other) or key_of(name, weights_version=other) not in self.cache

    @invariant()
    def what_is_held_is_there_with_its_content(self):
        for handle, name, num_bytes in self.handles:
            assert handle.value == f"value {name}"
            assert handle.num_bytes == num_bytes

    @invariant()
    def the_budget_is_kept(self):
        stats = self.cache.stats
        assert 0 <= stats.held_bytes <= stats.used_bytes <= MAX_BYTES
        assert stats.num_entries == sum(
            key_of(name, weights_version=version) in self.cache for name in "abcdefg" for version in ("w1", "w2")
        )

    def teardown(self):
        for handle, _, _ in self.handles:
            handle.release()
        for claim, _ in self.claims:
            claim.abandon()
        assert self.cache.stats.held_bytes == 0
        self.cache.invalidate("model")
        assert self.cache.stats.used_bytes == 0
        assert self.cache.stats.num_entries == 0
        # Nobody computes any more, so that whoever comes next does.
        assert self.cache.claim(key_of("a", weights_version="w1")).state is ClaimState.COMPUTE


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40)


def test_what_was_computed_once_is_shared():
    cache = FeatureCache("text", MAX_BYTES)
    first = filled(cache, "a")
    claim = cache.claim(key_of("a"))
    assert claim.state is ClaimState.HIT
    second = claim.take()
    assert second.value is first.value
    stats = cache.stats.to_json()
    assert (stats["hits"], stats["misses"], stats["used_bytes"], stats["held_bytes"]) == (1, 1, 10, 10)


def test_other_adapters_weights_or_steps_do_not_share():
    cache = FeatureCache("text", MAX_BYTES)
    filled(cache, "a", adapter_versions=(("lora", "1"),), weights_version="w1", step_index=3)
    for fields in (
        {"adapter_versions": (("lora", "2"),), "weights_version": "w1", "step_index": 3},
        {"adapter_versions": (), "weights_version": "w1", "step_index": 3},
        {"adapter_versions": (("lora", "1"),), "weights_version": "w2", "step_index": 3},
        {"adapter_versions": (("lora", "1"),), "weights_version": "w1", "step_index": 4},
    ):
        assert cache.claim(key_of("a", **fields)).state is ClaimState.COMPUTE


def test_who_waits_is_told_when_the_result_is_there():
    cache = FeatureCache("text", MAX_BYTES)
    computing = cache.claim(key_of("a"))
    waiting = [cache.claim(key_of("a")) for _ in range(3)]
    told = []
    for index, claim in enumerate(waiting):
        claim.on_change = lambda index=index: told.append(index)
    own = computing.fill("value", 10)
    assert told == [0, 1, 2]
    handles = [own, *(claim.take() for claim in waiting)]
    assert {handle.value for handle in handles} == {"value"}
    assert (cache.stats.misses, cache.stats.coalesced) == (1, 3)
    for handle in handles:
        handle.release()
    assert cache.stats.held_bytes == 0


def test_when_who_computes_gives_up_the_next_one_takes_over():
    cache = FeatureCache("text", MAX_BYTES)
    computing, first, second = (cache.claim(key_of("a")) for _ in range(3))
    told = []
    first.on_change = lambda: told.append(first.state)
    computing.abandon()
    assert told == [ClaimState.COMPUTE]
    assert second.state is ClaimState.WAIT
    first.fill("value", 10).release()
    assert second.take().value == "value"


def test_who_leaves_while_waiting_is_not_told_and_holds_nothing():
    cache = FeatureCache("text", MAX_BYTES)
    computing, waiting = cache.claim(key_of("a")), cache.claim(key_of("a"))
    waiting.on_change = lambda: pytest.fail("it has left")
    waiting.abandon()
    computing.fill("value", 10).release()
    assert cache.stats.held_bytes == 0


def test_the_longest_unheld_goes_first_and_a_held_one_never():
    cache = FeatureCache("text", 30)
    a, b, c = (filled(cache, name) for name in "abc")
    b.release()
    c.release()
    filled(cache, "d").release()
    assert [key_of(name) in cache for name in "abcd"] == [True, False, True, True]
    # Held again and released, c is the younger one.
    cache.claim(key_of("c")).take().release()
    filled(cache, "e").release()
    assert [key_of(name) in cache for name in "acde"] == [True, True, False, True]
    assert a.value == "value a"
    assert cache.stats.evictions == 2


def test_a_result_without_room_is_handed_on_and_not_kept():
    cache = FeatureCache("text", 30)
    held = filled(cache, "a", 25)
    computing, waiting = cache.claim(key_of("b")), cache.claim(key_of("b"))
    own = computing.fill("large", 10)
    assert own.value == waiting.take().value == "large"
    assert key_of("b") not in cache
    assert cache.stats.oversized == 1
    assert cache.stats.used_bytes == 25
    own.release()
    assert cache.stats.used_bytes == 25
    held.release()


def test_a_result_that_can_never_fit_evicts_nothing():
    cache = FeatureCache("text", 30)
    filled(cache, "a", 25).release()
    filled(cache, "b", 31).release()
    assert key_of("a") in cache


def test_new_weights_drop_the_old_features_but_not_from_who_holds_them():
    cache = FeatureCache("text", MAX_BYTES)
    held = filled(cache, "a", weights_version="w1")
    filled(cache, "b", weights_version="w1").release()
    filled(cache, "b", weights_version="w2").release()
    assert cache.invalidate("model", weights_version="w1") == 2
    assert held.value == "value a"
    assert cache.stats.used_bytes == 20
    held.release()
    assert cache.stats.used_bytes == 10
    assert cache.invalidate("another model") == 0
    assert cache.invalidate("model") == 1
    assert cache.stats.invalidations == 3


def test_what_was_being_computed_for_old_weights_is_not_kept():
    cache = FeatureCache("text", MAX_BYTES)
    key = key_of("a", weights_version="w1")
    computing, waiting = cache.claim(key), cache.claim(key)
    cache.invalidate("model", weights_version="w1")
    computing.fill("value", 10).release()
    assert waiting.take().value == "value"
    assert key not in cache
    assert cache.claim(key).state is ClaimState.COMPUTE


def test_values_are_let_go_with_their_last_holder():
    class Value:
        pass

    cache = FeatureCache("text", 10)
    value = Value()
    gone = weakref.ref(value)
    handle = cache.claim(key_of("a")).fill(value, 11)
    del value
    handle.release()
    gc.collect()
    assert gone() is None
    with pytest.raises(ExecutionError, match="cache 'text' was released before"):
        _ = handle.value


def test_claims_are_used_as_what_they_are():
    cache = FeatureCache("text", MAX_BYTES)
    claim = cache.claim(key_of("a"))
    with pytest.raises(ExecutionError, match="is compute, not hit"):
        claim.take()
    with pytest.raises(ParameterError, match="num_bytes=-1"):
        claim.fill("value", -1)
    claim.fill("value", 1)
    with pytest.raises(ExecutionError, match="is ended, not compute"):
        claim.fill("value", 1)
    with pytest.raises(ParameterError, match=r"caches\.text\.max_bytes=-1"):
        FeatureCache("text", -1)
