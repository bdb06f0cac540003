from __future__ import annotations

import asyncio
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch

from fastvideo_core.errors import (
    CancelledError,
    ExecutionError,
    InputError,
    ResourceError,
)
from fastvideo_core.program import ArtifactNode, InlineProgram, InputEdge, ModelLoopNode, TensorEdge
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_core.runtime.run import GenerationResult
from fastvideo_core.runtime.scheduler.base import LatencyClass, SchedulerConfig, WorkerSlot
from fastvideo_testing.tiny import tiny_card
from fastvideo_testing.tiny.programs import TEXT_TO_VIDEO

TERMINAL = {"request.completed", "request.failed", "request.cancelled"}


@pytest.fixture
def card(tiny_folder):
    return tiny_card(tiny_folder)


@pytest.fixture
def engine(card):
    with Engine.open(card) as engine:
        yield engine


def bits(result):
    return {name: getattr(artifact, "frames", None) if hasattr(artifact, "frames") else artifact.latents
            for name, artifact in result.artifacts.items()}  # fmt: skip


ONE_BY_ONE = RuntimeOptions(SchedulerConfig(max_batch=1))
"""Results of a shared call may differ from those of a call alone in their last bits."""


def in_turn(max_running):
    """Return options under which requests are served in turn: who has no patience is."""
    classes = {"standard": LatencyClass("standard", 0, patience_s=0.0)}
    return RuntimeOptions(SchedulerConfig(max_running=max_running, max_batch=1, classes=classes))


def assert_same(one, other):
    first, second = bits(one), bits(other)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


BOTH = ("video", "latents")
IMAGE = np.random.default_rng(1).integers(0, 256, (32, 32, 3), np.uint8)
REQUESTS = {
    "plain": {"prompt": "a", "seed": 1},
    "long": {"prompt": "b", "seed": 2, "num_inference_steps": 9},
    "short": {"prompt": "c", "seed": 3, "num_inference_steps": 1, "guidance_scale": 1.0},
    "large": {"prompt": "d", "seed": 4, "height": 48, "num_frames": 13},
    "image": {"prompt": "e", "seed": 5, "image": IMAGE},
    "exact": {"prompt": "f", "seed": 6, "exact": True, "guidance_scale": 7.5},
}


def make(engine, name):
    said = dict(REQUESTS[name])
    head = {key: said.pop(key) for key in ("prompt", "image", "exact") if key in said}
    return engine.make_request(**head, outputs=BOTH, parameters=said, request_id=name)


@pytest.fixture(scope="module")
def alone(tiny_folder):
    """What each request gives on an engine of its own."""
    results = {}
    for name in REQUESTS:
        with Engine.open(tiny_card(tiny_folder)) as engine:
            results[name] = engine.submit(make(engine, name)).result(60)
    return results


@pytest.mark.parametrize("max_running", [1, 3, 6])
def test_requests_together_give_what_each_gives_alone(max_running, card, alone):
    order = []

    def note(name, plan, value):
        if name in ("velocity", "pixels"):
            order.append(plan.cancel_scope.parent.scope_id)

    with Engine.open(card, options=in_turn(max_running), tap=note) as engine:
        handles = {name: engine.submit(make(engine, name)) for name in REQUESTS}
        for name, handle in handles.items():
            assert_same(handle.result(60), alone[name])
    runs = sum(first != second for first, second in pairwise(order)) + 1
    assert (runs == len(REQUESTS)) == (max_running == 1), "steps of several requests alternate"


def test_what_is_said_twice_is_the_same_video(engine):
    first, second = (engine.generate("x", seed=5, outputs=BOTH) for _ in range(2))
    assert_same(first, second)
    assert first.request_id != second.request_id


def test_a_result_tells_what_ran(engine):
    result = engine.generate("x", num_frames=5, outputs=("latents", "video"))
    assert isinstance(result, GenerationResult)
    assert set(result.artifacts) == {"latents", "video"}
    assert result.video is result.artifacts["video"]
    assert result.latents.latents.shape == (4, 2, 4, 4)
    assert result.seed == result.parameters["seed"]
    assert result.parameters.source("seed") == "engine"
    assert set(result.node_durations_s) == {"text", "denoise", "decode"}
    assert all(0 <= seconds <= result.duration_s for seconds in result.node_durations_s.values())
    assert_same(engine.generate("x", num_frames=5, outputs=("latents", "video"), seed=result.seed), result)


def test_an_artifact_that_was_not_asked_for_is_told_by_name(engine):
    with pytest.raises(InputError, match="outputs='latents': not among the request's outputs; allowed: video"):
        _ = engine.generate("x", num_frames=5).latents


def test_an_artifact_tells_all_that_made_it(engine):
    request = engine.make_request(
        "a red circle", outputs=BOTH, parameters={"num_frames": 5, "fps": 12}, request_id="mine"
    )
    request = request.model_copy(update={"node_overrides": {"denoise": {"guidance_scale": 1.5}}})
    result = engine.submit(request).result(60)
    for name in BOTH:
        provenance = result.artifacts[name].provenance
        assert (provenance.node, provenance.request_id, provenance.task) == (name, "mine", "text_to_video")
        assert (provenance.card_id, provenance.card_version) == ("tiny", "1")
        assert provenance.weights_version == engine.instance.weights_version != ""
        assert provenance.seed == result.seed
        assert {"python", "torch", "fastvideo-core"} <= set(provenance.software)
        records = {name: (record.value, record.source) for name, record in provenance.parameters.items()}
        resolved = {n: (item["value"], item["source"]) for n, item in result.parameters.to_json().items()}
        assert records == {
            **resolved,
            "prompt": ("a red circle", "request"),
            "precision": ("float32", "engine"),
            "exact": (False, "request"),
            "denoise.guidance_scale": (1.5, "request"),
        }
        assert provenance.title == "a red circle"
    assert result.video.fps == 12
    again = engine.generate("a red circle", outputs=BOTH, num_frames=5, fps=12, guidance_scale=1.5, seed=result.seed)
    with pytest.raises(AssertionError):
        assert_same(again, engine.generate("a red circle", outputs=BOTH, num_frames=5, fps=12, seed=result.seed))


def test_events_come_in_order(engine):
    handle = engine.submit(engine.make_request("x", outputs=BOTH, parameters={"num_frames": 9}))
    events = list(handle.events())
    assert [event.sequence for event in events] == list(range(len(events)))
    assert {event.request_id for event in events} == {handle.request_id}
    times = [event.time_s for event in events]
    assert times == sorted(times)
    types = [event.type for event in events]
    assert types[:2] == ["request.accepted", "request.started"]
    assert [kind for kind in types if kind in TERMINAL] == ["request.completed"] == types[-1:]
    progress = [event for event in events if event.type == "request.progress"]
    steps = [(event.node, event.step, event.num_steps) for event in progress]
    assert steps == [
        *(("text", i, 2) for i in (1, 2)), *(("denoise", i, 4) for i in (1, 2, 3, 4)),
        *(("decode", i, 3) for i in (1, 2, 3)),
    ]  # fmt: skip
    fractions = [event.fraction for event in progress]
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1.0)
    assert all(event.remaining_s >= 0 for event in progress)
    assert progress[-1].remaining_s == pytest.approx(0.0, abs=1e-6)
    media = [kind for kind in types if kind.startswith("media.")]
    assert media == ["media.init", "media.chunk", "media.chunk", "media.chunk", "media.complete"]
    assert {event.name for event in events if event.type == "artifact.created"} == set(BOTH)
    assert events[0].parameters["num_frames"] == {"value": 9, "source": "request"}
    assert set(events[-1].artifacts) == set(BOTH)


def test_an_artifact_is_announced_after_all_that_led_to_it(engine):
    handles = [engine.submit(engine.make_request("x", outputs=BOTH, parameters={"seed": seed})) for seed in range(8)]
    for handle in handles:
        events = list(handle.events())
        made = {event.name: event.sequence for event in events if event.type == "artifact.created"}
        steps = {event.node: event.sequence for event in events if event.type == "request.progress"}
        (streamed,) = (event.sequence for event in events if event.type == "media.complete")
        assert steps["denoise"] < made["latents"]
        assert max(steps["decode"], streamed) < made["video"]


def test_chunks_are_the_video(engine):
    handle = engine.submit(engine.make_request("x"))
    chunks = [event for event in handle.events() if event.type == "media.chunk"]
    assert np.array_equal(np.concatenate([chunk.data.numpy() for chunk in chunks]), handle.result().video.frames)
    assert [chunk.start_s for chunk in chunks[1:]] == [chunk.end_s for chunk in chunks[:-1]]
    assert chunks[-1].end_s == pytest.approx(len(handle.result().video.frames) / 8)


def test_events_are_read_again_and_by_several(engine):
    handle = engine.submit(engine.make_request("x"))
    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(lambda: list(handle.events())) for _ in range(4)]
        first, *others = [reader.result(60) for reader in readers]
    assert first[-1].type == "request.completed"
    assert all(other == first for other in others)
    assert list(handle.events()) == first
    assert list(handle.events(after=first[-3].sequence)) == first[-2:]
    assert list(handle.events(after=first[-1].sequence)) == []
    assert handle.stream.read(after=first[-2].sequence) == first[-1:]


def test_callbacks_are_given_the_same_events(engine):
    seen = []
    handle = engine.submit(engine.make_request("x"), on_event=seen.append)
    assert list(handle.events()) == seen
    seen = []
    engine.generate("x", on_event=seen.append)
    assert seen[-1].type == "request.completed"


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(1), KeyboardInterrupt()])
def test_a_callback_that_raises_harms_nothing_and_is_told_of(error, engine, caplog):
    calls = []

    def raises(event):
        calls.append(event)
        raise error

    other = engine.submit(engine.make_request("y", parameters={"seed": 1}))
    handle = engine.submit(engine.make_request("x", request_id="loud", parameters={"seed": 1}), on_event=raises)
    assert handle.result(60).video
    assert other.result(60).video
    assert [event.type for event in calls] == ["request.accepted"]
    assert [event.type for event in handle.events()][-1] == "request.completed"
    (record,) = [record for record in caplog.records if record.name.startswith("fastvideo_core")]
    assert "request:loud: the event callback failed and is not called again" in record.getMessage()
    assert record.exc_info[1] is error


def test_an_id_is_in_use_while_its_request_runs(engine):
    request = engine.make_request("x", request_id="same", parameters={"num_inference_steps": 200})
    handle = engine.submit(request)
    with pytest.raises(InputError, match="request_id='same': a request of this id is running"):
        engine.submit(request)
    handle.cancel()
    with pytest.raises(CancelledError):
        handle.result(60)
    again = engine.submit(request.model_copy(update={"parameters": {}}))
    assert again.result(60).request_id == "same"


def test_no_more_run_at_a_time_than_may(card):
    running, most = set(), []

    def note(event):
        if event.type == "request.started":
            running.add(event.request_id)
            most.append(len(running))
        elif event.type in TERMINAL:
            running.discard(event.request_id)

    with Engine.open(card, options=in_turn(2)) as engine:
        handles = [engine.submit(engine.make_request("x"), on_event=note) for _ in range(6)]
        first = [next(handle.events()) for handle in handles]
        for handle in handles:
            handle.result(60)
    assert {event.type for event in first} == {"request.accepted"}, "what waits has been accepted"
    assert (max(most), len(most)) == (2, 6)
    with pytest.raises(InputError, match="max_running=0: too few; allowed: 1 or more; nearest: 1"):
        Engine.open(card, max_running=0)


def test_results_can_be_awaited(engine):
    async def main():
        handles = [engine.submit(engine.make_request("x", parameters={"seed": seed})) for seed in range(3)]
        results = await asyncio.gather(*handles)
        assert [result.seed for result in results] == [0, 1, 2]
        assert await handles[0] is results[0]
        handles[0].cancel()
        gone = engine.submit(engine.make_request("x", parameters={"num_inference_steps": 500}))
        gone.cancel("no longer")
        with pytest.raises(CancelledError, match="no longer"):
            await gone

    asyncio.run(main())


def test_an_awaiter_that_is_cancelled_cancels_the_request(engine):
    handle = engine.submit(engine.make_request("x", parameters={"num_inference_steps": 1000}))

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle, 0.05)

    asyncio.run(main())
    with pytest.raises(CancelledError, match="whoever awaited it was cancelled"):
        handle.result(60)


def test_a_loop_that_ends_before_the_result_is_no_trouble(engine, caplog):
    handle = engine.submit(engine.make_request("x"))

    async def main():
        waiting = asyncio.ensure_future(handle)
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(main())
    with pytest.raises(CancelledError):
        handle.result(60)
    assert not caplog.records


def test_a_result_may_be_waited_for_with_a_limit(engine):
    handle = engine.submit(engine.make_request("x", parameters={"num_inference_steps": 1000}))
    with pytest.raises(TimeoutError):
        handle.result(0.01)
    assert not handle.is_done
    handle.cancel()
    with pytest.raises(CancelledError):
        handle.result(60)
    assert handle.is_done


def test_many_threads_use_one_engine(card, alone):
    failures = []
    with Engine.open(card, options=ONE_BY_ONE) as engine:

        def work(name):
            try:
                assert_same(engine.submit(make(engine, name)).result(60), alone[name])
                with pytest.raises(InputError):
                    engine.generate("x", steps=3)
            except BaseException as error:  # noqa: BLE001 - told in the main thread
                failures.append(error)

        threads = [threading.Thread(target=work, args=(name,)) for name in REQUESTS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert failures == []


def test_a_closed_engine_takes_no_requests_and_keeps_no_model(card):
    engine = Engine.open(card)
    alive = weakref.ref(engine.instance)
    threads = {thread.name for thread in threading.enumerate()}
    assert {"fastvideo-control"} <= threads
    request = engine.make_request("x")
    result = engine.submit(request)
    failed = engine.submit(engine.make_request("x", parameters={"num_inference_steps": 500}))
    failed.cancel()
    assert result.result(60).video
    with pytest.raises(CancelledError):
        failed.result(60)
    engine.close()
    engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fastvideo-")]
    with pytest.raises(ResourceError, match="the engine is closed; open another one"):
        engine.submit(request)
    with pytest.raises(ResourceError, match="the engine is closed"):
        _ = engine.instance
    assert engine.card is card
    assert alive() is None, "neither the engine nor the handles hold on to it"
    assert result.result().video
    result.cancel()


def test_closing_cancels_what_runs_and_what_waits(card):
    engine = Engine.open(card, max_running=1)
    slow = {"num_inference_steps": 1000}
    handles = [engine.submit(engine.make_request("x", parameters=slow)) for _ in range(3)]
    wait_for(handles[0], "request.progress")
    engine.close()
    for handle in handles:
        assert handle.is_done
        with pytest.raises(CancelledError, match="request:.*: the engine was closed"):
            handle.result(0)
    for handle in handles[1:]:
        assert [event.type for event in handle.events()] == ["request.accepted", "request.cancelled"]


def wait_for(handle, event_type):
    for event in handle.events():
        if event.type == event_type:
            return event
    raise AssertionError(f"no {event_type}")


def test_a_callback_cannot_close_its_own_engine(card):
    raised = []
    with Engine.open(card) as engine:

        def close(event):
            try:
                engine.close()
            except ExecutionError as error:
                raised.append(str(error))

        assert engine.generate("x", on_event=close).video
    assert raised[0] == "an event's callback cannot close the engine that calls it; close it elsewhere"


def test_a_callback_may_submit(card):
    followers = []
    with Engine.open(card) as engine:

        def follow(event):
            if event.type == "request.completed":
                followers.append(engine.submit(engine.make_request("y")))

        engine.generate("x", on_event=follow)
        while not followers:
            time.sleep(0.001)
        assert followers[0].result(60).video


def test_nodes_that_do_not_depend_on_each_other_run_side_by_side(card, made_up, with_task):
    order = []
    edges = {"embeds": TensorEdge(node="text", output="embeds")}
    program = InlineProgram(
        program_id="two",
        nodes=(
            ArtifactNode(node_id="video", modality="latents", source=TensorEdge(node="b", output="latents")),
            ArtifactNode(node_id="latents", modality="latents", source=TensorEdge(node="a", output="latents")),
            ModelLoopNode(node_id="b", loop="denoise", inputs=edges),
            ModelLoopNode(node_id="a", loop="denoise", inputs=edges),
            ModelLoopNode(node_id="text", loop="text", inputs={"prompt": InputEdge(name="prompt")}),
        ),
    )
    two = with_task(card, program=made_up("PROGRAM", program))
    with Engine.open(two, tap=lambda name, plan, value: order.append(plan.cancel_scope.scope_id)) as engine:
        request = engine.make_request("x", outputs=BOTH, parameters={"seed": 1})
        request = request.model_copy(update={"node_overrides": {"b": {"seed": 2, "guidance_scale": 4.5}}})
        result = engine.submit(request).result(60)
    assert order[:2] == ["text", "text"]
    assert sorted(order[2:4]) == ["a", "b"]
    assert order[2:] == order[2:4] * 4
    with Engine.open(card) as engine:
        a = engine.generate("x", seed=1, outputs=["latents"]).latents.latents
        b = engine.generate("x", seed=2, guidance_scale=4.5, outputs=["latents"]).latents.latents
    assert np.array_equal(result.latents.latents, a)
    assert np.array_equal(result.video.latents, b)


def test_an_optional_input_that_is_absent_reaches_its_node_as_none(card, made_up, with_task):
    nodes = {node.node_id: node for node in TEXT_TO_VIDEO.nodes}
    image = ModelLoopNode(
        node_id="image", loop="image", inputs={"image": InputEdge(name="image")}, requires_input="image"
    )
    condition = TensorEdge(node="image", output="condition")
    denoise = nodes["denoise"].model_copy(update={"inputs": {**nodes["denoise"].inputs, "condition": condition}})
    program = InlineProgram(program_id="both", nodes=(*({**nodes, "denoise": denoise}).values(), image))
    inputs = dict(card.task("image_to_video").inputs)
    inputs["image"] = inputs["image"].model_copy(update={"required": False})
    both = with_task(card, "image_to_video", program=made_up("PROGRAM", program), inputs=inputs)
    with Engine.open(both) as engine:
        events = []
        without = engine.generate("x", seed=1, task="image_to_video", on_event=events.append)
        assert_same(without, engine.generate("x", seed=1, task="text_to_video"))
        progress = [event for event in events if event.type == "request.progress"]
        assert {event.node for event in progress} == {"text", "denoise", "decode"}
        assert progress[-1].fraction == pytest.approx(1.0)
        with_image = engine.generate("x", seed=1, task="image_to_video", image=IMAGE)
        with pytest.raises(AssertionError):
            assert_same(without, with_image)


@pytest.mark.parametrize(("captures", "profile"), [(False, "serve"), (True, "rollout")])
def test_the_profile_follows_the_request(captures, profile, card, with_loop):
    plans = []
    card = with_loop(card, "denoise", behavior_schema="fastvideo_testing.tiny.denoise:DenoiseValues")
    with Engine.open(card, tap=lambda name, plan, value: plans.append(plan)) as engine:
        request = engine.make_request("x", exact=True)
        outputs = request.outputs.model_copy(update={"capture_behavior": captures})
        engine.submit(request.model_copy(update={"outputs": outputs})).result(60)
    denoise = [plan for plan in plans if plan.loop_id == "denoise"]
    assert {(plan.profile, plan.batch_key.profile, plan.batch_key.variant) for plan in denoise} == {
        (profile, profile, "exact")
    }


def test_behaviour_that_no_loop_records_is_refused(engine):
    request = engine.make_request("x")
    outputs = request.outputs.model_copy(update={"capture_behavior": True})
    with pytest.raises(InputError, match="capture_behavior=True: no loop of task text_to_video records its behaviour"):
        engine.submit(request.model_copy(update={"outputs": outputs}))


def test_latents_of_a_finished_request_are_let_go(card):
    alive = []
    card = card.model_copy(update={"caches": {}})  # encoded prompts are kept for others
    with Engine.open(card, tap=lambda name, plan, value: alive.append(weakref.ref(value))) as engine:
        handle = engine.submit(engine.make_request("x"))
        assert handle.result(60).video
        deadline = time.monotonic() + 5
        while any(ref() is not None for ref in alive) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert [ref() for ref in alive if ref() is not None] == []
        assert isinstance(handle.result().video.frames, np.ndarray)
    assert torch.is_grad_enabled()


def test_workers_may_be_told_which_steps_they_take(card, monkeypatch):
    names = set()
    small, every = WorkerSlot(cost_classes=frozenset({"small"})), WorkerSlot()
    with Engine.open(card, options=RuntimeOptions(SchedulerConfig(jumbo_s=1e-9), workers=(small, every))) as engine:
        for loop_id, body in tuple(engine.instance.steps.items()):

            def run(instance, plans, ctx, body=body):
                names.add(threading.current_thread().name)
                return body(instance, plans, ctx)

            monkeypatch.setitem(engine.instance.steps, loop_id, run)
        engine.generate("x", seed=1)
    assert names == {"fastvideo-device-1"}, "every step is a jumbo one, and only the second worker takes those"
    with pytest.raises(InputError, match="no worker of pool main takes jumbo steps"):
        Engine.open(card, options=RuntimeOptions(workers=(small,)))


def test_a_stuck_engine_does_not_respond(card):
    entered, go_on = threading.Event(), threading.Event()

    def hold(event):
        entered.set()
        assert go_on.wait(30)

    engine = Engine.open(card)
    assert engine.responds(10)
    submitting = threading.Thread(target=lambda: engine.submit(engine.make_request("x"), on_event=hold))
    submitting.start()
    assert entered.wait(30)
    assert not engine.responds(0.05)
    go_on.set()
    submitting.join(30)
    assert engine.responds(10)
    engine.close()
    assert not engine.responds(10)
