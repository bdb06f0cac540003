"""The plugin `observer.profiler`. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from fastvideo_core.extend import ObserverSpec, hookimpl

__all__ = ["SPEC", "observers"]

HOOK_VERSIONS = ">=1.0,<2"

SPEC = ObserverSpec(
    name="profiler",
    implementation="fastvideo_observers.profiler:Profiler",
    summary="writes what every call takes, as a Chrome trace and as a table",
    options="fastvideo_observers.options:ProfilerOptions",
    wants=("steps",),
)


@hookimpl
def observers() -> Sequence[ObserverSpec]:
    """Return the profiler."""
    return [SPEC]
