"""The plugin `observer.profiler`. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from fastvideo_core.extend import ObserverSpec, hookimpl

__all__ = ["SPEC", "observers"]

HOOK_VERSIONS = ">=1.0,<2"

SPEC = ObserverSpec(
    name="profiler",
    implementation="fastvideo_observers.profiler:Profiler",
    summary="writes wall and device time of every step, as a Chrome trace, a table, and costs for the scheduler",
    options="fastvideo_observers.options:ProfilerOptions",
    wants=("steps",),
)


@hookimpl
def observers() -> Sequence[ObserverSpec]:
    """Return the profiler."""
    return [SPEC]
