"""The engine with a store: what it keeps, and what it goes on with."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from fastvideo_core.errors import CancelledError, InputError, NonFiniteError, ResourceError
from fastvideo_core.request.base import OutputSpec
from fastvideo_core.runtime.durable import CheckpointPolicy, StateStore
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_testing.tiny.faults import faulty_card

EAGER = CheckpointPolicy(max_share=1e9, min_at_risk_s=0.0)
BOTH = OutputSpec(artifacts=("video", "latents"))


@pytest.fixture(scope="module")
def slow_instance(tiny_folder):
    """A model whose denoise steps take a moment, so that there is time to stop in the middle."""
    return load_instance(faulty_card(tiny_folder, step_s=0.003), device="cpu", precision="float32")


@pytest.fixture
def request_of(prepare, slow_instance):
    def make(request_id="a", **fields):
        request = prepare(request_id, exact=True, **fields).request.model_copy(update={"outputs": BOTH})
        return prepare_request(slow_instance.card, request)

    return make


@pytest.fixture
def alone(slow_instance):
    """What requests give alone, without a store."""

    def run(requests):
        with Engine(slow_instance) as engine:
            return {one.request.request_id: engine.submit_prepared(one).result() for one in requests}

    return run


def assert_same(result, expected):
    assert result.artifacts.keys() == expected.artifacts.keys()
    assert np.array_equal(result.video.frames, expected.video.frames)
    assert np.array_equal(result.latents.latents, expected.latents.latents)
    assert result.parameters.to_json() == expected.parameters.to_json()


class Stopper:
    """Notes that so many steps of all requests have been committed."""

    def __init__(self, num_steps):
        self._left = num_steps
        self.reached = threading.Event()

    def __call__(self, event):
        if event.type == "request.progress":
            self._left -= 1
            if self._left <= 0:
                self.reached.set()
        if event.type in ("request.completed", "request.failed"):
            self.reached.set()


def test_a_request_stays_until_its_outcome_is_safe(tmp_path, slow_instance, request_of, alone):
    prepared = request_of()
    expected = alone([prepared])["a"]
    with StateStore(tmp_path / "state", policy=EAGER) as store, Engine(slow_instance, store=store) as engine:
        result = engine.submit_prepared(prepared, note={"mine": 1}).result()
        assert_same(result, expected)
        assert store.holds("a")
        store.flush()
        assert store.totals.num_written >= 1
    with StateStore(tmp_path / "state") as store, Engine(slow_instance, store=store) as engine:
        (saved,) = store.load(engine.instance)
        assert saved.note == {"mine": 1}
        assert_same(engine.submit_saved(saved).result(), expected)
        store.finish("a")
        assert store.unfinished == ()


@pytest.mark.parametrize("task", ["text_to_video", "image_to_video"])
@pytest.mark.parametrize("num_steps", [1, 3, 5, 8])
def test_a_cancelled_request_loses_no_step(num_steps, task, tmp_path, slow_instance, request_of, alone):
    image = np.arange(16 * 24 * 3, dtype=np.uint8).reshape(16, 24, 3) if task == "image_to_video" else None
    prepared = request_of(image=image, parameters={"num_inference_steps": 8, "num_frames": 13})
    expected = alone([prepared])["a"]
    progress = []
    with StateStore(tmp_path / "state") as store, Engine(slow_instance, store=store) as engine:
        stopper = Stopper(num_steps)
        handle = engine.submit_prepared(prepared, on_event=stopper)
        assert stopper.reached.wait(30)
        handle.cancel("to be resumed")
        with pytest.raises(CancelledError):
            handle.result()
    with StateStore(tmp_path / "state") as store, Engine(slow_instance, store=store) as engine:
        (saved,) = store.load(engine.instance)
        result = engine.submit_saved(saved, on_event=progress.append).result()
        assert_same(result, expected)
    steps = [event for event in progress if event.type == "request.progress"]
    # Two prompts, eight steps, four latent frames; and the image.
    assert len(steps) <= 14 + (image is not None) - num_steps
    assert [event.fraction for event in steps] == sorted(event.fraction for event in steps)
    assert progress[-1].type == "request.completed"


@pytest.mark.parametrize("seed", range(3))
def test_many_requests_interrupted_at_random_give_what_each_gives_alone(
    seed, tmp_path, slow_instance, request_of, alone
):
    rng = random.Random(seed)
    requests = [
        request_of(
            f"r{index}",
            prompt=rng.choice(["a red circle", "a blue square", "x"]),
            parameters={
                "seed": rng.randrange(1000),
                "num_inference_steps": rng.randrange(1, 9),
                "num_frames": rng.choice([1, 5, 13]),
                "guidance_scale": rng.choice([1.0, 3.0]),
            },
        )
        for index in range(7)
    ]
    expected = alone(requests)
    found = {}
    todo = list(requests)
    for _ in range(60):
        with StateStore(tmp_path / "state", policy=EAGER) as store, Engine(slow_instance, store=store) as engine:
            stopper = Stopper(rng.randrange(3, 25))
            handles = [engine.submit_saved(saved, on_event=stopper) for saved in store.load(engine.instance)]
            while todo:
                handles.append(engine.submit_prepared(todo.pop(), on_event=stopper))
            if not handles:
                break
            stopper.reached.wait(30)
            for handle in handles:
                if handle.is_done:
                    found[handle.request_id] = handle.result()
                    store.finish(handle.request_id)
    assert found.keys() == expected.keys()
    for name, result in found.items():
        assert_same(result, expected[name])


def test_a_request_that_is_refused_is_not_kept(tmp_path, slow_instance, request_of):
    with StateStore(tmp_path / "state") as store, Engine(slow_instance, store=store) as engine:
        handle = engine.submit_prepared(request_of())
        with pytest.raises(InputError):
            engine.submit_prepared(request_of())
        handle.result()
        with pytest.raises(InputError, match="has a job of this id"):
            engine.submit_prepared(request_of())  # its outcome is not safe yet
        store.finish("a")
        engine.submit_prepared(request_of()).result()


def test_a_full_disk_refuses_what_comes_and_ends_nothing_that_runs(
    tmp_path, slow_instance, request_of, dying_disk, alone
):
    import errno

    problems = []
    disk = dying_disk(None, fails_with=errno.ENOSPC)
    expected = alone([request_of()])["a"]
    with (
        StateStore(tmp_path / "state", policy=EAGER, disk=disk, on_problem=problems.append) as store,
        Engine(slow_instance, store=store) as engine,
    ):
        stopper = Stopper(2)
        handle = engine.submit_prepared(request_of(), on_event=stopper)
        stopper.reached.wait(30)
        disk.fatal_call = 0
        with pytest.raises(ResourceError, match="no space left"):
            engine.submit_prepared(request_of("b"))
        assert_same(handle.result(), expected)
        store.flush()
        assert all(isinstance(problem, ResourceError) for problem in problems)
        assert len(problems) <= 1


def test_a_failed_request_is_kept_for_whoever_submitted_it_to_end(tmp_path, slow_instance, request_of):
    with StateStore(tmp_path / "state", policy=EAGER) as store, Engine(slow_instance, store=store) as engine:
        with pytest.raises(NonFiniteError):
            engine.submit_prepared(request_of("nan-1")).result()
        assert store.holds("nan-1")
        store.finish("nan-1", {"status": "failed"})
        assert store.outcomes == {"nan-1": {"status": "failed"}}
