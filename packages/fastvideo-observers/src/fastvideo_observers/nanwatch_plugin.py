"""The plugin `observer.nanwatch`. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from fastvideo_core.extend import ObserverSpec, hookimpl

__all__ = ["SPEC", "observers"]

HOOK_VERSIONS = ">=1.0,<2"

SPEC = ObserverSpec(
    name="nanwatch",
    implementation="fastvideo_observers.nanwatch:NaNWatch",
    summary="names the first step, component and tensor that held NaN or infinity",
    options="fastvideo_observers.options:NaNWatchOptions",
    wants=("steps", "tensors"),
)


@hookimpl
def observers() -> Sequence[ObserverSpec]:
    """Return NaNWatch."""
    return [SPEC]
