"""Batches of the shipped model and of Cosmos3, killed at several moments and resumed, against undisturbed ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import av
import pytest
from safetensors.numpy import load_file

from fastvideo_cosmos3.testing import write_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EAGER = """
from fastvideo_core.runtime.durable import policy
policy.CheckpointPolicy.should_write = lambda self, account: account.at_risk_s > {at_risk_s}
"""
MAIN = "import sys\nfrom fastvideo_core.cli.main import main\nsys.exit(main())"


@dataclass(frozen=True)
class Family:
    """A batch of one card.

    Attributes:
        lines: Its requests.
        at_risk_s: Seconds of compute after which a state is saved.
        delays_s: How long processes live, one after another, once each has saved a state; None for one that is killed
            when no request has begun.
        flags: Flags of the command.
        made: What comes of each line.
    """

    lines: list[dict[str, Any]]
    at_risk_s: float
    delays_s: list[tuple[float | None, ...]]
    flags: list[str] = field(default_factory=list)
    made: dict[str, list[str]] = field(default_factory=dict)


SMALL = {"num_frames": 5, "height": 64, "width": 64}
ACTING = {"embodiment": "umi", "chunk_size": 4, "resolution_tier": "256p", "fps": 5}
FAMILIES = {
    "shipped": Family(
        lines=[
            {"id": "circle", "prompt": "a red circle moving right", "seed": 7, "num_inference_steps": 60},
            {"id": "square", "prompt": "a square moving up", "seed": 3, "num_frames": 33, "num_inference_steps": 45},
            {"id": "still", "prompt": "a green triangle", "seed": 5, "num_frames": 1, "guidance_scale": 1.0},
        ],
        at_risk_s=0.05,
        delays_s=[(None,), (0.2, 0.0), (0.4, 0.0, 0.1)],
        flags=["--format", "safetensors"],
        made={name: [f"{name}.safetensors"] for name in ("circle", "square", "still")},
    ),
    "omni": Family(
        lines=[
            {"id": "talk", "task": "reasoning_text", "prompt": "what falls?", "seed": 4, "max_tokens": 400,
             "temperature": 1.0},
            {"id": "look", "task": "reasoning_text", "prompt": "what is it?", "image": "view.png", "max_tokens": 150},
            {"id": "omni", "task": "omni", "prompt": "a cup", "seed": 7, "max_tokens": 150, "num_inference_steps": 120,
             **SMALL},
            {"id": "move", "task": "omni_policy", "prompt": "lift it", "image": "view.png", "seed": 2, "max_tokens": 60,
             "num_inference_steps": 30, **ACTING},
        ],
        at_risk_s=0.01,
        delays_s=[(0.0, 0.2), (0.3, None, 0.0)],
        made={
            "talk": ["talk.txt"], "look": ["look.txt"], "omni": ["omni.mp4", "omni.text.txt"],
            "move": ["move.mp4", "move.text.txt", "move.actions.safetensors"],
        },
    ),
}  # fmt: skip
CASES = [(name, delays) for name, family in FAMILIES.items() for delays in family.delays_s]


def start(folder, *arguments, code=""):
    return subprocess.Popen(
        [sys.executable, "-c", f"{code}\n{MAIN}", "batch", *map(str, arguments)], cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def finish(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output


def contents(folder, family):
    return {name: content(folder / name) for names in family.made.values() for name in names}


def content(path):
    """Return what a file holds, without what it tells of its making, such as the time."""
    if path.suffix == ".safetensors":
        return {name: array.tobytes() for name, array in load_file(path).items()}
    if path.suffix != ".mp4":
        return path.read_bytes()
    with av.open(str(path)) as container:
        return [(packet.stream.type, packet.pts, bytes(packet)) for packet in container.demux() if packet.size]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    from PIL import Image

    folder = tmp_path_factory.mktemp("batch")
    Image.linear_gradient("L").resize((80, 60)).convert("RGB").save(folder / "view.png")
    write_checkpoint(folder / "omni")
    for name, family in FAMILIES.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, family.lines)))
    return folder


def begin(place, name, out, *flags, code=""):
    card = ["--card", place / name] if name == "omni" else []
    return start(place, f"{name}.jsonl", "-o", out, "--exact", *card, *FAMILIES[name].flags, *flags, code=code)


@pytest.fixture(scope="module")
def undisturbed(place):
    """Return what a family's batch gives that nobody has disturbed."""
    made: dict[str, dict[str, bytes]] = {}

    def of(name):
        if name not in made:
            finish(begin(place, name, place / f"whole-{name}"))
            made[name] = contents(place / f"whole-{name}", FAMILIES[name])
        return made[name]

    return of


def last_saved_ns(state):
    """Return when a state was last saved; 0 if none was."""
    return max((path.stat().st_mtime_ns for path in state.glob("jobs/*/checkpoint.json")), default=0)


def is_saved_since(state, then_ns):
    return last_saved_ns(state) > then_ns


def wait_until(happens: Callable[[], bool], process):
    deadline_s = time.monotonic() + 120
    while not happens():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize(("name", "delays_s"), CASES)
def test_the_results_are_those_of_an_undisturbed_batch(name, delays_s, place, undisturbed):
    family, label = FAMILIES[name], "-".join([name, *map(str, delays_s)])
    out, state = place / f"out-{label}", place / f"state-{label}"
    for number, delay_s in enumerate(delays_s):
        before_ns, eager = last_saved_ns(state), EAGER.format(at_risk_s=family.at_risk_s)
        if number:
            process = start(place, "--resume", state, code=eager)
        else:
            process = begin(place, name, out, "--state-dir", state, code=eager)
        wait_until((state / "run.json").exists, process)
        if delay_s is not None:
            wait_until(partial(is_saved_since, state, before_ns), process)
            time.sleep(delay_s)
        process.kill()
        process.communicate()
        if number and process.returncode == 0:
            break  # too late: it had come to its end
        assert process.returncode == -signal.SIGKILL
    else:
        finish(start(place, "--resume", state))
    assert contents(out, family) == undisturbed(name)
    summary = json.loads((out / "summary.json").read_text())
    done = [(entry["id"], entry["status"], entry["files"]) for entry in summary["requests"]]
    assert done == [(line["id"], "done", family.made[line["id"]]) for line in family.lines]
