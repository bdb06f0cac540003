from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from fastvideo_core.errors import ResourceError, StateError
from fastvideo_core.runtime.durable.lock import FolderLock

HOLD = """
import sys, time
from pathlib import Path
from fastvideo_core.runtime.durable.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_holder_is_told_of_the_first(tmp_path):
    lock = FolderLock(tmp_path)
    with pytest.raises(StateError) as caught:
        FolderLock(tmp_path)
    assert str(caught.value) == (
        f"the state directory {tmp_path} is in use by process {os.getpid()}; wait until it ends, or choose another"
    )
    lock.release()
    FolderLock(tmp_path).release()


def test_a_process_that_is_killed_lets_go(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(StateError, match=f"in use by process {process.pid};"):
        FolderLock(tmp_path)
    process.kill()
    process.communicate()
    FolderLock(tmp_path).release()


def test_a_program_that_the_holder_starts_does_not_keep_it(tmp_path):
    lock = FolderLock(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    lock.release()
    deadline_s = time.monotonic() + 10
    while True:
        # Linux lets the starter go on a little before it closes what the started program is not to have.
        try:
            FolderLock(tmp_path).release()
            break
        except StateError:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    assert process.poll() is None
    process.communicate(b"\n")


def test_a_system_without_locks(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(ResourceError, match="needs locks on files"):
        FolderLock(tmp_path)
