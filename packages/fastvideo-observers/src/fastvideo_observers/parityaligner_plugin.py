"""The plugin `observer.parityaligner`. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from fastvideo_core.extend import ObserverSpec, hookimpl

__all__ = ["SPEC", "observers"]

HOOK_VERSIONS = ">=1.0,<2"

SPEC = ObserverSpec(
    name="parityaligner",
    implementation="fastvideo_observers.parityaligner:ParityAligner",
    summary="records the tensors of a run, or compares them with a recording and names the first that differs",
    options="fastvideo_observers.options:ParityAlignerOptions",
    wants=("steps", "tensors"),
)


@hookimpl
def observers() -> Sequence[ObserverSpec]:
    """Return the parity aligner."""
    return [SPEC]
