"""The threads that share an operation on a CPU.

torch's operations are parallel regions of OpenMP, and its wheels bring GNU's (libgomp). There each thread that runs
such operations has a team of its own, which stays as long as the thread does. While all teams together are no larger
than the machine, a team that has ended an operation waits for the next one by spinning. As soon as they are larger, all
teams sleep instead, and each of the hundreds of operations of a step wakes its team anew. One product of matrices on
another thread is enough for that, so that a thread whose work is over gives its team back.

Spinning has its price too: on a machine that is busy with other work, whoever waits keeps from their core those that
are waited for. So there is a limit to it.

Source: GCC 14, libgomp/team.c, config/linux/wait.h, env.c.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache

__all__ = ["MAX_SPINS", "limit_spinning", "release_team"]

MAX_SPINS = 10_000
"""Turns of waiting, about half a millisecond; between two operations of a step there is less."""

_SOFT = 1
_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def release_team() -> bool:
    """End the threads that share operations of the calling thread; the next operation starts them again.

    Returns:
        Whether there is none now; False where OpenMP is another one, whose threads are shared by all.
    """
    pause = _pause_function() if "torch" in sys.modules else None
    return pause is not None and pause(_SOFT) == 0


@cache
def _pause_function() -> Callable[[int], int] | None:
    """Return what ends the calling thread's team in GNU's OpenMP; None if that is not what torch uses."""
    try:
        library = ctypes.CDLL(None)
        is_other = hasattr(library, "kmp_get_blocktime")  # LLVM's or Intel's
        return None if is_other else library.omp_pause_resource_all
    except (OSError, AttributeError, TypeError):  # too old, or a system without one namespace of all libraries
        return None


def limit_spinning() -> bool:
    """Limit how long threads spin between operations; to be called before torch is imported.

    Who has set one of OpenMP's own variables for this has decided already, and nothing is changed.

    Returns:
        Whether the limit will take effect.
    """
    if "torch" in sys.modules or any(name in os.environ for name in _VARIABLES):
        return False
    os.environ["GOMP_SPINCOUNT"] = str(MAX_SPINS)
    return True
