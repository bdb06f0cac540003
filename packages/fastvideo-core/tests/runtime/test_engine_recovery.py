from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from fastvideo_core.errors import CancelledError, InputError, ResourceError, WorkerLostError
from fastvideo_core.loop.base import LoopEstimate
from fastvideo_core.runtime.durable import CheckpointPolicy, StateStore
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_testing.tiny import denoise, tiny_card

NUM_STEPS = 12
EVERY_STEP = CheckpointPolicy(max_share=1e9, min_at_risk_s=0.0)
NEVER = CheckpointPolicy(min_at_risk_s=1e9)
LOST = "CUDA error: an illegal memory access was encountered"


@pytest.fixture
def card(tiny_folder):
    return tiny_card(tiny_folder)


@pytest.fixture(scope="module")
def expected(tiny_folder):
    with Engine.open(tiny_card(tiny_folder)) as engine:
        return {
            seed: engine.generate("x", seed=seed, num_inference_steps=NUM_STEPS, exact=True).video.frames
            for seed in range(4)
        }


def submit(engine, seed, request_id):
    parameters = {"seed": seed, "num_inference_steps": NUM_STEPS}
    return engine.submit(engine.make_request("x", exact=True, request_id=request_id, parameters=parameters))


@pytest.fixture
def every_step(tmp_path):
    """A store that saves at every step."""
    with StateStore(tmp_path / "state", policy=EVERY_STEP) as store:
        yield store


@pytest.fixture
def losing(card, made_up, with_loop):
    """The card with a device that is lost at some steps, counted over all; and the steps that were made."""

    def make(*lost_at, before=lambda: None):
        steps = []

        def step(instance, plans, ctx):
            before()
            steps.append((plans[0].cancel_scope.parent.scope_id, plans[0].step_index))
            if len(steps) in lost_at:
                raise RuntimeError(LOST)
            return denoise.run_step(instance, plans, ctx)

        return with_loop(card, "denoise", step=made_up("step", step)), steps

    return make


def test_requests_go_on_after_their_device_was_lost(losing, expected):
    card, steps = losing(15)
    with Engine.open(card) as engine:
        handles = [submit(engine, seed, f"r{seed}") for seed in range(4)]
        for seed, handle in enumerate(handles):
            assert np.array_equal(handle.result(30).video.frames, expected[seed])
        events = [event for handle in handles for event in handle.events()]
    assert not {event.type for event in events} & {"request.failed"}
    assert steps.count(("r3", 0)) == 1, "what had not begun begins once"


def test_they_go_on_from_their_checkpoints(losing, expected, every_step):
    card, steps = losing(10, before=every_step.flush)
    with Engine.open(card, store=every_step) as engine:
        handle = submit(engine, 0, "r0")
        assert np.array_equal(handle.result(30).video.frames, expected[0])
    assert ("r0", 0) in steps
    assert steps.count(("r0", 0)) == 1, "it began once"
    assert len(steps) < 2 * NUM_STEPS


def test_a_step_that_ends_after_the_device_was_lost_does_not_replace_the_checkpoint(
    card, made_up, with_loop, expected, every_step
):
    """Of two workers one loses the device while a step of another request is on the other."""
    both, ended, steps = threading.Barrier(2), threading.Event(), []

    def step(instance, plans, ctx):
        every_step.flush()
        name, index = plans[0].cancel_scope.parent.scope_id, plans[0].step_index
        steps.append((name, index))
        if index == 5 and steps.count((name, index)) == 1:
            both.wait(30)
            if name == "r0":
                raise RuntimeError(LOST)
            while engine.is_healthy:
                time.sleep(0.001)
            ended.set()
        return denoise.run_step(instance, plans, ctx)

    changed = with_loop(card, "denoise", step=made_up("step", step))
    with Engine.open(changed, store=every_step, options=RuntimeOptions(num_workers=2)) as engine:
        reload = engine._reload

        def reload_late():
            assert ended.wait(30)
            time.sleep(0.1)
            return reload()

        engine._reload = reload_late
        handles = [submit(engine, seed, f"r{seed}") for seed in range(2)]
        for seed, handle in enumerate(handles):
            assert np.array_equal(handle.result(60).video.frames, expected[seed])
    assert [steps.count((name, 0)) for name in ("r0", "r1")] == [1, 1], "both go on from their checkpoints"


def test_a_request_that_loses_the_device_twice_ends(losing, expected):
    card, _ = losing(3, 4)
    with Engine.open(card) as engine:
        bad = submit(engine, 0, "bad")
        with pytest.raises(WorkerLostError, match="request:bad/loop:denoise: step .* the device is lost: CUDA"):
            bad.result(30)
        deadline = time.monotonic() + 20
        while not engine.is_healthy and time.monotonic() < deadline:
            time.sleep(0.01)
        assert submit(engine, 1, "good").result(30)
    assert not engine.is_healthy


def test_a_device_that_does_not_come_back_ends_all(losing, monkeypatch):
    card, _ = losing(2)
    engine = Engine.open(card)
    with engine:
        handles = [submit(engine, seed, f"r{seed}") for seed in range(3)]

        def fail():
            raise ResourceError("no device any more")

        engine._reload = fail
        for handle in handles:
            with pytest.raises(ResourceError, match="no device any more"):
                handle.result(30)


def test_a_request_is_stored_until_its_result_is_safe(card, every_step, expected):
    with Engine.open(card, store=every_step) as engine:
        handle = submit(engine, 1, "a")
        assert every_step.holds("a")
        with pytest.raises(InputError, match="request_id='a'"):
            submit(engine, 1, "a")
        handle.result(30)
        assert every_step.holds("a"), "the engine does not know whether anybody has saved it"
        every_step.finish("a")
        assert not every_step.holds("a")


def test_a_cancelled_request_is_taken_up_where_it_was(card, made_up, with_loop, tmp_path, expected):
    entered, go_on = threading.Event(), threading.Event()
    steps = []

    def step(instance, plans, ctx):
        steps.append(plans[0].step_index)
        if plans[0].step_index == 5 and not go_on.is_set():
            entered.set()
            assert go_on.wait(30)
        return denoise.run_step(instance, plans, ctx)

    changed = with_loop(card, "denoise", step=made_up("step", step))
    folder = tmp_path / "state"
    with StateStore(folder, policy=NEVER) as store, Engine.open(changed, store=store) as engine:
        handle = submit(engine, 2, "a")
        assert entered.wait(30)
        handle.cancel("the power is going")
        go_on.set()
        with pytest.raises(CancelledError):
            handle.result(30)
    assert steps == [0, 1, 2, 3, 4, 5]
    with StateStore(folder) as store, Engine.open(changed, store=store) as engine:
        (saved,) = store.load(engine.instance)
        again = engine.submit_saved(saved)
        assert np.array_equal(again.result(30).video.frames, expected[2])
        told = [event for event in again.events() if event.type == "request.progress"]
        store.finish("a")
    assert [event.step for event in told if event.node == "denoise"] == list(range(7, NUM_STEPS + 1))


def test_a_refused_request_leaves_nothing_in_the_store(card, every_step, made_up, with_loop):
    def refuse(spec, model, parameters, inputs, *, exact):
        return LoopEstimate((), resident_bytes=2000, peak_bytes=54)

    changed = with_loop(card, "denoise", estimate=made_up("estimate", refuse))
    with Engine.open(changed, store=every_step, options=RuntimeOptions(memory_bytes=2048)) as engine:
        with pytest.raises(ResourceError, match="request a needs 2.05 kB besides the weights; 2.05 kB are there"):
            submit(engine, 1, "a")
        assert not every_step.holds("a")
        assert every_step.unfinished == ()
