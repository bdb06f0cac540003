"""The plugin `interceptor.cachedit-steps`. Imports neither torch nor the library."""

from __future__ import annotations

from collections.abc import Sequence

from fastvideo_core.extend import InterceptorSpec, hookimpl

__all__ = ["SPEC", "interceptors"]

HOOK_VERSIONS = ">=1.0,<2"

SPEC = InterceptorSpec(
    name="cachedit-steps",
    implementation="fastvideo_cachedit.steps:StepCache",
    summary="answers for the model on the steps that a mask leaves out, by a forecast of its predictions",
    options="fastvideo_cachedit.options:StepOptions",
    request_options=("forecast", "mask", "taylor_order", "warmup_steps"),
    level="step",
    state="fastvideo_cachedit.steps:StepState",
    num_kept="fastvideo_cachedit.options:kept_by_steps",
    # Of random models, and of wan-shapes' most sensitive prompts; most are far below.
    declared_error=0.25,
    # Two caches of one computation would judge by each other's leavings.
    conflicts_with=("cachedit",),
    needs_steps_at_least=8,
)


@hookimpl
def interceptors() -> Sequence[InterceptorSpec]:
    """Return the step cache."""
    return [SPEC]
