"""Every example runs as its top says, in an empty folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import av
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = {"two_at_once": ("circle.mp4", "square.mp4")}


def test_every_example_is_known():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name, tmp_path):
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    files = EXAMPLES[name]
    assert lines[-len(files) :] == list(files)
    for file in files:
        with av.open(str(tmp_path / file)) as video:
            assert next(video.decode(video=0)).width > 0
    steps = [line.partition(":")[0] for line in lines if ": denoise " in line]
    assert steps != sorted(steps), "the requests ran one after the other"
    assert sorted(set(steps)) == ["circle", "square"]
