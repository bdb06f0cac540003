from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

from fastvideo_core.errors import CancelledError
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_testing.tiny import denoise, tiny_card

ONE_BY_ONE = RuntimeOptions(SchedulerConfig(max_batch=1))


class Gate:
    """Holds a request's denoise step until it is let go on."""

    def __init__(self, request_id, at):
        self.request_id, self.at = request_id, at
        self.entered, self.go_on, self.steps = threading.Event(), threading.Event(), []

    def run_step(self, instance, plans, ctx):
        name = plans[0].cancel_scope.parent.scope_id
        if (name, plans[0].step_index) == (self.request_id, self.at):
            self.entered.set()
            assert self.go_on.wait(30)
        self.steps.append((name, plans[0].step_index))
        return denoise.run_step(instance, plans, ctx)

    def steps_of(self, name):
        return [index for of, index in self.steps if of == name]


@pytest.fixture
def card(tiny_folder):
    return tiny_card(tiny_folder)


@pytest.fixture
def gate():
    return Gate("held", 1)


@pytest.fixture
def gated(card, gate, made_up, with_loop):
    """The card with denoise steps that pass the gate."""
    return with_loop(card, "denoise", step=made_up("step", gate.run_step))


@pytest.fixture(scope="module")
def expected(tiny_folder):
    with Engine.open(tiny_card(tiny_folder)) as engine:
        return {seed: engine.generate("x", seed=seed).video.frames for seed in (1, 2)}


def submit(engine, name, **parameters):
    return engine.submit(engine.make_request("x", request_id=name, parameters=parameters))


def test_cancelling_one_takes_effect_at_its_next_boundary_and_touches_no_other(gated, gate, expected):
    with Engine.open(gated, options=ONE_BY_ONE) as engine:
        peers = [submit(engine, "a", seed=1), submit(engine, "b", seed=2)]
        held = submit(engine, "held", seed=3)
        assert gate.entered.wait(30)
        held.cancel("no longer wanted")
        assert not held.is_done, "the step in progress ends first"
        gate.go_on.set()
        with pytest.raises(CancelledError, match="^request:held/loop:denoise: no longer wanted$"):
            held.result(30)
        for peer, seed in zip(peers, (1, 2), strict=True):
            assert np.array_equal(peer.result(30).video.frames, expected[seed])
    assert gate.steps_of("held") == [0, 1]
    events = list(held.events())
    assert [event.sequence for event in events] == list(range(len(events)))
    assert (events[-1].type, events[-1].reason) == ("request.cancelled", "request:held/loop:denoise: no longer wanted")
    assert [event.step for event in events if event.type == "request.progress" and event.node == "denoise"] == [1, 2]


def test_what_waits_for_a_slot_is_cancelled_at_once(gated, gate, expected):
    with Engine.open(gated, max_running=1) as engine:
        held = submit(engine, "held", seed=1)
        waiting, next_one = submit(engine, "waiting"), submit(engine, "next", seed=2)
        assert gate.entered.wait(30)
        waiting.cancel("never mind")
        with pytest.raises(CancelledError, match="^request:waiting: never mind$"):
            waiting.result(10)
        assert [event.type for event in waiting.events()] == ["request.accepted", "request.cancelled"]
        assert not held.is_done
        gate.go_on.set()
        assert np.array_equal(held.result(30).video.frames, expected[1])
        assert np.array_equal(next_one.result(30).video.frames, expected[2])
    assert gate.steps_of("waiting") == []


def test_the_slot_of_a_cancelled_request_is_free(gated, gate, expected):
    with Engine.open(gated, max_running=1) as engine:
        held = submit(engine, "held")
        assert gate.entered.wait(30)
        handles = [submit(engine, f"w{number}", seed=1) for number in range(6)]
        for handle in handles[::2]:
            handle.cancel()
        held.cancel()
        gate.go_on.set()
        for handle in handles[::2]:
            with pytest.raises(CancelledError):
                handle.result(30)
        for handle in handles[1::2]:
            assert np.array_equal(handle.result(30).video.frames, expected[1])


def test_cancelling_before_and_after_changes_nothing_more(card):
    with Engine.open(card) as engine:
        handle = submit(engine, "a")
        video = handle.result(30).video
        handle.cancel()
        assert handle.result().video is video
        for _ in range(20):
            handle = submit(engine, "b")
            handle.cancel("first")
            handle.cancel("second")
            with pytest.raises(CancelledError, match="first"):
                handle.result(30)


def test_closing_lets_the_step_in_progress_end(gated, gate):
    engine = Engine.open(gated)
    held = submit(engine, "held")
    assert gate.entered.wait(30)
    closing = threading.Thread(target=engine.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    gate.go_on.set()
    closing.join(30)
    assert not closing.is_alive()
    with pytest.raises(CancelledError, match="loop:denoise: the engine was closed"):
        held.result(0)
    assert gate.steps_of("held") == [0, 1]


def test_an_interrupt_in_generate_cancels_the_request(card):
    seen = []

    def interrupt(event):
        seen.append(event)
        if event.type == "request.progress" and event.node == "denoise" and event.step == 2:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    # A shell starts what it runs in the background with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Engine.open(card) as engine:
            with pytest.raises(KeyboardInterrupt):
                engine.generate("x", num_inference_steps=1000, on_event=interrupt)
            assert engine.generate("y").video
    finally:
        signal.signal(signal.SIGINT, before)
    assert (seen[-1].type, seen[-1].reason.endswith(": interrupted")) == ("request.cancelled", True)
    assert sum(event.type == "request.progress" for event in seen) < 900
