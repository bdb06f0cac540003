"""How the C library keeps freed memory.

Every step allocates and frees the same large tensors. By default glibc gives such memory back to the system at once and
gets it anew, page by page, which costs a tenth of a small request and more than half of an exact decode of a larger
one. Only glibc has these settings; elsewhere nothing is changed.
"""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["KEPT_BYTES", "keep_freed_memory"]

KEPT_BYTES = 1 << 30
"""Freed memory that a process keeps at most at its heap's end, and the largest block that its heap holds."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let this process keep freed memory for its next step; to be called before its worker threads start.

    Who has set one of glibc's own variables for this has decided already, and nothing is changed.

    Returns:
        Whether the settings took effect; False is no fault, only slower.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # One arena for all threads: those of later threads hold no block above 64 MiB.
    settings = ((_ARENA_MAX, 1), (_TRIM_THRESHOLD, KEPT_BYTES), (_MMAP_THRESHOLD, KEPT_BYTES))
    taken: int = sum(mallopt(name, value) for name, value in settings)
    return taken == len(settings)
