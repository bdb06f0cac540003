"""What batching does: who shares a call, who does not, and what becomes of the peers of one that fails."""

from __future__ import annotations

import dataclasses
import gc
import threading
import time
import weakref
from contextlib import suppress

import numpy as np
import pytest
import torch

from fastvideo_core.errors import (
    CancelledError,
    ExecutionError,
    InputError,
    NonFiniteError,
    OutOfMemoryError,
    QueueFullError,
    ResourceError,
)
from fastvideo_core.loop.base import LoopEstimate, OutOfMemory
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_core.runtime.scheduler.base import LatencyClass, Limits, SchedulerConfig
from fastvideo_core.runtime.scheduler.log import DecisionLog, replay
from fastvideo_testing.tiny import decode, denoise, text, tiny_card

BOTH = ("video", "latents")
BODIES = {"text": text.run_step, "denoise": denoise.run_step, "decode": decode.run_step}


def name_of(plan):
    return plan.cancel_scope.parent.scope_id


class Watch:
    """Notes who shares a call, and holds the first call of all until `go` is set, so that all have come by then."""

    def __init__(self):
        self.calls, self.change = [], None
        self.entered, self.go = threading.Event(), threading.Event()

    def body(self, loop_id):
        def run_step(instance, plans, ctx):
            self.entered.set()
            assert self.go.wait(30)
            self.calls.append((loop_id, [(name_of(plan), plan.step_index) for plan in plans]))
            # Row by row, so that a request has the same bits in a call as alone.
            results = [result for plan in plans for result in BODIES[loop_id](instance, [plan], ctx)]
            return results if self.change is None else self.change(loop_id, plans, results)

        return run_step

    def of(self, loop_id):
        return [rows for loop, rows in self.calls if loop == loop_id]

    def sizes(self, loop_id):
        return [len(rows) for rows in self.of(loop_id)]


@pytest.fixture
def watch():
    return Watch()


@pytest.fixture
def card(tiny_folder, watch, made_up, with_loop):
    card = tiny_card(tiny_folder)
    for loop_id in BODIES:
        card = with_loop(card, loop_id, step=made_up(f"{loop_id}_step", watch.body(loop_id)))
    return card


def requests_of(engine, *, exact=False, **common):
    """Return requests that differ in prompt, seed, guidance and number of steps."""
    return [
        engine.make_request(
            f"prompt {number}", request_id=f"r{number}", outputs=BOTH, exact=exact,
            parameters={"seed": number, "num_inference_steps": 3 + number, "guidance_scale": 2.0 + number, **common},
        )
        for number in range(4)
    ]  # fmt: skip


def together(engine, watch, requests):
    """Submit requests so that all are there before the first step is over; return their handles by id."""
    handles = {request.request_id: engine.submit(request) for request in requests}
    watch.go.set()
    return handles


@pytest.fixture(scope="module")
def alone(tiny_folder):
    """What each request gives alone, exact and not."""
    with Engine.open(tiny_card(tiny_folder)) as engine:
        return {
            exact: {one.request_id: engine.submit(one).result(60) for one in requests_of(engine, exact=exact)}
            for exact in (True, False)
        }


def assert_same(result, expected, bound=0.0):
    one, other = result.latents.latents, expected.latents.latents
    assert np.abs(one - other).max() <= bound * np.abs(other).max()
    if bound == 0.0:
        assert np.array_equal(result.video.frames, expected.video.frames)


def test_requests_of_different_prompts_seeds_guidance_and_lengths_share_calls(card, watch, alone):
    with Engine.open(card) as engine:
        handles = together(engine, watch, requests_of(engine))
        for name, handle in handles.items():
            assert_same(handle.result(60), alone[False][name])
    steps = watch.of("denoise")
    assert sum(map(len, steps)) == 3 + 4 + 5 + 6, "no step is lost or made twice"
    assert sorted(row for rows in steps for row in rows) == [(f"r{n}", i) for n in range(4) for i in range(3 + n)]
    assert max(watch.sizes("denoise")) == 4
    assert len(steps) <= 9, "18 one by one"


def test_rows_of_one_call_are_within_the_bound_of_the_card(tiny_folder, watch, made_up, with_loop, alone):
    def real(instance, plans, ctx):
        sizes.append(len(plans))
        return denoise.run_step(instance, plans, ctx)

    sizes, card = [], tiny_card(tiny_folder)
    with Engine.open(with_loop(card, "denoise", step=made_up("real", real))) as engine:
        for name, handle in together(engine, watch, requests_of(engine)).items():
            assert_same(handle.result(60), alone[False][name], card.parity.batch_max_relative_error)
    assert max(sizes) >= 2


def test_exact_requests_share_no_call_and_have_the_bits_that_they_have_alone(card, watch, alone):
    with Engine.open(card) as engine:
        for name, handle in together(engine, watch, requests_of(engine, exact=True)).items():
            assert_same(handle.result(60), alone[True][name])
    assert set(watch.sizes("denoise")) == {1}


def test_prompts_are_encoded_together(card, watch):
    with Engine.open(card) as engine:
        for handle in together(engine, watch, requests_of(engine)).values():
            handle.result(60)
    assert max(watch.sizes("text")) >= 3
    assert sum(watch.sizes("text")) <= 8


def test_frames_are_decoded_together(card, watch):
    with Engine.open(card) as engine:
        requests = requests_of(engine, num_inference_steps=3)
        for handle in together(engine, watch, requests).values():
            handle.result(60)
    assert watch.sizes("denoise") == [4, 4, 4]
    assert watch.sizes("decode") == [4, 4, 4]


def test_a_request_joins_between_two_steps(card, watch, alone):
    later, entered = threading.Event(), threading.Event()

    def change(loop_id, plans, results):
        if loop_id == "denoise" and plans[0].step_index == 1:
            entered.set()
            assert later.wait(30)
        return results

    watch.change = change
    with Engine.open(card) as engine:
        first, *rest = reversed(requests_of(engine))
        watch.go.set()
        handles = {first.request_id: engine.submit(first)}
        assert entered.wait(30)
        watch.change = None
        handles |= {one.request_id: engine.submit(one) for one in rest}
        later.set()
        for name, handle in handles.items():
            assert_same(handle.result(60), alone[False][name])
    rows = watch.of("denoise")
    assert [len(one) for one in rows[:2]] == [1, 1]
    assert any(len(one) == 4 and len({index for _, index in one}) == 2 for one in rows[2:]), "at a step of its own"


def test_exact_requests_and_others_do_not_meet_nor_do_sizes(card, watch):
    with Engine.open(card) as engine:
        others = [
            engine.make_request("x", request_id="exact", exact=True, parameters={"seed": 1}),
            engine.make_request("y", request_id="large", parameters={"height": 48}),
        ]
        for handle in together(engine, watch, [*requests_of(engine)[:2], *others]).values():
            handle.result(60)
    groups = {frozenset(name for name, _ in rows) for rows in watch.of("denoise")}
    alone = {frozenset({"exact"}), frozenset({"large"})}
    assert alone <= groups and frozenset({"r0", "r1"}) in groups
    assert all(group <= {"r0", "r1"} for group in groups - alone)


@pytest.mark.parametrize("where", ["loop", "plan", "engine", "one plan"])
def test_the_smallest_limit_of_a_batch_holds(where, card, watch, made_up, with_loop, alone):
    class Loop(denoise.DenoiseLoop):
        def next(self, state):
            plan = super().next(state)
            if not hasattr(plan, "max_batch") or (where == "one plan" and state.scope.parent.scope_id != "r1"):
                return plan
            return dataclasses.replace(plan, max_batch=2)

    options = RuntimeOptions(SchedulerConfig(max_batch=2)) if where == "engine" else None
    if where == "loop":
        card = with_loop(card, "denoise", max_batch=2)
    elif where != "engine":
        card = with_loop(card, "denoise", loop=made_up("Loop", Loop))
    with Engine.open(card, options=options) as engine:
        for name, handle in together(engine, watch, requests_of(engine)).items():
            assert_same(handle.result(60), alone[False][name])
    for rows in watch.of("denoise"):
        limited = where != "one plan" or any(name == "r1" for name, _ in rows)
        assert len(rows) <= (2 if limited else 4)
    assert max(watch.sizes("denoise")) == (3 if where == "one plan" else 2)


def test_a_loop_decides_which_unequal_steps_share_a_call(card, watch, made_up, with_loop):
    def same_length(one, other):
        return one.num_steps == other.num_steps

    with Engine.open(with_loop(card, "denoise", can_batch=made_up("same_length", same_length))) as engine:
        requests = requests_of(engine)
        requests += [one.model_copy(update={"request_id": f"{one.request_id}-again"}) for one in requests]
        for handle in together(engine, watch, requests).values():
            handle.result(60)
    assert {frozenset(name for name, _ in rows) for rows in watch.of("denoise")} == {
        frozenset({f"r{n}", f"r{n}-again"}) for n in range(4)
    }


def test_who_may_share_a_call_is_asked_of_the_loop_and_its_failure_ends_nobody(card, watch, made_up, with_loop, alone):
    def broken(one, other):
        raise ZeroDivisionError("no idea")

    with Engine.open(with_loop(card, "denoise", can_batch=made_up("broken", broken))) as engine:
        for name, handle in together(engine, watch, requests_of(engine)).items():
            assert_same(handle.result(60), alone[False][name])
    assert set(watch.sizes("denoise")) == {1}


def spoil(fault, bad="r1", at=1):
    """Return what makes one request's denoise step fail, alone or with others."""

    def change(loop_id, plans, results):
        hit = [loop_id == "denoise" and (name_of(plan), plan.step_index) == (bad, at) for plan in plans]
        if any(hit) and fault == "error":
            raise ValueError("one row cannot")
        if any(hit) and fault == "memory":
            raise torch.OutOfMemoryError("full")
        if any(hit):  # what its peers are given in the same call is wrong as well
            wrong = [denoise.DenoiseValues(one.values.latents_1CTHW + 1) for one in results]
            results = [dataclasses.replace(one, values=values) for one, values in zip(results, wrong, strict=True)]
        return [dataclasses.replace(one, is_finite=not is_hit) for one, is_hit in zip(results, hit, strict=True)]

    return change


@pytest.mark.parametrize(
    ("fault", "error"), [("nan", NonFiniteError), ("error", ExecutionError), ("memory", OutOfMemoryError)]
)
def test_peers_of_a_failed_row_get_what_they_get_alone(fault, error, card, watch, alone):
    watch.change = spoil(fault)
    with Engine.open(card) as engine:
        handles = together(engine, watch, requests_of(engine))
        with pytest.raises(error, match="request:r1/loop:denoise: step 2 of 4 of denoise"):
            handles.pop("r1").result(60)
        for name, handle in handles.items():
            assert_same(handle.result(60), alone[False][name])
        watch.change = None
        assert_same(engine.submit(requests_of(engine)[1]).result(60), alone[False]["r1"])
    assert watch.sizes("denoise")[:2] == [4, 4]


def test_a_batch_for_which_memory_is_short_is_halved(card, watch, alone):
    def change(loop_id, plans, results):
        if loop_id == "denoise" and len(plans) > 2:
            raise torch.OutOfMemoryError("too many")
        return results

    watch.change = change
    with Engine.open(card) as engine:
        for name, handle in together(engine, watch, requests_of(engine)).items():
            assert_same(handle.result(60), alone[False][name])
    assert watch.sizes("denoise")[:3] == [4, 2, 2]


def test_what_a_call_that_found_no_memory_held_is_free_before_its_halves_run(card, watch):
    held, alive = [], []

    def change(loop_id, plans, results):
        if loop_id == "denoise":
            alive.append(sum(ref() is not None for ref in held))
            if len(plans) > 2:
                activations = torch.zeros(1000)
                held.append(weakref.ref(activations))
                raise torch.OutOfMemoryError("too many")
        return results

    watch.change = change
    gc.collect()
    gc.disable()
    try:
        with Engine.open(card) as engine:
            for handle in together(engine, watch, requests_of(engine)).values():
                handle.result(60)
    finally:
        gc.enable()
    assert held
    assert set(alive) == {0}


def test_a_failed_request_hands_its_latents_out(card, watch, made_up, with_loop, alone):
    def broken(instance, plans, ctx):
        if any(name_of(plan) == "r1" for plan in plans):
            raise ValueError("no picture")
        return decode.run_step(instance, plans, ctx)

    with Engine.open(with_loop(card, "decode", step=made_up("broken", broken))) as engine:
        handles = together(engine, watch, [one.model_copy(update={"outputs": one.outputs.model_copy(update={
            "artifacts": ("video",)})}) for one in requests_of(engine)])  # fmt: skip
        with pytest.raises(ExecutionError, match="loop:decode: step 1 of 3 of decode failed: ValueError") as caught:
            handles.pop("r1").result(60)
        for name, handle in handles.items():
            assert np.array_equal(handle.result(60).video.frames, alone[False][name].video.frames)
    (saved,) = caught.value.artifacts.values()
    assert np.array_equal(saved.latents, alone[False]["r1"].latents.latents)
    assert (saved.name, saved.provenance.request_id) == ("latents", "r1")


def test_a_loop_that_can_goes_on_with_less_memory(card, made_up, with_loop, watch, alone):
    shrunk = []

    class Loop(decode.DecodeLoop):
        def apply(self, state, event):
            assert isinstance(event, OutOfMemory)
            shrunk.append((state.scope.parent.scope_id, event.message))
            return state

    def short(instance, plans, ctx):
        if any(name_of(plan) == "r2" and plan.step_index == 1 for plan in plans) and not shrunk:
            raise torch.OutOfMemoryError("full")
        return decode.run_step(instance, plans, ctx)

    changed = with_loop(card, "decode", loop=made_up("Loop", Loop), step=made_up("short", short))
    with Engine.open(changed) as engine:
        for name, handle in together(engine, watch, requests_of(engine)).items():
            assert_same(handle.result(60), alone[False][name])
    ((name, message),) = shrunk
    assert name == "r2" and "step 2 of 3 of decode ran out of memory: full" in message


def estimate(spec, model, parameters, inputs, *, exact):
    return LoopEstimate((), resident_bytes=60, peak_bytes=parameters["num_inference_steps"])


@pytest.fixture
def metered(card, made_up, with_loop):
    """The card, whose denoising holds 60 bytes and takes one more for each step that it makes."""
    return with_loop(card, "denoise", estimate=made_up("estimate", estimate))


def small(**scheduler):
    return RuntimeOptions(SchedulerConfig(**scheduler), memory_bytes=100)


def test_two_that_fit_alone_and_not_together_run_one_after_the_other(metered, watch, alone):
    with Engine.open(metered, options=small()) as engine:
        for name, handle in together(engine, watch, requests_of(engine)).items():
            assert_same(handle.result(60), alone[False][name])
    order = [rows[0][0] for rows in watch.of("denoise")]
    assert set(watch.sizes("denoise")) == {1}
    assert order == sorted(order), "each ends before the next one starts"


def test_a_request_that_can_never_fit_is_refused_at_once(metered, watch):
    watch.go.set()
    with Engine.open(metered, options=small()) as engine:
        too_large = engine.make_request("x", request_id="big", parameters={"num_inference_steps": 41})
        with pytest.raises(
            ResourceError, match="^request big needs 101 .* besides the weights; 100 .* are there for all"
        ):
            engine.submit(too_large)
        fits = too_large.model_copy(update={"parameters": {"num_inference_steps": 40}})
        assert engine.submit(fits).result(60).video, "its id is free again"


def test_a_full_queue_refuses_and_says_when_to_come_back(metered, watch):
    with Engine.open(metered, options=small(max_queued=2)) as engine:
        handles = [engine.submit(one) for one in requests_of(engine)[:3]]  # one runs, two wait
        with pytest.raises(
            QueueFullError, match="the queue is full: 2 requests wait; allowed: 2; come back in"
        ) as caught:
            engine.submit(engine.make_request("x"))
        assert caught.value.retry_after_s >= 0.1
        watch.go.set()
        assert all(handle.result(60).video for handle in handles)
        assert engine.generate("x").video


def test_a_burst_is_refused_only_where_it_would_wait(card, watch):
    """Requests that come all at once, with no decision between them, first take the places that are free."""
    handles, refused = [], []

    def burst(event):
        if event.type != "request.completed":
            return
        for _ in range(7):
            try:
                handles.append(engine.submit(engine.make_request("y", parameters={"num_frames": 1})))
            except QueueFullError as error:
                refused.append(error)

    watch.go.set()
    with Engine.open(card, options=RuntimeOptions(SchedulerConfig(max_running=4, max_queued=2))) as engine:
        engine.submit(engine.make_request("x"), on_event=burst).result(60)
        assert all(handle.result(60).video for handle in handles)
    assert (len(handles), len(refused)) in ((6, 1), (5, 2)), "the one that has just ended may still have its place"


def test_memory_that_a_call_still_uses_is_not_given_away(metered, watch):
    """A request of two nodes side by side is cancelled while one of them is on the device."""
    started = []
    image = np.zeros((32, 32, 3), np.uint8)
    with Engine.open(metered, options=small()) as engine:
        first = engine.submit(engine.make_request("x", image=image))
        assert watch.entered.wait(30)
        second = engine.submit(engine.make_request("y"), on_event=lambda event: started.append(event.type))
        first.cancel()
        with pytest.raises(CancelledError):
            first.result(10)
        time.sleep(0.05)
        assert "request.started" not in started, "the call of the first is still on the device"
        watch.go.set()
        assert second.result(60).video


def test_cancelling_frees_the_memory_at_once_when_nothing_else_runs(metered, watch):
    alive = []

    def change(loop_id, plans, results):
        alive.extend(weakref.ref(plan.payload.latents_1CTHW) for plan in plans if loop_id == "denoise")
        return results

    watch.change = change
    watch.go.set()
    gc.collect()
    gc.disable()
    try:
        with Engine.open(metered, options=small()) as engine:
            request = engine.make_request("x", parameters={"num_inference_steps": 40})
            handle = engine.submit(request, on_event=lambda event: alive and handle.cancel())
            with pytest.raises(CancelledError):
                handle.result(60)
            deadline = time.monotonic() + 5
            while any(ref() is not None for ref in alive) and time.monotonic() < deadline:
                time.sleep(0.001)
            assert alive and not any(ref() is not None for ref in alive)
            assert engine.generate("y").video, "and what it held is there for the next"
    finally:
        gc.enable()


def test_an_urgent_request_overtakes_at_the_next_step(card, watch):
    with Engine.open(card) as engine:
        slow = engine.make_request("x", request_id="slow", exact=True, parameters={"num_inference_steps": 30})
        quick = engine.make_request("y", request_id="quick", parameters={"num_inference_steps": 3})
        slow = slow.model_copy(update={"latency_class": "batch"})
        quick = quick.model_copy(update={"latency_class": "interactive"})
        handles = together(engine, watch, [slow, quick])
        for handle in handles.values():
            handle.result(60)
    order = [rows[0][0] for rows in watch.of("denoise")]
    assert order == ["quick"] * 3 + ["slow"] * 30


def test_of_one_class_the_earlier_deadline_goes_first(card, watch):
    with Engine.open(card) as engine:
        requests = [
            one.model_copy(update={"exact": bool(number), "deadline_s": due})
            for number, (one, due) in enumerate(zip(requests_of(engine)[:2], (500.0, 400.0), strict=True))
        ]
        for handle in together(engine, watch, requests).values():
            handle.result(60)
    order = [rows[0][0] for rows in watch.of("denoise")]
    assert order == ["r1"] * 4 + ["r0"] * 3


def test_a_class_that_the_engine_does_not_have_is_refused(card):
    options = RuntimeOptions(SchedulerConfig(classes={"standard": LatencyClass("standard", 0, patience_s=1.0)}))
    with Engine.open(card, options=options) as engine:
        request = engine.make_request("x").model_copy(update={"latency_class": "batch"})
        with pytest.raises(InputError, match="latency_class='batch': no such class; allowed: standard"):
            engine.submit(request)


@pytest.mark.parametrize("wish", [None, "a plan"])
def test_a_loop_that_asks_for_what_is_no_plan_ends_alone(wish, card, watch, made_up, with_loop, alone):
    class Loop(denoise.DenoiseLoop):
        def next(self, state):
            return wish if state.scope.parent.scope_id == "r1" else super().next(state)

    with Engine.open(with_loop(card, "denoise", loop=made_up("Loop", Loop))) as engine:
        handles = together(engine, watch, requests_of(engine))
        with pytest.raises(ExecutionError, match="request:r1/loop:denoise"):
            handles.pop("r1").result(60)
        for name, handle in handles.items():
            assert_same(handle.result(60), alone[False][name])


def test_a_plan_whose_cost_makes_no_sense_ends_its_request_alone(card, watch, made_up, with_loop, alone):
    class Loop(denoise.DenoiseLoop):
        def next(self, state):
            plan = super().next(state)
            if not hasattr(plan, "resources") or state.scope.parent.scope_id != "r1":
                return plan
            cost = dataclasses.replace(plan.resources.cost, flops=float("nan"))
            return dataclasses.replace(plan, resources=dataclasses.replace(plan.resources, cost=cost))

    with Engine.open(with_loop(card, "denoise", loop=made_up("Loop", Loop))) as engine:
        handles = together(engine, watch, requests_of(engine))
        with pytest.raises(Exception, match="flops"):
            handles.pop("r1").result(60)
        for name, handle in handles.items():
            assert_same(handle.result(60), alone[False][name])


def test_the_decisions_of_an_engine_replay(metered, watch, tmp_path, made_up, with_loop):
    card = with_loop(metered, "denoise", can_batch=made_up("any_two", lambda one, other: True))
    log, config = DecisionLog(), SchedulerConfig(max_running=3)
    watch.change = spoil("error")
    with Engine.open(card, options=RuntimeOptions(config, memory_bytes=200, log=log)) as engine:
        handles = together(engine, watch, requests_of(engine))
        handles["r3"].cancel()
        for handle in handles.values():
            with suppress(ExecutionError):
                handle.result(60)
    log.save(tmp_path / "log")
    records = DecisionLog.load(tmp_path / "log")
    assert {"submit", "start", "offer", "batch", "finished", "withdraw"} <= {record[0] for record in records}
    assert replay(records, config, Limits(memory_bytes=200), has_can_batch=True) > 20
