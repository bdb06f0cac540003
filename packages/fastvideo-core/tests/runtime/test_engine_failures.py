from __future__ import annotations

import asyncio
import dataclasses
import gc
import time
import weakref

import numpy as np
import pytest
import torch

from fastvideo_core.errors import (
    CancelledError,
    ExecutionError,
    InputError,
    NonFiniteError,
    OutOfMemoryError,
    PromptError,
    ResourceError,
)
from fastvideo_core.loop.work import StepResult, StreamChunk, Wait
from fastvideo_core.runtime import run as run_module
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_testing.tiny import denoise, text, tiny_card

BAD = "bad"
"""Id of the request that fails; its peers are unharmed."""


@pytest.fixture
def card(tiny_folder):
    return tiny_card(tiny_folder)


@pytest.fixture(scope="module")
def expected(tiny_folder):
    with Engine.open(tiny_card(tiny_folder)) as engine:
        return engine.generate("x", seed=5).video.frames


@pytest.fixture
def check(card, expected):
    """Run a request that fails among others; check that it ends with the error, alone, and that it lets go."""

    def run(changed, error, text):
        with Engine.open(changed, options=RuntimeOptions(SchedulerConfig(max_batch=1))) as engine:
            first = engine.submit(engine.make_request("x", parameters={"seed": 5}))
            bad = engine.submit(engine.make_request("x", request_id=BAD))
            last = engine.submit(engine.make_request("x", parameters={"seed": 5}))
            with pytest.raises(error, match=text) as caught:
                bad.result(60)
            assert type(caught.value) is error
            assert "\n" not in str(caught.value)
            events = list(bad.events())
            assert [event.sequence for event in events] == list(range(len(events)))
            assert (events[0].type, events[-1].type) == ("request.accepted", "request.failed")
            assert (events[-1].error, events[-1].message) == (error.__name__, str(caught.value))
            assert sum(event.type.startswith("request.") and event.type != "request.progress" for event in events) <= 3
            later = engine.submit(engine.make_request("x", parameters={"seed": 5}))
            for peer in (first, last, later):
                assert np.array_equal(peer.result(60).video.frames, expected)

    return run


def is_bad(scope):
    return scope.parent.scope_id == BAD


def failing_step(error, at=1):
    """Return a denoise step that raises for the bad request."""

    def step(instance, plans, ctx):
        if is_bad(plans[0].cancel_scope) and plans[0].step_index == at:
            raise error
        return denoise.run_step(instance, plans, ctx)

    return step


@pytest.mark.parametrize(
    ("raised", "error", "text"),
    [
        (RuntimeError("two\nlines"), ExecutionError, "^request:bad/loop:denoise: step 2 of 4 of denoise failed: Runt"),
        (SystemExit(1), ExecutionError, "step 2 of 4 of denoise failed: SystemExit: 1"),
        (asyncio.CancelledError(), ExecutionError, "step 2 of 4 of denoise failed: CancelledError"),
        (torch.OutOfMemoryError("full"), OutOfMemoryError, "step 2 of 4 of denoise ran out of memory: full; ask for"),
        (MemoryError(), OutOfMemoryError, "step 2 of 4 of denoise ran out of memory: no more memory"),
        (PromptError("typed"), PromptError, "^typed$"),
    ],
)
def test_a_step_that_raises(raised, error, text, card, made_up, with_loop, check):
    check(with_loop(card, "denoise", step=made_up("step", failing_step(raised))), error, text)


@pytest.mark.parametrize("at", [0, 3])
def test_a_step_that_gives_nan(at, card, made_up, with_loop, check):
    def step(instance, plans, ctx):
        (result,) = denoise.run_step(instance, plans, ctx)
        if is_bad(plans[0].cancel_scope) and plans[0].step_index == at:
            latents = torch.full_like(result.values.latents_1CTHW, float("nan"))
            result = dataclasses.replace(result, values=denoise.DenoiseValues(latents), is_finite=False)
        return [result]

    text = f"^request:bad/loop:denoise: step {at + 1} of 4 of denoise gave NaN or infinity in transformer at float32"
    check(with_loop(card, "denoise", step=made_up("step", step)), NonFiniteError, text)


@pytest.mark.parametrize("results", [[], [StepResult(None)] * 2, None, ["no result"]])
def test_a_step_that_breaks_its_contract(results, card, made_up, with_loop, check):
    def step(instance, plans, ctx):
        return results if is_bad(plans[0].cancel_scope) else denoise.run_step(instance, plans, ctx)

    changed = with_loop(card, "denoise", step=made_up("step", step))
    check(changed, ExecutionError, "^request:bad/loop:denoise: .* failed")


@pytest.mark.parametrize("at", [1, 3])
def test_a_step_that_streams_what_makes_no_sense(at, card, made_up, with_loop, check):
    def step(instance, plans, ctx):
        (result,) = denoise.run_step(instance, plans, ctx)
        if is_bad(plans[0].cancel_scope) and plans[0].step_index == at:
            result = dataclasses.replace(result, chunks=(StreamChunk("video", "media", 0, "no frames"),))
        return [result]

    text = "^request:bad: the report of a step failed: AttributeError: 'str' object has no attribute 'shape'"
    check(with_loop(card, "denoise", step=made_up("step", step)), ExecutionError, text)


@pytest.mark.parametrize(
    ("method", "where"),
    [
        ("init", "^request:bad/loop:denoise: the start of denoise failed"),
        ("next", "^request:bad/loop:denoise: denoise, after 0 steps, failed"),
        ("advance", "^request:bad/loop:denoise: denoise, after 0 steps, failed"),
        ("finalize", "^request:bad/loop:denoise: denoise, after 4 steps, failed"),
    ],
)
@pytest.mark.parametrize("raised", [KeyError("x"), SystemExit(2)])
def test_a_loop_that_raises(method, where, raised, card, made_up, with_loop, check):
    class Loop(denoise.DenoiseLoop):
        pass

    def broken(self, first, *rest):
        scope = first.cancel_scope if method == "init" else first.scope
        if is_bad(scope):
            raise raised
        return getattr(denoise.DenoiseLoop, method)(self, first, *rest)

    setattr(Loop, method, broken)
    text = f"{where}: {type(raised).__name__}"
    check(with_loop(card, "denoise", loop=made_up("Loop", Loop)), ExecutionError, text)


def test_an_artifact_that_cannot_be_made(card, check, monkeypatch):
    make = run_module.make_artifact

    def broken(node, value, prepared, instance, **more):
        if prepared.request.request_id == BAD:
            raise ValueError("no frames")
        return make(node, value, prepared, instance, **more)

    monkeypatch.setattr(run_module, "make_artifact", broken)
    check(card, ExecutionError, "^request:bad: the artifact video failed: ValueError: no frames")


def test_a_result_that_a_loop_does_not_give(card, made_up, with_loop):
    class Loop(denoise.DenoiseLoop):
        def finalize(self, state):
            result = super().finalize(state)
            return dataclasses.replace(result, outputs={}) if is_bad(state.scope) else result

    with Engine.open(with_loop(card, "denoise", loop=made_up("Loop", Loop))) as engine:
        bad = engine.submit(engine.make_request("x", request_id=BAD, outputs=("latents",)))
        with pytest.raises(ExecutionError, match="request:bad: loop denoise gave no 'latents'; it gave nothing"):
            bad.result(60)


def wait_until_dead(refs):
    deadline = time.monotonic() + 5
    while any(ref() is not None for ref in refs) and time.monotonic() < deadline:
        time.sleep(0.001)
    return sum(ref() is not None for ref in refs)


@pytest.mark.parametrize("ending", ["error", "nan", "memory", "cancel"])
def test_memory_is_let_go_at_once_however_a_request_ends(ending, card, made_up, with_loop):
    alive = []

    def step(instance, plans, ctx):
        (plan,) = plans
        alive.extend(weakref.ref(tensor) for tensor in (plan.payload.latents_1CTHW, *plan.payload.embeds_1E))
        if plan.step_index == 2 and ending == "cancel":
            handle.cancel()
        elif plan.step_index == 2 and ending != "nan":
            raise {"error": ValueError, "memory": torch.OutOfMemoryError}[ending]("x")
        (result,) = denoise.run_step(instance, plans, ctx)
        alive.append(weakref.ref(result.values.latents_1CTHW))
        return [dataclasses.replace(result, is_finite=ending != "nan" or plan.step_index < 2)]

    error = {"cancel": CancelledError, "nan": NonFiniteError, "memory": ResourceError}.get(ending, ExecutionError)
    gc.collect()
    gc.disable()  # memory must not wait for the collector
    try:
        # Without the cache, since encoded prompts are kept for others.
        changed = with_loop(card, "denoise", step=made_up("step", step)).model_copy(update={"caches": {}})
        with Engine.open(changed) as engine:
            handle = engine.submit(engine.make_request("x", parameters={"num_inference_steps": 50}))
            with pytest.raises(error) as caught:
                handle.result(60)
            assert len(alive) >= 3 * 4 - 1
            assert wait_until_dead(alive) == 0, "while the engine lives and the handle and the error are kept"
            assert caught.value.__traceback__ is not None
            assert handle.is_done
    finally:
        gc.enable()


class WaitingLoop(text.TextLoop):
    """Waits once before it begins."""

    wait = None
    is_over = False

    def next(self, state):
        return super().next(state) if type(self).is_over else type(self).wait()

    def apply(self, state, event):
        assert event is None
        type(self).is_over = True
        return state


@pytest.fixture
def waiting(card, made_up, with_loop):
    """Return the card with a text loop that waits."""

    def make(wait):
        return with_loop(card, "text", loop=made_up("Loop", type("Loop", (WaitingLoop,), {"wait": staticmethod(wait)})))

    return make


def test_a_loop_may_wait_for_a_time(waiting, expected):
    until_s = time.monotonic() + 0.1
    with Engine.open(waiting(lambda: Wait("time", until_s))) as engine:
        result = engine.generate("x", seed=5)
    assert time.monotonic() >= until_s
    assert np.array_equal(result.video.frames, expected)


def test_a_long_wait_ends_when_the_request_is_cancelled(waiting):
    until_s = time.monotonic() + 600
    with Engine.open(waiting(lambda: Wait("time", until_s))) as engine:
        handle = engine.submit(engine.make_request("x"))
        with pytest.raises(TimeoutError):
            handle.result(0.05)
        handle.cancel("enough")
        with pytest.raises(CancelledError, match="request:.*/loop:text: enough"):
            handle.result(5)


def test_closing_ends_a_long_wait(waiting):
    until_s = time.monotonic() + 600
    engine = Engine.open(waiting(lambda: Wait("time", until_s)))
    handle = engine.submit(engine.make_request("x"))
    engine.close()
    with pytest.raises(CancelledError, match="the engine was closed"):
        handle.result(0)


@pytest.mark.parametrize("reason", ["input", "viewer"])
def test_a_loop_that_waits_for_what_cannot_come_is_told_so(reason, waiting):
    with (
        Engine.open(waiting(lambda: Wait(reason))) as engine,
        pytest.raises(ExecutionError, match=f"loop:text: the loop waits for its {reason}; only a session has one"),
    ):
        engine.generate("x")


def test_bad_input_found_by_a_loop_is_bad_input(card, made_up, with_loop):
    with Engine.open(card) as engine, pytest.raises(PromptError, match="200 tokens"):
        engine.submit(engine.make_request("x" * 200))
    with Engine.open(with_loop(card, "text", check=None)) as engine:
        handle = engine.submit(engine.make_request("x" * 200))
        with pytest.raises(PromptError, match="200 tokens") as caught:
            handle.result(60)
        assert isinstance(caught.value, InputError)
        assert [event.type for event in handle.events()] == ["request.accepted", "request.failed"]
