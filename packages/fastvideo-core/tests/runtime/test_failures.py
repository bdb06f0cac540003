from __future__ import annotations

import traceback
import weakref

import pytest
import torch

from fastvideo_core.errors import ExecutionError, NonFiniteError, OutOfMemoryError
from fastvideo_core.runtime.failures import as_failure, is_out_of_memory, release_frames


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("two\nlines"), ExecutionError, "step 1 failed: ValueError: two lines"),
        (SystemExit(3), ExecutionError, "step 1 failed: SystemExit: 3"),
        (StopIteration(), ExecutionError, "step 1 failed: StopIteration"),
        (MemoryError(), OutOfMemoryError, "step 1 ran out of memory: no more memory; ask for fewer"),
        (
            torch.OutOfMemoryError("CUDA\nmore"),
            OutOfMemoryError,
            "step 1 ran out of memory: CUDA; ask for fewer frames",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), OutOfMemoryError, "ran out of memory: DefaultCPU"),
        (OSError(12, "Cannot allocate memory"), OutOfMemoryError, "ran out of memory: .Errno 12"),
        (ValueError("cannot allocate memory"), ExecutionError, "failed: ValueError"),
    ],
)
def test_every_error_becomes_a_typed_one(error, kind, text):
    failure = as_failure(error, "step 1")
    assert type(failure) is kind
    with pytest.raises(kind, match=text):
        raise failure


def test_a_typed_error_stays_as_it_is():
    error = NonFiniteError("NaN")
    assert as_failure(error, "step 1") is error


def test_a_real_allocation_that_fails_is_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def fail_with(tensor):
    local = tensor + 1
    raise ValueError(f"with {len(local)} numbers")


def fail_in_a_group(tensor):
    try:
        fail_with(tensor)
    except ValueError as error:
        try:
            raise ExceptionGroup("several", [error, TypeError("other")])
        except ExceptionGroup as group:
            raise KeyError("last") from group


def test_memory_is_let_go_and_the_lines_are_kept():
    tensor = torch.ones(3)
    alive = weakref.ref(tensor)
    caught = None
    try:
        fail_in_a_group(tensor)
    except KeyError as error:
        caught = error
    del tensor
    assert alive() is not None
    before = traceback.format_exception(caught)
    release_frames(caught)
    assert alive() is None
    assert traceback.format_exception(caught) == before
    assert any("fail_with" in line for line in before)
    release_frames(caught)
