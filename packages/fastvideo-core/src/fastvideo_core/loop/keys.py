"""The batch key that most loops give their steps."""

from __future__ import annotations

from functools import lru_cache

from fastvideo_core.loop.base import ModelView
from fastvideo_core.loop.work import BatchKey, Profile, ShapeSignature

__all__ = ["EXACT", "batch_key"]

EXACT = "exact"
"""The variant of steps that keep the reference's order of operations, which the runtime looks for."""


def batch_key(
    model: ModelView,
    *,
    component: str,
    loop_kind: str,
    shape: ShapeSignature,
    is_exact: bool,
    profile: Profile = "serve",
) -> BatchKey:
    """Return the key of a step of a model as it is resident; equal ones are one object.

    Args:
        model: The resident model.
        component: The component that runs.
        loop_kind: Which of the loop's steps it is, where there are several kinds; else the loop.
        shape: Shapes.
        is_exact: Whether the reference's order of operations is kept.
        profile: Serve, rollout or train.
    """
    variant = EXACT if is_exact else "fast"
    identity = (model.instance_id, model.precision, model.weights_version)
    return _made(*identity, component, loop_kind, shape, profile, variant)


@lru_cache(maxsize=1024)
def _made(
    instance_id: str,
    precision: str,
    weights_version: str,
    component: str,
    loop_kind: str,
    shape: ShapeSignature,
    profile: Profile,
    variant: str,
) -> BatchKey:
    """Return a key; the steps of a loop have the same one, so that it is not made anew at each."""
    return BatchKey(
        instance_id=instance_id,
        component=component,
        loop_kind=loop_kind,
        shape_sig=shape,
        precision=precision,
        weights_version=weights_version,
        profile=profile,
        variant=variant,
    )
