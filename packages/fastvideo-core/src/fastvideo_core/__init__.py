"""FastVideo core: contracts, runtime and command line for video generation.

Importing the package imports neither torch nor a model; the names below are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard
    from fastvideo_core.front import VideoGenerator
    from fastvideo_core.request.base import Request
    from fastvideo_core.runtime.engine import Engine, RequestHandle
    from fastvideo_core.runtime.run import GenerationResult

__all__ = ["Engine", "GenerationResult", "ModelCard", "Request", "RequestHandle", "VideoGenerator", "__version__"]

_LAZY = {
    "Engine": "fastvideo_core.runtime.engine",
    "GenerationResult": "fastvideo_core.runtime.run",
    "ModelCard": "fastvideo_core.card",
    "Request": "fastvideo_core.request.base",
    "RequestHandle": "fastvideo_core.runtime.engine",
    "VideoGenerator": "fastvideo_core.front",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name == "__version__":
        from importlib_metadata import version

        return version("fastvideo-core")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
