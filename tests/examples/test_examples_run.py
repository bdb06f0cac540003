"""Every example runs as its top says, in an empty folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import av
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = {"two_at_once": ("circle.mp4", "square.mp4")}
"""Examples that make videos, with their files."""


def run_example(name, folder):
    """Run an example in `folder` and return the lines that it printed."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_example_is_known():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {*EXAMPLES, "simulate_fleet", "train_centring"}


def test_the_fleet_example_compares_two_policies(tmp_path):
    first, *results = run_example("simulate_fleet", tmp_path)
    assert "sessions" in first
    assert [line.partition(":")[0] for line in results] == ["load-aware", "fastvideo"]
    fixed, ours = (float(line.split()[-2]) for line in results)
    assert ours < fixed


def test_the_training_example_ships_a_card(tmp_path):
    *steps, gate, folder = run_example("train_centring", tmp_path)
    assert [line.partition(":")[0] for line in steps] == ["step 1", "step 2"]
    assert gate.startswith("C2: ")
    assert (tmp_path / folder / "card.json").is_file()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name, tmp_path):
    lines = run_example(name, tmp_path)
    files = EXAMPLES[name]
    assert lines[-len(files) :] == list(files)
    for file in files:
        with av.open(str(tmp_path / file)) as video:
            assert next(video.decode(video=0)).width > 0
    steps = [line.partition(":")[0] for line in lines if ": denoise " in line]
    assert steps != sorted(steps), "the requests ran one after the other"
    assert sorted(set(steps)) == ["circle", "square"]
