"""Teams of OpenMP: counted as threads of a process of its own, where an operation takes two."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from fastvideo_core.parallel.threads import MAX_SPINS, limit_spinning

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads as Linux lists them")

SCRIPT = """
import json, os, threading, time
from fastvideo_core.parallel.threads import release_team
told = {"without torch": release_team()}

import torch
from fastvideo_core.cost import probe_device
from fastvideo_core.runtime.control_thread import ControlThread
from fastvideo_core.runtime.workers import IDLE_S, Worker

torch.set_num_threads(2)
WIDE = torch.full((400, 400), 0.5)
release_team()

def all_others():  # threads that Python knows nothing of
    return len(os.listdir("/proc/self/task")) - threading.active_count()

def settled(count):  # the system lists a thread for a moment after its end
    end = time.monotonic() + 20
    while all_others() - BEFORE != count and time.monotonic() < end:
        time.sleep(0.005)
    return all_others() - BEFORE

time.sleep(0.2)
BEFORE = all_others()

product = WIDE @ WIDE
told["after an operation"] = settled(1)
told["releases"] = release_team()
told["released"] = settled(0)
told["releases none"] = release_team()
told["same product"] = torch.equal(WIDE @ WIDE, product)
told["started again"] = settled(1)
release_team()

go, done = threading.Event(), threading.Event()
def hold():
    WIDE @ WIDE
    done.set()
    go.wait()
thread = threading.Thread(target=hold)
thread.start()
done.wait()
release_team()
told["another thread's"] = settled(1)
go.set()
thread.join()

settled(0)
probe_device("cpu")
told["measuring"] = settled(0)

control = ControlThread(lambda loop, context: None)
WIDE @ WIDE
control.call(lambda: WIDE @ WIDE)
told["control"] = settled(0)
control.stop()

worker, ended = Worker("one", lambda function: function()), threading.Event()
at_work = []
def work():
    WIDE @ WIDE
    at_work.append(all_others() - BEFORE)
for _ in range(3):
    worker.submit(work, lambda outcome: None)
worker.submit(work, lambda outcome: ended.set())
ended.wait()
told["idle"] = settled(0)
ended.clear()
worker.submit(work, lambda outcome: ended.set())
ended.wait()
told["at work"] = at_work
worker.close()
print(json.dumps(told))
"""


def run(script):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def told():
    return json.loads(run(SCRIPT).splitlines()[-1])


def test_without_torch_there_is_no_team():
    assert run("from fastvideo_core.parallel.threads import release_team; print(release_team())") == "False\n"


@LINUX
def test_a_team_ends_and_the_next_operation_has_one_again(told):
    assert told["without torch"] is False
    assert told["after an operation"] == 1
    assert told["releases"] is True
    assert told["released"] == 0
    assert told["releases none"] is True
    assert told["same product"] is True
    assert told["started again"] == 1


@LINUX
def test_only_the_callers_team_ends(told):
    assert told["another thread's"] == 1


@LINUX
def test_measuring_the_processor_leaves_no_team(told):
    assert told["measuring"] == 0


@LINUX
def test_neither_the_control_plane_nor_its_caller_keeps_a_team(told):
    assert told["control"] == 0


@LINUX
def test_a_worker_keeps_its_team_while_it_works_and_no_longer(told):
    assert told["at work"] == [1, 1, 1, 1, 1]
    assert told["idle"] == 0


def test_the_command_limits_spinning_before_torch_is_there():
    script = """
import os, sys
from fastvideo_core.cli.main import main
sys.argv = ["fastvideo", "cards"]
main()
print(os.environ["GOMP_SPINCOUNT"])
"""
    assert run(script).splitlines()[-1] == str(MAX_SPINS)


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_who_has_decided_is_left_alone(monkeypatch, name):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv(name, "passive")
    assert not limit_spinning()
    monkeypatch.delenv(name)
    assert limit_spinning()
    assert os.environ["GOMP_SPINCOUNT"] == str(MAX_SPINS)


def test_it_comes_too_late_once_torch_is_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", sys)
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    assert not limit_spinning()
    assert "GOMP_SPINCOUNT" not in os.environ
