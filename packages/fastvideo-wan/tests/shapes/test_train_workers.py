"""Processes average gradients, and end when the process that started them ends.

Both run as scripts: a started process imports the module that its job is in.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
from fastvideo_wan.shapes.train.workers import Worker, run_workers

def average(worker, folder):
    param = torch.nn.Parameter(torch.zeros(2))
    param.grad = torch.tensor([1.0, float(worker.rank)])
    worker.average_gradients([param])
    shared, own = worker.shared_rng(1, 2).random(), worker.rng(1, 2).random()
    assert shared == Worker().shared_rng(1, 2).random() != own
    (Path(folder) / str(worker.rank)).write_text(f"{param.grad.tolist()} {own}")

def sleep(worker, folder):
    (Path(folder) / str(worker.rank)).write_text(str(os.getpid()))
    time.sleep(120)

if __name__ == "__main__":
    run_workers(globals()[sys.argv[1]], 2, sys.argv[2])
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    return [sys.executable, str(script)]


def written(folder: Path) -> list[str]:
    return [(folder / rank).read_text(encoding="utf-8") for rank in "01" if (folder / rank).exists()]


def is_running(process_id: str) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_gradients_are_the_mean_over_the_processes_and_draws_their_own(command: list[str], tmp_path: Path) -> None:
    subprocess.run([*command, "average", str(tmp_path)], check=True, timeout=60)
    first, second = written(tmp_path)
    assert first.startswith("[1.0, 0.5] ") and second.startswith("[1.0, 0.5] ")
    assert first != second


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_processes_end_with_the_one_that_started_them(command: list[str], tmp_path: Path) -> None:
    deadline = time.monotonic() + 60
    with subprocess.Popen([*command, "sleep", str(tmp_path)]) as parent:
        while len(children := [text for text in written(tmp_path) if text]) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(parent.pid, signal.SIGKILL)
    assert len(children) == 2
    while any(map(is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_running, children))
