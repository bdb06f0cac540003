from __future__ import annotations

import json
import os
import re
import signal

import numpy as np
import pytest

from fastvideo_core.request.artifacts import LatentArtifact
from fastvideo_core.runtime.engine import Engine
from fastvideo_testing.tiny import faults, tiny_card


@pytest.fixture
def write(place):
    """Write a file of requests: one dictionary, or raw text, a line."""

    def write_lines(*lines):
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        (place / "requests.jsonl").write_text(text)
        return "requests.jsonl"

    return write_lines


@pytest.fixture
def batch(run, write, tiny):
    """Run `fastvideo batch` on some lines, with the tiny checkpoint."""

    def run_lines(*lines, flags=(), card=tiny):
        return run("batch", write(*lines), "-o", "out", "--card", card, *flags)

    return run_lines


@pytest.fixture
def summary(place):
    """Read the summary."""
    return lambda: json.loads((place / "out/summary.json").read_text())


def statuses(summary):
    return [(request["line"], request["id"], request["status"]) for request in summary["requests"]]


def test_every_line_becomes_a_file(batch, summary, place, left):
    ran = batch({"id": "circle", "prompt": "a red circle", "seed": 7}, {"prompt": "y", "num_frames": 5})
    assert ran.code == 0
    assert sorted(ran.out.split()) == ["out/2.mp4", "out/circle.mp4", "out/summary.json"]
    assert ran.out.split()[-1] == "out/summary.json"
    assert left() == [
        "out/2.json",
        "out/2.mp4",
        "out/circle.json",
        "out/circle.mp4",
        "out/summary.json",
        "requests.jsonl",
    ]
    found = summary()
    assert found["counts"] == {"done": 2, "refused": 0, "failed": 0, "cancelled": 0}
    assert (found["schema_version"], found["card"]) == (1, "tiny")
    circle, other = found["requests"]
    assert circle == {
        "line": 1, "id": "circle", "status": "done", "files": ["circle.mp4"], "seed": 7,
        "duration_s": circle["duration_s"],
    }  # fmt: skip
    assert 0 < circle["duration_s"] <= found["duration_s"]
    sidecar = json.loads((place / "out/2.json").read_text())
    assert sidecar["parameters"]["num_frames"] == {"value": 5, "source": "request"}
    assert sidecar["seed"] == other["seed"]


def test_together_they_are_what_each_is_alone(batch, place, tiny):
    lines = [{"prompt": str(seed), "seed": seed, "num_inference_steps": 2 + seed} for seed in range(5)]
    assert batch(*lines, flags=["--format", "safetensors", "--exact", "--max-running", 3]).code == 0
    with Engine.open(tiny_card(tiny)) as engine:
        for number, line in enumerate(lines, start=1):
            alone = engine.generate(**line, outputs=("latents",), exact=True).latents.latents
            assert np.array_equal(LatentArtifact.load(place / f"out/{number}.safetensors").latents, alone)


@pytest.mark.parametrize(("name", "files"), [("png", ["1-0001.png"]), (".GIF", ["1.gif"]), ("webm", ["1.webm"])])
def test_the_format_is_that_of_all(name, files, batch, summary):
    assert batch({"prompt": "x", "num_frames": 1}, flags=["--format", name]).code == 0
    if name == "png":
        # One frame is one picture, and needs no number.
        files = ["1.png"]
    assert summary()["requests"][0]["files"] == files


def test_an_image_and_a_task(batch, place, tmp_path):
    from PIL import Image

    Image.new("RGB", (8, 8), "red").save(tmp_path / "red.png")
    assert (
        batch({"prompt": "x", "image": str(tmp_path / "red.png")}, {"prompt": "y", "task": "text_to_video"}).code == 0
    )
    tasks = [json.loads((place / f"out/{number}.json").read_text())["task"] for number in (1, 2)]
    assert tasks == ["image_to_video", "text_to_video"]


def test_a_bad_line_fails_alone(batch, summary):
    ran = batch(
        {"prompt": "x"},
        {"prompt": "x", "num_frames": 8},
        "",
        {"prompt": "x", "numframes": 9},
        "{bad",
        {"prompt": ""},
        {"prompt": "x", "imag": "a.png"},
        {"prompt": "x", "image": "none.png"},
        {"prompt": "x", "id": "1"},
        {"prompt": "x" * 129},
    )
    assert ran.code == 2
    assert statuses(summary()) == [(1, "1", "done"), *((n, str(n), "refused") for n in (2, 4, 5, 6, 7, 8)),
                                   (9, "1", "refused"), (10, "10", "refused")]  # fmt: skip
    errors = [request.get("error") for request in summary()["requests"]]
    assert errors[0] is None
    assert errors[1] == {
        "type": "ParameterError",
        "message": "num_frames=8: not a valid value; allowed: integer of the form 4k + 1 from 1 to 81; nearest: 9",
        "field": "num_frames",
    }
    assert errors[2]["message"].endswith("nearest: num_frames")
    assert errors[5]["message"].endswith("nearest: image")
    for number, text in [
        (2, "num_frames=8: "),
        (4, "numframes=9: "),
        (5, "not JSON"),
        (6, "prompt='': the text is empty"),
        (7, "imag='a.png': "),
        (8, "image='none.png': no such file"),
        (10, "prompt='x.*: the text has 129 tokens"),
    ]:
        assert re.search(f"^error: line {number}: {text}", ran.err, re.MULTILINE)
    assert "error: line 9 (1): id='1': used by line 1" in ran.err


def test_a_file_of_bad_lines_loads_nothing(batch, summary):
    ran = batch("{bad", {"prompt": "x", "seed": -1})
    assert (ran.code, ran.out) == (2, "out/summary.json\n")
    assert "loading" not in ran.err
    assert summary()["counts"]["refused"] == 2


def test_what_fails_fails_alone(batch, summary, make_faulty):
    ran = batch(
        {"id": "nan-1", "prompt": "x"},
        {"id": "error-1", "prompt": "x"},
        {"id": "good", "prompt": "x"},
        {"id": "memory-1", "prompt": "x"},
        {"id": "bad", "prompt": "x", "seed": -1},
        card=make_faulty(),
    )
    # A failure counts for more than a bad line.
    assert ran.code == 1
    assert [status for _, _, status in statuses(summary())] == ["failed", "failed", "done", "failed", "refused"]
    types = [request.get("error", {}).get("type") for request in summary()["requests"]]
    assert types == ["NonFiniteError", "ExecutionError", None, "OutOfMemoryError", "ParameterError"]
    assert "error: line 1 (nan-1): request:nan-1/loop:denoise: step 2 of 4" in ran.err


def test_an_unexpected_error_ends_its_own_line_only(batch, summary, monkeypatch):
    from fastvideo_testing.tiny.text import TextLoop

    init = TextLoop.init

    def broken(self, request, ctx):
        if request.request_id == "1":
            raise ZeroDivisionError("odd")
        return init(self, request, ctx)

    monkeypatch.setattr(TextLoop, "init", broken)
    ran = batch({"prompt": "x"}, {"prompt": "y"})
    assert ran.code == 1
    assert [status for _, _, status in statuses(summary())] == ["failed", "done"]
    assert re.search("^error: line 1: .*ZeroDivisionError: odd", ran.err, re.MULTILINE)


@pytest.mark.parametrize("name", ["1.mp4", "1.json", "1-0001.png"])
def test_a_result_that_exists_is_not_written_over(name, batch, summary, place):
    (place / "out").mkdir()
    (place / "out" / name).write_text("old")
    flags = ["--format", "png"] if name.endswith("png") else []
    ran = batch({"prompt": "x"}, {"prompt": "y"}, flags=flags)
    assert ran.code == 2
    assert [status for _, _, status in statuses(summary())] == ["refused", "done"]
    assert re.search("error: line 1: id='out/1.(mp4|png)': .*exists, and nothing is written over", ran.err)
    assert (place / "out" / name).read_text() == "old"


def test_a_summary_that_exists_is_not_written_over(batch, left):
    assert batch({"prompt": "x", "id": "a"}).code == 0
    before = left()
    ran = batch({"prompt": "x", "id": "b"})
    assert ran.code == 2
    assert ran.error.startswith("error: output='out/summary.json': exists, and nothing is written over")
    assert left() == before


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (
            ["--format", "mpeg"],
            "format='mpeg': not a known format; allowed: mp4, webm, gif, png, .*safetensors; nearest: ",
        ),
        (["--max-running", "0"], "--max-running: '0' is not a whole number of at least 1"),
        (["--device", "gpu"], "device='gpu': not a device"),
        (["--precision", "float64"], "precision='float64': "),
        (["--seed", "3"], "fastvideo batch has no flag --seed"),
    ],
)
def test_bad_flags(flags, text, batch, left):
    ran = batch({"prompt": "x"}, flags=flags)
    assert ran.code == 2
    assert re.search(f"^error: .*{text}", ran.error)
    assert left() == ["requests.jsonl"]


@pytest.mark.parametrize(
    ("file", "output", "text"),
    [
        ("none.jsonl", "out", "file='none.jsonl': cannot be read: No such file or directory"),
        ("empty.jsonl", "out", "file='empty.jsonl': holds no request"),
        ("requests.jsonl", "requests.jsonl", "output='requests.jsonl/summary.json': a part of the path is a file"),
        ("requests.jsonl", "/proc/out", "output='/proc/out/summary.json': "),
        ("requests.jsonl", "", "output='': not a folder's name; allowed: a folder; nearest: ."),
    ],
)
def test_bad_files_and_folders(file, output, text, run, write, tiny, place):
    write({"prompt": "x"})
    (place / "empty.jsonl").write_text("\n")
    ran = run("batch", file, "-o", output, "--card", tiny)
    assert ran.code == 2
    assert ran.error.startswith(f"error: {text}")


def test_broken_weights_end_it_all(batch, make_faulty, left):
    folder = make_faulty()
    (folder / "vae/diffusion_pytorch_model.safetensors").unlink()
    ran = batch({"prompt": "x"}, {"prompt": "x", "seed": -1}, card=folder)
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith("error: ")
    # Nothing has been run, so there is nothing to sum up, and the same command can be given again.
    assert left() == ["requests.jsonl"]


def interrupt_at(monkeypatch, *calls):
    """Send this process Ctrl-C when the faulty step is made for such a time, counted from 1."""
    count = 0

    def sleep(seconds):
        nonlocal count
        count += 1
        if count in calls:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(faults.time, "sleep", sleep)


def test_an_interrupt_keeps_what_is_done(batch, summary, make_faulty, monkeypatch, left):
    interrupt_at(monkeypatch, 6)
    lines = [{"prompt": "x", "id": "first"}, {"prompt": "x", "num_inference_steps": 1000}, {"prompt": "x"}]
    ran = batch(*lines, card=make_faulty(), flags=["--max-running", 1])
    assert ran.code == 130
    assert [status for _, _, status in statuses(summary())] == ["done", "cancelled", "cancelled"]
    assert left() == ["out/first.json", "out/first.mp4", "out/summary.json", "requests.jsonl"]
    assert ran.err.splitlines()[-1] == "error: interrupted"
    assert ran.err.count("error:") == 1


def test_requests_from_stdin(start, tiny, left):
    import subprocess

    process = start("batch", "-", "-o", "out", "--card", tiny, "-q", stdin=subprocess.PIPE)
    out, err = process.communicate('{"prompt": "x"}', timeout=100)
    assert (process.returncode, out, err) == (0, "out/1.mp4\nout/summary.json\n", "")
    assert left() == ["out/1.json", "out/1.mp4", "out/summary.json"]
