"""The parts of cache-dit that are used, imported such that they say and keep nothing.

The library keeps its state in contexts that a manager holds by name, and finds out by counting calls whose turn it is.
Here a context lives for one step: it is made of the request's own state, used, and taken apart again. The manager is
made for one call and holds nothing before and after.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

# Read once, when the library is imported: it would greet on the standard output, where results are written.
os.environ.setdefault("CACHE_DIT_LOG_LEVEL", "warning")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from cache_dit import DBCacheConfig, FoCaCalibratorConfig, TaylorSeerCalibratorConfig, steps_mask
    from cache_dit.caching import CachedContext, CachedContextManager
    from cache_dit.caching.cache_contexts.calibrators import Calibrator, CalibratorBase
    from cache_dit.caching.cache_contexts.calibrators.foca import FoCaCalibrator, FoCaState
    from cache_dit.caching.cache_contexts.calibrators.taylorseer import TaylorSeerCalibrator, TaylorSeerState

__all__ = [
    "CachedContext",
    "Calibrator",
    "CalibratorBase",
    "DBCacheConfig",
    "FoCaCalibrator",
    "FoCaCalibratorConfig",
    "FoCaState",
    "Manager",
    "TaylorSeerCalibrator",
    "TaylorSeerCalibratorConfig",
    "TaylorSeerState",
    "steps_mask",
]

_MARK = "_torchdynamo_orig_callable"


def _unmarked(cls: type[Any]) -> dict[str, Any]:
    """Return the methods of a class without the mark that keeps torch from compiling them.

    The mark costs ten microseconds a call, of which one step makes a hundred; nothing here is compiled.
    """
    methods = {name: getattr(value, _MARK, None) for name, value in vars(cls).items()}
    return {name: method for name, method in methods.items() if method is not None}


Manager: Any = type("Manager", (CachedContextManager,), _unmarked(CachedContextManager))
"""The library's manager of contexts, of which it decides and computes with the one that is set."""
