"""From whatever goes wrong while a request runs to the typed error that it ends with; and letting go of its memory."""

from __future__ import annotations

import traceback
from types import TracebackType

import torch

from fastvideo_core.errors import ExecutionError, FastVideoError, OutOfMemoryError, WorkerLostError, describe_failure

__all__ = ["as_failure", "is_device_lost", "is_out_of_memory", "release_frames"]


def as_failure(error: BaseException, where: str) -> FastVideoError:
    """Return a typed error for an error of any kind; a typed one is returned as it is.

    Args:
        error: What was raised.
        where: What was done, as the beginning of the message.
    """
    if isinstance(error, FastVideoError):
        return error
    if is_out_of_memory(error):
        first_line = str(error).strip().partition("\n")[0] or "no more memory"
        return OutOfMemoryError(f"{where} ran out of memory: {first_line}; ask for fewer frames or a smaller size")
    return ExecutionError(f"{where} failed: {describe_failure(error)}")


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory is used up; on a CPU torch has no class of its own for it."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, (RuntimeError, OSError)) and ("allocate memory" in text or "not enough memory" in text)


_LOST = ("illegal memory access", "device-side assert", "unspecified launch failure", "uncorrectable ecc", "nccl error")


def is_device_lost(error: BaseException) -> bool:
    """Tell whether an error leaves the device unusable, so that its pool has to be rebuilt."""
    text = str(error).lower()
    return isinstance(error, WorkerLostError) or (isinstance(error, RuntimeError) and any(one in text for one in _LOST))


def release_frames(error: BaseException) -> None:
    """Clear the local variables of all finished frames that an error, or one that led to it, keeps alive.

    Without it the tensors of a failed request would live as long as its error is kept by anybody. The traceback still
    tells files and lines.
    """
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        _clear(one.__traceback__)
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions


def _clear(trace: TracebackType | None) -> None:
    """Clear a traceback's frames, and those that they were called from, which hang on them."""
    traceback.clear_frames(trace)
    caller = None if trace is None else trace.tb_frame.f_back
    while caller is not None:
        try:
            caller.clear()
        except RuntimeError:  # still running, and so are those below it
            return
        caller = caller.f_back
