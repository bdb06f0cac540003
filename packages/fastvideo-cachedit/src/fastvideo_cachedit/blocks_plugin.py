"""The plugin `interceptor.cachedit`. Imports neither torch nor the library."""

from __future__ import annotations

from collections.abc import Sequence

from fastvideo_core.extend import InterceptorSpec, hookimpl

__all__ = ["SPEC", "interceptors"]

HOOK_VERSIONS = ">=1.0,<2"

SPEC = InterceptorSpec(
    name="cachedit",
    implementation="fastvideo_cachedit.blocks:BlockCache",
    summary="uses again what blocks added, while the first ones change little: DBCache, FBCache, TaylorSeer",
    options="fastvideo_cachedit.options:BlockOptions",
    request_options=(
        "first_blocks",
        "forecast",
        "last_blocks",
        "mask",
        "mask_policy",
        "max_cached_steps",
        "max_continuous_cached_steps",
        "taylor_order",
        "threshold",
        "warmup_steps",
    ),
    level="block",
    state="fastvideo_cachedit.state:BlockState",
    num_kept="fastvideo_cachedit.options:kept_by_blocks",
    # Of random models, and of wan-shapes' most sensitive prompts; most are far below.
    declared_error=0.25,
    # Two caches of one computation would judge by each other's leavings.
    conflicts_with=("cachedit-steps",),
    # The library's measure of change is a mean over the batch.
    max_batch=1,
    needs_steps_at_least=8,
)


@hookimpl
def interceptors() -> Sequence[InterceptorSpec]:
    """Return the block cache."""
    return [SPEC]
