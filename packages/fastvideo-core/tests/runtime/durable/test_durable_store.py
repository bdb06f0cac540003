from __future__ import annotations

import errno
import logging
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from fastvideo_core.errors import InputError, OutputError, ResourceError, StateError
from fastvideo_core.runtime.durable import CheckpointPolicy, FinishedNode, RefusedJob, RunningNode, SavedJob, StateStore
from fastvideo_core.runtime.durable import store as store_module
from fastvideo_core.runtime.durable.disk import Disk
from fastvideo_core.runtime.loading import load_instance
from fastvideo_testing.tiny import tiny_card, write_tiny_checkpoint


@pytest.fixture
def place(tmp_path):
    return tmp_path / "state"


def same_results(first, second):
    assert first.keys() == second.keys()
    for node in first:
        assert first[node].keys() == second[node].keys()
        for name in first[node]:
            a, b = first[node][name], second[node][name]
            a, b = (a, b) if isinstance(a, tuple) else ((a,), (b,))
            assert len(a) == len(b)
            assert all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


def load_one(store, instance):
    (saved,) = store.load(instance)
    return saved


@pytest.mark.parametrize("task", ["text_to_video", "image_to_video"])
def test_a_job_goes_on_from_every_step_with_the_same_bits(task, place, prepare, instance, by_hand, write_inline):
    image = None if task == "text_to_video" else np.arange(16 * 24 * 3, dtype=np.uint8).reshape(16, 24, 3)
    prepared = prepare(image=image, exact=True, parameters={"num_frames": 9})
    expected = by_hand(instance, prepared).result()
    num_steps = sum(1 for _ in by_hand(instance, prepared).steps())
    for stop in range(num_steps + 1):
        with StateStore(place / str(stop)) as store:
            store.accept(prepared, instance)
            run = by_hand(instance, prepared)
            for index, _ in enumerate(run.steps(), start=1):
                if index <= stop:
                    assert store.checkpoint("a", run.nodes)
                if index == stop:
                    break
        with StateStore(place / str(stop)) as store:
            saved = load_one(store, instance)
            assert len(saved.nodes) > 0 if stop else saved.nodes == {}
            same_results(by_hand.resumed(instance, saved).result(), expected)


def test_a_finished_node_is_not_run_again(place, prepare, instance, by_hand, write_inline):
    prepared = prepare()
    run = by_hand(instance, prepared)
    run.result()
    with StateStore(place) as store:
        store.accept(prepared, instance)
        store.checkpoint("a", run.nodes)
    with StateStore(place) as store:
        saved = load_one(store, instance)
        assert all(isinstance(node, FinishedNode) for node in saved.nodes.values())
        assert list(by_hand.resumed(instance, saved).steps()) == []


def test_jobs_come_back_in_the_order_of_acceptance_with_their_notes(place, prepare, instance):
    names = ["b", "a", "C", "c", "10", "9"]
    with StateStore(place) as store:
        for index, name in enumerate(names):
            store.accept(prepare(name), instance, note={"line": index})
        assert store.unfinished == tuple(names)
        assert all(store.holds(name) for name in names)
        store.finish("a")
        assert not store.holds("a")
    with StateStore(place) as store:
        assert not store.holds("b")
        saved = store.load(instance)
        assert [(job.job_id, job.note) for job in saved] == [("b", {"line": 0}), ("C", {"line": 2}), ("c", {"line": 3}),
                                                            ("10", {"line": 4}), ("9", {"line": 5})]  # fmt: skip
        assert store.load(instance) == []  # each is given out once
        store.accept(prepare("a"), instance)
        assert store.unfinished[-1] == "a"


def test_an_id_that_is_in_the_folder_is_refused(place, prepare, instance):
    with StateStore(place) as store:
        store.accept(prepare("a"), instance)
        store.accept(prepare("b"), instance)
        store.finish("b", {"status": "done"})
        for name in ("a", "b"):
            with pytest.raises(InputError, match=f"request_id='{name}': the state directory has a job of this id"):
                store.accept(prepare(name), instance)
    with StateStore(place) as store, pytest.raises(InputError, match="has a job of this id"):
        store.accept(prepare("a"), instance)  # also before it is loaded


def test_outcomes_stay_until_they_are_cleared(place, prepare, instance):
    with StateStore(place) as store:
        assert store.run is None
        store.describe({"output": "out"})
        store.accept(prepare("a"), instance)
        store.finish("a", {"status": "done", "files": ["a.mp4"]})
        store.record("bad", {"status": "refused"})
        store.finish("nobody", {"status": "done"})
    with StateStore(place) as store:
        assert store.run == {"output": "out"}
        assert store.outcomes == {"a": {"status": "done", "files": ["a.mp4"]}, "bad": {"status": "refused"}}
        assert store.load(instance) == []
        store.clear()
        assert (store.run, store.outcomes) == (None, {})
    with StateStore(place) as store:
        assert (store.run, store.outcomes) == (None, {})
        store.accept(prepare("a"), instance)


def test_a_second_user_of_the_folder_is_refused(place):
    with StateStore(place), pytest.raises(StateError, match=f"the state directory {place} is in use by process"):
        StateStore(place)
    StateStore(place).close()


@pytest.mark.parametrize("name", ["notes.txt", "jobs.bak", "checkpoint.json"])
def test_a_folder_of_something_else_is_left_alone(name, place):
    place.mkdir()
    (place / name).write_text("mine")
    with pytest.raises(StateError, match=f"is no state directory: it holds '{name}'; choose an empty or a new folder"):
        StateStore(place)
    assert (place / name).read_text() == "mine"


def test_a_place_where_no_folder_can_be(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="state_dir="):
        StateStore(tmp_path / "file" / "state")


def test_a_folder_of_another_version_is_refused(place):
    StateStore(place).close()
    marker = place / "store.json"
    marker.write_text(marker.read_text().replace("store/1", "store/9"))
    with pytest.raises(StateError, match=r"store.json is of format 'fastvideo-store/9'; this version reads"):
        StateStore(place)


def damage_nothing(folder):
    pass


def write(name, data):
    return lambda folder: (folder / name).write_bytes(data)


def cut(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def swap(name, other):
    return lambda folder: (folder / name).write_bytes((folder.parent / other / name).read_bytes())


def flip(name):
    def change(folder):
        data = bytearray((folder / name).read_bytes())
        data[-20] ^= 1
        (folder / name).write_bytes(data)

    return change


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (cut("job.json", 0), r"job.json is corrupt or something else \(0 bytes\)"),
        (cut("job.json", 100), "job.json is corrupt or something else"),
        (flip("job.json"), "job.json is corrupt"),
        (swap("job.json", "00000003-c"), "job.json is of another job, 'c'"),
        (lambda folder: (folder / "job.json").unlink(), "job.json cannot be read: No such file"),
        (cut("checkpoint.json", 50), "checkpoint.json is corrupt or something else"),
        (flip("checkpoint.json"), "checkpoint.json is corrupt"),
        (swap("checkpoint.json", "00000003-c"), "checkpoint.json is of another job, 'c'"),
        (cut("tensors-0.safetensors", 60), "tensors-0.safetensors is missing, corrupt or cut short"),
        (flip("tensors-0.safetensors"), "tensors-0.safetensors is corrupt: the digest of tensor"),
        (lambda folder: (folder / "tensors-0.safetensors").unlink(), "tensors-0.safetensors is missing"),
        (flip("inputs.safetensors"), "inputs.safetensors is corrupt: the digest of tensor image.pixels differs"),
    ],
)
def test_a_damaged_job_is_refused_by_name_and_harms_no_other(
    damage, text, place, prepare, instance, by_hand, write_inline
):
    image = np.zeros((16, 24, 3), np.uint8)
    with StateStore(place) as store:
        for name in "abc":
            prepared = prepare(name, image=image)
            store.accept(prepared, instance, note={"name": name})
            run = by_hand(instance, prepared)
            next(run.steps())
            store.checkpoint(name, run.nodes)
    damage(place / "jobs" / "00000002-b")
    with StateStore(place) as store:
        first, refused, last = store.load(instance)
        assert (first.job_id, last.job_id) == ("a", "c")
        assert isinstance(refused, RefusedJob)
        assert (refused.job_id, refused.is_aside) == ("b", True)
        assert str(refused.error).startswith("job b: ")
        with pytest.raises(StateError, match=text):
            raise refused.error
        assert str(place / "refused" / "00000002-b") in str(refused.error)
        assert not store.holds("b")
        by_hand.resumed(instance, first).result()
    assert (place / "refused" / "00000002-b").is_dir()
    with StateStore(place) as store:
        assert [job.job_id for job in store.load(instance)] == ["a", "c"]


def test_what_is_no_job_is_refused_too_and_never_takes_the_place_of_another(place, prepare, instance):
    for index in range(3):
        with StateStore(place) as store:
            store.accept(prepare(f"a{index}"), instance)
            (place / "jobs" / "stray").mkdir()
            refused = [job for job in store.load(instance) if isinstance(job, RefusedJob)]
            assert [job.job_id for job in refused] == ["stray"]
    assert sorted(path.name for path in (place / "refused").iterdir()) == ["stray", "stray.2", "stray.3"]


def test_a_damaged_outcome_is_put_aside_and_told_of(place, prepare, instance):
    with StateStore(place) as store:
        store.record("a", {"status": "done"})
        store.record("b", {"status": "done"})
    path = place / "outcomes" / "00000001-a.json"
    path.write_text("{}")
    problems = []
    with StateStore(place, on_problem=problems.append) as store:
        assert list(store.outcomes) == ["b"]
    assert [str(problem).startswith(f"{path} is corrupt") for problem in problems] == [True]
    assert (place / "refused" / "00000001-a.json").exists()


def test_another_model_is_refused_and_the_job_waits_for_its_own(place, prepare, instance, tmp_path):
    other = load_instance(write_tiny_checkpoint(tmp_path / "other", seed=5), device="cpu", precision="float32")
    coarse = load_instance(instance.card, device="cpu", precision="bfloat16")
    newer = load_instance(instance.card.model_copy(update={"version": "2"}), device="cpu", precision="float32")
    named = load_instance(instance.card.model_copy(update={"model_id": "small"}), device="cpu", precision="float32")
    with StateStore(place) as store:
        store.accept(prepare(), instance, note={"x": 1})
    for model, text in [
        (other, "job a began with weights text_encoder w1-"),
        (coarse, "job a began with precision 'float32', and 'bfloat16' is what there is now"),
        (newer, "job a began with card version '1', and '2' is what there is now"),
        (named, "job a began with card id 'tiny', and 'small' is what there is now"),
    ]:
        with StateStore(place) as store:
            refused = load_one(store, model)
            assert isinstance(refused, RefusedJob)
            assert str(refused.error).startswith(text)
            assert (refused.note, refused.is_aside) == ({"x": 1}, False)
    with StateStore(place) as store:
        assert isinstance(load_one(store, instance), SavedJob)


def test_other_software_is_told_of(place, prepare, instance, monkeypatch, caplog):
    with StateStore(place) as store:
        store.accept(prepare(), instance)
    from fastvideo_core.runtime.durable import base

    monkeypatch.setattr(base, "software_versions", lambda: {"torch": "0.1"})
    with StateStore(place) as store, caplog.at_level(logging.WARNING):
        assert isinstance(load_one(store, instance), SavedJob)
    assert "goes on under other versions of torch than it began" in caplog.text


def test_only_the_weights_of_the_task_count(place, prepare, instance, tiny_folder):
    with StateStore(place) as store:
        store.accept(prepare(), instance)
    part = load_instance(tiny_card(tiny_folder), device="cpu", precision="float32", tasks=["text_to_video"])
    with StateStore(place) as store:
        assert isinstance(load_one(store, part), SavedJob)


def test_a_checkpoint_is_due_when_the_policy_says_so_and_written_beside_the_steps(place, prepare, instance, by_hand):
    prepared = prepare()
    run = by_hand(instance, prepared)
    steps = run.steps()
    with StateStore(place, policy=CheckpointPolicy(max_share=0.5, min_at_risk_s=2.0)) as store:
        store.accept(prepared, instance)
        next(steps)
        assert not store.is_due("a", 1.5)
        assert not store.is_due("other", 1e9)
        assert store.is_due("a", 1.0)
        assert store.checkpoint("a", run.nodes)
        store.flush()
        assert not store.is_due("a", 1.5)
        assert store.is_due("a", 0.6)
        assert not store.checkpoint("other", run.nodes)
        assert (store.totals.compute_s, store.totals.num_written) == (pytest.approx(4.6), 1)
        assert 0 < store.totals.written_s < 1
        assert threading.active_count() >= 2
    assert not [thread for thread in threading.enumerate() if thread.name == "fastvideo-state"]
    with StateStore(place) as store:
        assert load_one(store, instance).nodes["text"].num_committed == 1


class SlowDisk(Disk):
    """A disk that holds every file back until it is let go."""

    def __init__(self):
        self.gate = threading.Event()

    def write(self, path, parts):
        if path.name.startswith("tensors"):
            assert self.gate.wait(30)
        return super().write(path, parts)


def test_while_one_is_written_none_is_due_and_one_more_may_wait(place, prepare, instance, by_hand):
    prepared = prepare()
    run = by_hand(instance, prepared)
    steps = run.steps()
    disk = SlowDisk()
    with StateStore(place, policy=CheckpointPolicy(max_share=1.0, min_at_risk_s=0.0), disk=disk) as store:
        store.accept(prepared, instance)
        next(steps)
        assert store.checkpoint("a", run.nodes)
        next(steps)
        assert not store.is_due("a", 100.0)
        next(steps)
        assert store.checkpoint("a", run.nodes)  # the last one of a request that is cancelled
        assert not store.checkpoint("a", run.nodes)
        disk.gate.set()
        store.flush()
        assert store.is_due("a", 0.0)
        next(steps)
        assert store.checkpoint("a", run.nodes)
    with StateStore(place) as store:
        saved = load_one(store, instance)
        assert (saved.nodes["text"].outputs is not None, saved.nodes["denoise"].num_committed) == (True, 2)
        same_results(by_hand.resumed(instance, saved).result(), by_hand(instance, prepared).result())


def test_finishing_waits_for_the_write_and_leaves_nothing(place, prepare, instance, by_hand):
    prepared = prepare()
    run = by_hand(instance, prepared)
    next(run.steps())
    disk = SlowDisk()
    with StateStore(place, disk=disk) as store:
        store.accept(prepared, instance)
        store.checkpoint("a", run.nodes)
        threading.Timer(0.05, disk.gate.set).start()
        store.finish("a")
        assert disk.gate.is_set()
        assert store.unfinished == ()
        assert list((place / "jobs").iterdir()) == []
        assert not store.checkpoint("a", run.nodes)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_is_full_ends_nothing(
    code, place, prepare, instance, by_hand, write_inline, dying_disk, monkeypatch
):
    problems = []
    disk = dying_disk(None, fails_with=code)
    prepared = prepare()
    run = by_hand(instance, prepared)
    steps = run.steps()
    policy = CheckpointPolicy(max_share=1e9, min_at_risk_s=0.0)
    with StateStore(place, policy=policy, on_problem=problems.append, disk=disk) as store:
        store.accept(prepared, instance)
        next(steps)
        store.checkpoint("a", run.nodes)
        next(steps)
        disk.fatal_call = 0
        assert store.is_due("a", 1.0)
        assert store.checkpoint("a", run.nodes)
        (problem,) = problems
        assert isinstance(problem, ResourceError)
        assert str(problem).endswith("job a goes on, and checkpoints are tried again in 60 s")
        assert not store.is_due("a", 1.0)
        with pytest.raises(ResourceError):
            store.accept(prepare("b"), instance)
        assert not store.holds("b")
        with pytest.raises(ResourceError):
            store.finish("a", {"status": "done"})
        assert store.holds("a")
        assert [path.name for path in (place / "jobs").iterdir()] == ["00000001-a"]
        now_s = time.monotonic()
        monkeypatch.setattr(store_module.time, "monotonic", lambda: now_s + 61)
        disk.fatal_call = None
        next(steps)
        assert store.is_due("a", 0.0)
        store.checkpoint("a", run.nodes)
    with StateStore(place) as store:
        assert load_one(store, instance).nodes["denoise"].num_committed == 1


def test_a_state_that_cannot_be_stored_ends_nothing(place, prepare, instance, by_hand, write_inline):
    problems = []
    prepared = prepare()
    run = by_hand(instance, prepared)
    next(run.steps())
    with StateStore(place, on_problem=problems.append) as store:
        store.accept(prepared, instance)
        store.checkpoint("a", run.nodes)
        node = run.nodes["text"]
        assert not store.checkpoint("a", {"text": RunningNode("text", replace(node.state, token_ids=object()), 2)})
        assert not store.checkpoint("a", run.nodes)
        (problem,) = problems
        assert str(problem).startswith("job a cannot be saved, and starts anew if interrupted: state.token_ids holds")
    with StateStore(place) as store:
        assert load_one(store, instance).nodes["text"].num_committed == 1


def test_without_a_listener_problems_are_logged(place, prepare, instance, write_inline, caplog):
    with StateStore(place) as store, caplog.at_level(logging.WARNING):
        store.accept(prepare(), instance)
        store.checkpoint("a", {"text": FinishedNode("text", {"nothing": 1})})
    assert "job a cannot be saved" in caplog.text


def test_a_request_that_cannot_be_stored_is_not_accepted(place, prepare, instance):
    with StateStore(place) as store:
        with pytest.raises(StateError, match="cannot be stored as JSON"):
            store.accept(prepare(), instance, note={"x": object()})
        assert store.unfinished == ()
        store.accept(prepare(), instance)


def test_a_held_job_is_read_again_as_it_was_at_its_last_checkpoint(place, prepare, instance, by_hand):
    prepared = prepare(exact=True)
    expected = by_hand(instance, prepared).result()
    run = by_hand(instance, prepared)
    steps = run.steps()
    with StateStore(place) as store:
        assert store.reload("a", instance) is None
        store.accept(prepared, instance)
        assert store.reload("a", instance).nodes == {}
        for _ in range(3):
            next(steps)
        store.checkpoint("a", run.nodes)
        next(steps)
        saved = store.reload("a", instance)
        assert saved.nodes["denoise"].num_committed == 1
        again = by_hand.resumed(instance, saved)
        same_results(again.result(), expected)
        assert store.checkpoint("a", again.nodes)
        store.flush()
        assert all(isinstance(node, FinishedNode) for node in store.reload("a", instance).nodes.values())
        (place / "jobs/00000001-a/checkpoint.json").write_text("")
        refused = store.reload("a", instance)
        assert (refused.is_aside, store.holds("a")) == (False, True)
        assert "job a: " in str(refused.error)
