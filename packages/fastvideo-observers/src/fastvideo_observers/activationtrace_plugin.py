"""The plugin `observer.activationtrace`. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from fastvideo_core.extend import ObserverSpec, hookimpl

__all__ = ["SPEC", "observers"]

HOOK_VERSIONS = ">=1.0,<2"

SPEC = ObserverSpec(
    name="activationtrace",
    implementation="fastvideo_observers.activationtrace:ActivationTrace",
    summary="writes mean, spread and extremes of every intermediate tensor, step by step",
    options="fastvideo_observers.options:ActivationTraceOptions",
    wants=("steps", "tensors"),
)


@hookimpl
def observers() -> Sequence[ObserverSpec]:
    """Return the activation trace."""
    return [SPEC]
