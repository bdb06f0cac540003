from __future__ import annotations

import threading

import numpy as np
import pytest

from fastvideo_core.errors import CancelledError, ExecutionError
from fastvideo_core.runtime.engine import Engine
from fastvideo_testing.tiny import text, tiny_card


@pytest.fixture
def card(tiny_folder):
    return tiny_card(tiny_folder)


class Counter:
    """Counts the prompts that are encoded; the first call may be held until it is let go on."""

    def __init__(self, *, is_held=False):
        self.encoded, self.calls = [], 0
        self.entered, self.go_on = threading.Event(), threading.Event()
        if not is_held:
            self.go_on.set()
        self.fail_first = False

    def run_step(self, instance, plans, ctx):
        self.calls += 1
        self.entered.set()
        assert self.go_on.wait(30)
        if self.fail_first and self.calls == 1:
            raise ValueError("the first one fails")
        self.encoded += [plan.payload.token_ids for plan in plans]
        return text.run_step(instance, plans, ctx)


@pytest.fixture
def counted(card, made_up, with_loop):
    def make(counter):
        return with_loop(card, "text", step=made_up("step", counter.run_step))

    return make


def submit(engine, prompt, **parameters):
    return engine.submit(engine.make_request(prompt, parameters=parameters))


def test_a_prompt_is_encoded_once_for_all_who_ask(counted):
    counter = Counter()
    with Engine.open(counted(counter)) as engine:
        alone = engine.generate("a fox", seed=1).video.frames
        many = [submit(engine, "a fox", seed=1) for _ in range(5)]
        for handle in many:
            assert np.array_equal(handle.result(30).video.frames, alone)
        other = engine.generate("a fox", seed=1, negative_prompt="rain")
        (stats,) = (cache.stats for cache in engine.caches.features.values())
    assert len(counter.encoded) == len(set(counter.encoded)) == 3, "a fox, nothing, and rain"
    assert not np.array_equal(other.video.frames, alone)
    assert (stats.misses, stats.hits) == (3, 11)
    assert stats.held_bytes == 0, "whoever has ended holds nothing"


def test_who_asks_while_it_is_made_waits_for_it(counted):
    counter = Counter(is_held=True)
    with Engine.open(counted(counter)) as engine:
        first = submit(engine, "a fox", seed=1, guidance_scale=1.0)
        assert counter.entered.wait(30)
        others = [submit(engine, "a fox", seed=seed, guidance_scale=1.0) for seed in range(2, 6)]
        counter.go_on.set()
        for handle in (first, *others):
            handle.result(30)
    assert len(counter.encoded) == 1


@pytest.mark.parametrize("ending", ["cancel", "error"])
def test_when_the_maker_ends_early_another_makes_it(ending, counted):
    counter = Counter(is_held=True)
    counter.fail_first = ending == "error"
    with Engine.open(counted(counter)) as engine:
        first = submit(engine, "a fox", seed=1, guidance_scale=1.0)
        assert counter.entered.wait(30)
        others = [submit(engine, "a fox", seed=seed, guidance_scale=1.0) for seed in (2, 3)]
        if ending == "cancel":
            first.cancel()
        counter.go_on.set()
        with pytest.raises(CancelledError if ending == "cancel" else ExecutionError):
            first.result(30)
        for handle in others:
            handle.result(30)
        assert engine.generate("a fox", seed=1, guidance_scale=1.0).seed == 1
        (stats,) = (cache.stats for cache in engine.caches.features.values())
        assert stats.held_bytes == 0


def test_exact_and_fast_results_are_kept_apart(counted):
    counter = Counter()
    with Engine.open(counted(counter)) as engine:
        engine.generate("a fox", guidance_scale=1.0)
        engine.generate("a fox", guidance_scale=1.0, exact=True)
    assert len(counter.encoded) == 1, "the tiny text loop has one way to encode, and says so in its plans"


def test_a_card_without_the_cache_shares_nothing(counted):
    counter = Counter()
    with Engine.open(counted(counter).model_copy(update={"caches": {}})) as engine:
        for _ in range(2):
            engine.generate("a fox", guidance_scale=1.0)
    assert len(counter.encoded) == 2
