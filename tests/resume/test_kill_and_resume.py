"""The shipped model's batch, killed at several moments and resumed, against one that nobody has disturbed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fastvideo_core.request.artifacts import LatentArtifact

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LINES = [
    {"id": "circle", "prompt": "a red circle moving right", "seed": 7, "num_inference_steps": 60},
    {"id": "square", "prompt": "a blue square moving up", "seed": 3, "num_frames": 33, "num_inference_steps": 45},
    {"id": "still", "prompt": "a green triangle", "seed": 5, "num_frames": 1, "guidance_scale": 1.0},
]
EAGER = """
from fastvideo_core.runtime.durable import policy
policy.CheckpointPolicy.should_write = lambda self, account: account.at_risk_s > 0.05
"""
MAIN = "import sys\nfrom fastvideo_core.cli.main import main\nsys.exit(main())"


def start(folder, *arguments, code=""):
    return subprocess.Popen(
        [sys.executable, "-c", f"{code}\n{MAIN}", "batch", *map(str, arguments)], cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def finish(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output


def latents_of(folder):
    return {line["id"]: LatentArtifact.load(folder / f"{line['id']}.safetensors").latents for line in LINES}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batch")
    (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    return folder


@pytest.fixture(scope="module")
def undisturbed(place):
    finish(start(place, "requests.jsonl", "-o", "whole", "--format", "safetensors", "--exact"))
    return latents_of(place / "whole")


def wait_for(path: Path, process):
    deadline_s = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("delays_s", [(0.0,), (0.7, 0.4), (1.5, 0.2, 0.9)])
def test_the_results_are_those_of_an_undisturbed_batch(delays_s, place, undisturbed):
    name = "-".join(map(str, delays_s))
    out, state = place / f"out-{name}", place / f"state-{name}"
    flags = ["requests.jsonl", "-o", out, "--format", "safetensors", "--exact", "--state-dir", state]
    for delay_s in delays_s:
        process = start(place, *flags, code=EAGER)
        wait_for(state / "run.json", process)
        time.sleep(delay_s)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        flags = ["--resume", state]
    finish(start(place, "--resume", state))
    resumed = latents_of(out)
    assert all(np.array_equal(resumed[one], undisturbed[one]) for one in undisturbed)
    summary = json.loads((out / "summary.json").read_text())
    assert [(entry["id"], entry["status"]) for entry in summary["requests"]] == [(line["id"], "done") for line in LINES]
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["summary.json", *(f"{line['id']}.{end}" for line in LINES for end in ("json", "safetensors"))]
    )
