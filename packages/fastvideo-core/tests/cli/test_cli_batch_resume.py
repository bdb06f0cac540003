"""A batch that is interrupted and goes on, against one that is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress

import numpy as np
import pytest

from fastvideo_core.request.artifacts import LatentArtifact
from fastvideo_core.runtime.durable import CheckpointPolicy, StateStore
from fastvideo_core.runtime.durable import policy as policy_module
from fastvideo_testing.tiny import faults

LINES = [
    {"id": "a", "prompt": "a red circle", "seed": 1, "num_inference_steps": 12},
    {"id": "b", "prompt": "a blue square", "seed": 2, "num_inference_steps": 9, "guidance_scale": 1.0},
    {"id": "bad", "prompt": "x", "num_frames": 8},
    {"id": "c", "prompt": "nothing", "seed": 3, "num_inference_steps": 10, "num_frames": 13},
]
EAGER = """
from fastvideo_core.runtime.durable import policy
policy.CheckpointPolicy.should_write = lambda self, account: True
"""
DIE = """
import os, signal
def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""
KILLS = {
    "while the second request is accepted": """
from fastvideo_core.runtime.durable.disk import Disk
rename = Disk.rename
def dying(self, old, new):
    if new.name == "00000002-b":
        die()
    rename(self, old, new)
Disk.rename = dying
""",
    "while a checkpoint is written": """
from fastvideo_core.runtime.durable.disk import Disk
write = Disk.write
def dying(self, path, parts):
    if path.name == "tensors-1.safetensors":
        path.write_bytes(b"half")
        die()
    return write(self, path, parts)
Disk.write = dying
""",
    "in the middle of the steps": """
from fastvideo_testing.tiny import faults
count = 0
class Clock:
    def sleep(self, seconds):
        global count
        count += 1
        if count == 23:
            die()
faults.time = Clock()
""",
    "between a result and its sidecar": """
from fastvideo_core.request.media import staging
place = staging._place
def dying(staged, final):
    place(staged, final)
    if final.suffix != ".json":
        die()
staging._place = dying
""",
    "between a result and the note of it": """
from fastvideo_core.cli.batch_state import BatchState
BatchState.ended = lambda self, record: die()
""",
    "between the note of a result and the end of its state": """
from fastvideo_core.runtime.durable.store import StateStore
write_outcome = StateStore._write_outcome
def dying(self, *args):
    write_outcome(self, *args)
    die()
StateStore._write_outcome = dying
""",
    "between the summary and the end of all": """
from fastvideo_core.runtime.durable.store import StateStore
clear = StateStore.clear
def dying(self):
    if self.run is not None:
        die()
    clear(self)
StateStore.clear = dying
""",
}
QUICK = ("while a checkpoint is written", "between a result and its sidecar")


@pytest.fixture
def faulty(make_faulty):
    return make_faulty(step_s=0.005)


@pytest.fixture
def eager(monkeypatch):
    """Write a checkpoint after every step that comes when none is being written."""
    monkeypatch.setattr(policy_module.CheckpointPolicy, "should_write", lambda self, account: True)


@pytest.fixture
def write(place):
    def write_lines(*lines):
        (place / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return "requests.jsonl"

    return write_lines


@pytest.fixture
def undisturbed(run, write, faulty, place):
    """Run the lines without interruption, and return what came of them."""
    ran = run("batch", write(*LINES), "-o", "whole", "--card", faulty, "--format", "safetensors", "--exact")
    assert ran.code == 2
    return read_all(place / "whole")


def read_all(folder):
    """Return all that is in a folder of results, but for times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".safetensors":
            found[path.name] = LatentArtifact.load(path).latents.tobytes()
        elif path.name == "summary.json":
            summary = json.loads(path.read_text())
            del summary["duration_s"]
            for request in summary["requests"]:
                request.pop("duration_s", None)
            found[path.name] = summary
        else:
            found[path.name] = json.loads(path.read_text()) | {"created_at": None} if path.is_file() else None
    return found


def begin(start, write, faulty, *flags, code="", lines=LINES):
    return start(
        "batch", write(*lines), "-o", "out", "--state-dir", "state", "--card", faulty, "--format", "safetensors",
        "--exact", *flags, code=code,
    )  # fmt: skip


@pytest.mark.parametrize(
    "moment", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in KILLS]
)
def test_a_killed_batch_goes_on_to_the_same_results(moment, start, run, write, faulty, undisturbed, place, left, eager):
    process = begin(start, write, faulty, "--max-running", "2", code=EAGER + DIE + KILLS[moment])
    _, err = process.communicate(timeout=100)
    assert process.returncode == -signal.SIGKILL, err
    ran = run("batch", "--resume", "state")
    assert ran.code == 2, ran.err
    assert ran.out.splitlines()[-1] == str(place / "out/summary.json")
    assert read_all(place / "out") == undisturbed
    # The state directory is as good as new.
    assert not [name for name in left() if name.startswith(("state/jobs", "state/outcomes", "state/run.json"))]
    again = run("batch", "--resume", "state")
    assert (again.code, again.error) == (1, f"error: {place / 'state'} holds no unfinished batch that could go on")


@pytest.mark.slow
def test_killed_again_and_again_at_random(start, write, make_faulty, run, place, eager):
    faulty = make_faulty(step_s=0.02)
    run("batch", write(*LINES), "-o", "whole", "--card", faulty, "--format", "safetensors", "--exact")
    expected = read_all(place / "whole")
    process = begin(start, write, faulty, code=EAGER)
    for attempt in range(12):
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=2.2 + 0.11 * attempt)
        if process.poll() is not None and process.returncode >= 0:
            break
        process.kill()
        process.communicate()
        has_begun = (place / "state/run.json").exists()
        process = (
            start("batch", "--resume", "state", code=EAGER) if has_begun else begin(start, write, faulty, code=EAGER)
        )
    process.communicate(timeout=100)
    assert read_all(place / "out") == expected


def test_ctrl_c_leaves_what_is_left_to_be_resumed(start, run, write, make_faulty, place, left, eager):
    faulty = make_faulty(step_s=0.03)
    lines = [LINES[0], {**LINES[1], "num_inference_steps": 60}]
    process = begin(start, write, faulty, code=EAGER, lines=lines)
    deadline_s = time.monotonic() + 60
    while not (place / "out/a.json").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == "out/a.safetensors\n"
    assert f"1 unfinished; to go on: fastvideo batch --resume {place / 'state'}" in err
    assert "out/summary.json" not in left()
    ran = run("batch", "--resume", "state")
    assert ran.code == 0, ran.err
    summary = json.loads((place / "out/summary.json").read_text())
    assert [request["status"] for request in summary["requests"]] == ["done", "done"]
    assert summary["requests"][0]["duration_s"] > 0


def interrupt():
    """Do as Ctrl-C does, and give the main thread the time to hear of it."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)


def test_steps_before_the_interruption_are_not_made_again(run, write, faulty, place, monkeypatch, eager):
    calls = []

    class Clock:
        @staticmethod
        def sleep(seconds):
            calls.append(seconds)
            if len(calls) == 6:
                interrupt()

    monkeypatch.setattr(faults, "time", Clock)
    lines = [{**LINES[0], "num_inference_steps": 10}]
    flags = ["-o", "out", "--state-dir", "state", "--card", faulty, "--format", "safetensors", "--exact"]
    assert run("batch", write(*lines), *flags).code == 130
    num_before = len(calls)
    assert 6 <= num_before < 10
    assert run("batch", "--resume", "state").code == 0
    # At most the step whose checkpoint another one was in the way of is made twice.
    assert 10 <= len(calls) <= 11


def test_a_failure_is_not_tried_again(run, write, faulty, place, eager):
    lines = [{"id": "nan-1", "prompt": "x"}, LINES[0]]
    flags = ["-o", "out", "--state-dir", "state", "--card", faulty]
    assert run("batch", write(*lines), *flags).code == 1
    with StateStore(place / "state") as store:
        assert (store.unfinished, store.outcomes, store.run) == ((), {}, None)


def interrupted(run, write, faulty, monkeypatch, *, lines=LINES, calls=3):
    """Run a batch in this process that is interrupted at a step."""
    count = 0

    class Clock:
        @staticmethod
        def sleep(seconds):
            nonlocal count
            count += 1
            if count == calls:
                interrupt()

    with monkeypatch.context() as patch:
        patch.setattr(faults, "time", Clock)
        flags = ["-o", "out", "--state-dir", "state", "--card", faulty, "--format", "safetensors", "--exact"]
        ran = run("batch", write(*lines), *flags)
        assert ran.code == 130, ran.err


def test_a_corrupt_job_is_named_and_harms_no_other(run, write, faulty, undisturbed, place, monkeypatch, eager):
    interrupted(run, write, faulty, monkeypatch)
    folder = next((place / "state/jobs").glob("*-b"))
    (folder / "job.json").write_text("{}")
    ran = run("batch", "--resume", "state")
    assert ran.code == 1
    assert f"error: line 2: job b: {folder}/job.json is corrupt or something else (2 bytes)" in ran.err
    found = read_all(place / "out")
    assert found.keys() == undisturbed.keys() - {"b.safetensors", "b.json"}
    assert all(found[name] == undisturbed[name] for name in found if name != "summary.json")
    a, b, bad, c = found["summary.json"]["requests"]
    assert [entry["status"] for entry in (a, b, bad, c)] == ["done", "failed", "refused", "done"]
    assert b["error"]["type"] == "StateError"
    assert (place / "state/refused" / folder.name / "job.json").read_text() == "{}"


def test_other_weights_are_refused_and_the_right_ones_go_on(run, write, faulty, undisturbed, place, monkeypatch, eager):
    interrupted(run, write, faulty, monkeypatch)
    weights = faulty / "transformer/diffusion_pytorch_model.safetensors"
    right = weights.read_bytes()
    weights.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    ran = run("batch", "--resume", "state")
    assert ran.code == 1
    assert "error: line 1: job a began with weights transformer w1-" in ran.err
    assert "3 unfinished; to go on: fastvideo batch --resume" in ran.err
    assert not (place / "out/summary.json").exists()
    weights.write_bytes(right)
    assert run("batch", "--resume", "state").code == 2
    assert read_all(place / "out") == undisturbed


def test_a_file_in_the_way_keeps_the_request_until_it_is_gone(
    run, write, faulty, undisturbed, place, monkeypatch, eager
):
    interrupted(run, write, faulty, monkeypatch)
    (place / "out").mkdir(exist_ok=True)
    (place / "out/a.safetensors").write_bytes(b"somebody else's")
    ran = run("batch", "--resume", "state")
    assert ran.code == 1
    assert "exists, and nothing is written over" in ran.err
    assert (place / "out/a.safetensors").read_bytes() == b"somebody else's"
    (place / "out/a.safetensors").unlink()
    assert run("batch", "--resume", "state").code == 2
    assert read_all(place / "out") == undisturbed


def test_an_image_need_not_be_there_any_more(run, write, faulty, place, monkeypatch, eager):
    from PIL import Image

    image = place / "red.png"
    Image.new("RGB", (8, 8), "red").save(image)
    lines = [{**LINES[0], "image": "red.png"}, LINES[1]]
    interrupted(run, write, faulty, monkeypatch, lines=lines)
    image.unlink()
    assert run("batch", "--resume", "state").code == 0
    Image.new("RGB", (8, 8), "red").save(image)
    flags = ["-o", "whole", "--card", faulty, "--format", "safetensors", "--exact"]
    assert run("batch", write(*lines), *flags).code == 0
    for name in ("a", "b"):
        first, second = (LatentArtifact.load(place / folder / f"{name}.safetensors") for folder in ("out", "whole"))
        assert np.array_equal(first.latents, second.latents)


def test_a_state_directory_in_use_is_refused(run, write, faulty, place, left):
    with StateStore(place / "state"):
        for flags in (["--resume", "state"], [write(*LINES), "-o", "out", "--card", faulty, "--state-dir", "state"]):
            ran = run("batch", *flags)
            assert ran.code == 1
            assert f"error: the state directory {place / 'state'} is in use by process" in ran.err
            assert "loading" not in ran.err


def test_a_state_directory_of_an_unfinished_batch_is_not_taken_for_another(
    run, write, faulty, place, monkeypatch, eager
):
    interrupted(run, write, faulty, monkeypatch)
    ran = run("batch", write(LINES[1]), "-o", "other", "--card", faulty, "--state-dir", "state")
    assert ran.code == 1
    assert ran.error == (
        f"error: {place / 'state'} holds a batch that has not ended; go on with `fastvideo batch --resume "
        f"{place / 'state'}`, or choose another folder"
    )


def test_more_requests_than_the_engine_queues(run, write, faulty, place, monkeypatch):
    from fastvideo_core.errors import QueueFullError
    from fastvideo_core.runtime.engine import Engine

    submit, handles, refused = Engine.submit_prepared, [], []

    def submit_two_at_a_time(self, prepared, **options):
        if sum(not handle.is_done for handle in handles) == 2:
            refused.append(prepared)
            raise QueueFullError("two are enough", retry_after_s=0.0)
        handles.append(submit(self, prepared, **options))
        return handles[-1]

    monkeypatch.setattr(Engine, "submit_prepared", submit_two_at_a_time)
    lines = [{"prompt": "x", "num_inference_steps": 2, "seed": seed} for seed in range(7)]
    flags = ["-o", "out", "--card", faulty, "--max-running", "1", "--format", "safetensors"]
    assert run("batch", write(*lines), *flags).code == 0
    assert len(list((place / "out").glob("*.safetensors"))) == 7
    assert refused


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (
            ["--resume", "state", "x.jsonl"],
            "file='x.jsonl': a batch goes on as it began; allowed: --resume DIR with no",
        ),
        (["--resume", "state", "-o", "out"], "output='out': a batch goes on as it began"),
        (["--resume", "state", "--state-dir", "x"], "state_dir='x': a batch goes on as it began"),
        (["--resume", "state", "--format", "gif"], "format='gif': a batch goes on as it began"),
        (["--resume", "state", "--exact"], "exact=True: a batch goes on as it began"),
        (["--resume", "state", "--device", "cpu"], "device='cpu': a batch goes on as it began"),
        (["--resume", ""], "state_dir='': not a folder's name"),
        ([], "the following arguments are required: FILE, -o/--output"),
        (["x.jsonl"], "the following arguments are required: -o/--output"),
        (["x.jsonl", "-o", "out", "--state-dir", "./out"], "state_dir='./out': the folder of the results"),
    ],
)
def test_flags_that_do_not_go_together(flags, text, run):
    ran = run("batch", *flags)
    assert ran.code == 2
    assert ran.error.startswith(f"error: {text}")


def test_a_directory_without_a_batch(run, place):
    assert run("batch", "--resume", "nothing").error.endswith("holds no unfinished batch that could go on")
    with StateStore(place / "other") as store:
        store.describe({"version": 9})
    assert "holds no batch that this version knows" in run("batch", "--resume", "other").error


def test_the_policy_of_a_batch_is_the_ordinary_one(run, write, faulty, place, monkeypatch):
    """With steps of no length nothing is at risk, and nothing is written but what was accepted."""
    written = []
    monkeypatch.setattr(StateStore, "checkpoint", lambda self, job_id, nodes: written.append(job_id))
    flags = ["-o", "out", "--state-dir", "state", "--card", faulty]
    assert run("batch", write(LINES[0]), *flags).code == 0
    assert (written, CheckpointPolicy().max_share) == ([], 0.01)
