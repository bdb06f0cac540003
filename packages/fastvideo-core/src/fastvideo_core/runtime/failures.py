"""From whatever goes wrong while a request runs to the typed error that it ends with; and letting go of its memory."""

from __future__ import annotations

import traceback

import torch

from fastvideo_core.errors import ExecutionError, FastVideoError, ResourceError, describe_failure

__all__ = ["as_failure", "is_out_of_memory", "release_frames"]


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
        return ResourceError(f"{where} ran out of memory: {first_line}; ask for fewer frames or a smaller size")
    return ExecutionError(f"{where} failed: {describe_failure(error)}")


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory is used up; on a CPU torch has no class of its own for it."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, (RuntimeError, OSError)) and ("allocate memory" in text or "not enough memory" in text)


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
        traceback.clear_frames(one.__traceback__)
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions
