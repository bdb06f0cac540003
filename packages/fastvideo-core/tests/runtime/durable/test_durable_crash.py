"""A crash at every call that changes the disk: what was there before, or what was to be there, and nothing between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from fastvideo_core.runtime.durable import RefusedJob, StateStore
from fastvideo_core.runtime.durable.disk import Disk


def crash_everywhere(folder, act, disk_type, killed):
    """Run `act` on a store in a fresh copy of the world, once for each of its calls, which is the last; yield after."""
    for fatal_call in range(10_000):
        place = folder / str(fatal_call)
        disk = disk_type()
        store = StateStore(place, disk=disk)
        try:
            act(store, lambda disk=disk, at=fatal_call: start_dying(disk, at))
        except killed:
            pass
        else:
            assert fatal_call >= 3  # something was done
            store.close()
            return
        finally:
            if store._lock is not None:
                store._lock.release()
        yield place


def start_dying(disk, fatal_call):
    disk.calls.clear()
    disk.fatal_call = fatal_call


def test_a_crash_while_accepting(tmp_path, prepare, instance, write_inline, dying_disk, killed):
    image = torch.zeros(16, 24, 3, dtype=torch.uint8).numpy()

    def act(store, arm):
        store.accept(prepare("first"), instance)
        arm()
        store.accept(prepare("second", image=image), instance)

    seen = set()
    for place in crash_everywhere(tmp_path, act, dying_disk, killed):
        with StateStore(place) as store:
            jobs = store.load(instance)
            assert not [job for job in jobs if isinstance(job, RefusedJob)]
            seen.add(tuple(job.job_id for job in jobs))
            assert sorted(path.name for path in (place / "jobs").iterdir())[0] == "00000001-first"
    assert seen == {("first",), ("first", "second")}


def test_a_crash_while_a_checkpoint_is_written(tmp_path, prepare, instance, by_hand, write_inline, dying_disk, killed):
    prepared = prepare(exact=True)
    expected = by_hand(instance, prepared).result()["denoise"]["latents"]

    def act(store, arm):
        store.accept(prepared, instance)
        run = by_hand(instance, prepared)
        for index, _ in enumerate(run.steps()):
            if index == 3:
                store.checkpoint("a", run.nodes)
            if index == 4:
                arm()
                store.checkpoint("a", run.nodes)
                return

    seen = set()
    for place in crash_everywhere(tmp_path, act, dying_disk, killed):
        with StateStore(place) as store:
            (saved,) = store.load(instance)
            assert not isinstance(saved, RefusedJob), saved.error
            seen.add(saved.nodes["denoise"].num_committed)
            resumed = by_hand.resumed(instance, saved)
            assert torch.equal(resumed.result()["denoise"]["latents"], expected)
            # What the crash has left is gone, and the next checkpoint is as good as any.
            named = {path.name for path in (place / "jobs/00000001-a").iterdir()}
            assert all(name in ("job.json", "checkpoint.json") or name.startswith("tensors-") for name in named)
            assert store.checkpoint("a", resumed.nodes)
    assert seen == {2, 3}


@pytest.mark.parametrize("outcome", [None, {"status": "done"}])
def test_a_crash_while_finishing(outcome, tmp_path, prepare, instance, by_hand, write_inline, dying_disk, killed):
    def act(store, arm):
        run = by_hand(instance, prepare())
        next(run.steps())
        for name in "ab":
            store.accept(prepare(name), instance)
            store.checkpoint(name, run.nodes)
        arm()
        store.finish("a", outcome)

    seen = set()
    for place in crash_everywhere(tmp_path, act, dying_disk, killed):
        with StateStore(place) as store:
            jobs = store.load(instance)
            assert not [job for job in jobs if isinstance(job, RefusedJob)]
            seen.add((tuple(job.job_id for job in jobs), tuple(store.outcomes)))
        assert sorted(path.name for path in (place / "jobs").iterdir())[-1] == "00000002-b"
    # With an outcome, never gone without it.
    ended = () if outcome is None else ("a",)
    assert seen == {(("a", "b"), ()), (("b",), ended)}


def test_a_crash_while_a_bad_job_is_put_aside(tmp_path, prepare, instance, write_inline, dying_disk, killed):
    def act(store, arm):
        store.accept(prepare("good"), instance)
        store.accept(prepare("bad"), instance)
        (store.folder / "jobs/00000002-bad/job.json").write_text("{}")
        store._jobs.clear()
        arm()
        store.load(instance)

    for place in crash_everywhere(tmp_path, act, dying_disk, killed):
        with StateStore(place) as store:
            ids = [(job.job_id, isinstance(job, RefusedJob)) for job in store.load(instance)]
            assert ids in ([("good", False)], [("good", False), ("bad", True)])
        assert [path.name for path in (place / "refused").iterdir()] == ["00000002-bad"]


def test_a_crash_while_the_folder_is_made_or_described(tmp_path, write_inline, dying_disk, killed):
    for fatal_call in range(1000):
        place = tmp_path / str(fatal_call)
        disk = dying_disk(fatal_call)
        store = None
        try:
            store = StateStore(place, disk=disk)
            store.describe({"version": 1})
            store.describe({"version": 2})
            store.record("a", {})
            store.clear()
        except killed:
            pass
        else:
            store.close()
            break
        finally:
            if store is not None and store._lock is not None:
                store._lock.release()
        with StateStore(place) as again:
            assert again.run in (None, {"version": 1}, {"version": 2})
            again.describe({"version": 3})
            assert again.run == {"version": 3}
    assert fatal_call > 20


class RecordingDisk(Disk):
    """Keeps a list of calls."""

    def __init__(self):
        self.calls = []

    def _do(self, call, *args):
        self.calls.append((call.__name__, args))
        return call(*args)


def test_bytes_are_on_the_disk_before_the_name_that_leads_to_them(tmp_path, prepare, instance, by_hand, write_inline):
    disk = RecordingDisk()
    with StateStore(tmp_path / "state", disk=disk) as store:
        disk.calls.clear()
        store.accept(prepare(), instance)
        assert [name for name, _ in disk.calls if name != "unlink"] == [
            "mkdir", "open", "write", "fsync", "fsync", "rename", "fsync",
        ]  # fmt: skip
        run = by_hand(instance, prepare())
        next(run.steps())
        disk.calls.clear()
        store.checkpoint("a", run.nodes)
        names = [name for name, _ in disk.calls if name not in ("write", "unlink")]
        assert names == ["open", "fsync", "fsync", "open", "fsync", "rename", "fsync"]
        opened = [args[0].name for name, args in disk.calls if name == "open"]
        assert opened == ["tensors-0.safetensors", ".checkpoint.json.new"]


STEPPER = """
import sys
import torch
from pathlib import Path
from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.durable import FinishedNode, RunningNode, StateStore
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_testing.tiny import tiny_card
from fastvideo_testing.tiny.denoise import DenoiseState

instance = load_instance(tiny_card(Path(sys.argv[1])), device="cpu", precision="float32")
store = StateStore(sys.argv[2])
saved = {job.job_id: job for job in store.load(instance)}
if "a" not in saved:
    request = build_request(instance.card, "x", request_id="a", parameters={"seed": 1})
    store.accept(prepare_request(instance.card, request), instance)
    state = DenoiseState(torch.zeros(1, 4, 3, 64, 64), (torch.ones(1, 8),), (1.0, 0.0), 1.0, None, True, "serve", None)
else:
    state = saved["a"].nodes["denoise"].state
    assert torch.all(state.latents_1CTHW == float(state.step_index)), state.step_index
print("begins at", state.step_index, flush=True)
while True:
    state.latents_1CTHW = state.latents_1CTHW + 1
    state.step_index += 1
    store.checkpoint("a", {"denoise": RunningNode("denoise", state, state.step_index)})
    store.flush()
    print(state.step_index, flush=True)
"""


@pytest.mark.parametrize("num_rounds", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_sigkill_at_any_moment(num_rounds, tmp_path, tiny_folder):
    script = STEPPER.replace("1.0, None, True", "1.0, CancelScope('request', 'a'), True").replace(
        "import torch\n", "import torch\nfrom fastvideo_core.request.cancel import CancelScope\n", 1
    )
    reached = 0
    for round_ in range(num_rounds):
        process = subprocess.Popen(
            [sys.executable, "-c", script, tiny_folder, tmp_path / "state"], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        words = process.stdout.readline().split()
        assert words[:2] == ["begins", "at"]
        # At most one step more than what was told of is on the disk, and never less.
        assert reached <= int(words[2]) <= reached + 1
        time.sleep(0.05 + 0.037 * round_)
        process.send_signal(signal.SIGKILL)
        told = [int(line) for line in process.communicate()[0].splitlines()]
        assert process.returncode == -signal.SIGKILL
        assert told
        reached = told[-1]
    assert reached >= num_rounds
