"""Freed memory is kept: counted in page faults of a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fastvideo_core.runtime.allocator import keep_freed_memory

SCRIPT = """
import resource, sys, threading
from fastvideo_core.runtime.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def work():
    size = 96 << 20
    for _ in range(6):
        block = libc.malloc(size)
        libc.memset(block, 1, size)
        libc.free(block)

thread = threading.Thread(target=work)
thread.start()
thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def faults(mode):
    run = [sys.executable, "-c", SCRIPT, mode]
    return int(subprocess.run(run, capture_output=True, text=True, check=True, timeout=60).stdout)


@pytest.mark.skipif(not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="glibc only")
def test_a_block_that_is_freed_is_not_fetched_again():
    # Six blocks of 96 MiB are 147,456 pages; kept, one block's suffice.
    pages = (96 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert faults("kept") < 2 * pages
    assert faults("kept") < faults("given back") / 2


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_who_has_decided_is_left_alone(monkeypatch, name):
    monkeypatch.setenv(name, "2")
    assert not keep_freed_memory()


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
