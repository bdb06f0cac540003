"""The key of a step's result that other requests may share."""

from __future__ import annotations

from typing import Any

from fastvideo_core.cache import CacheKey, input_hashes
from fastvideo_core.loop.base import ModelView
from fastvideo_core.loop.work import BatchKey

__all__ = ["result_key"]


def result_key(model: ModelView, key: BatchKey, **inputs: Any) -> CacheKey | None:
    """Return the key of a result that follows from a component and some inputs alone.

    Args:
        model: The resident model.
        key: The step's batch key: component, precision, adapters, weights, shapes and numerics come from it.
        **inputs: All that the result depends on besides: token ids, pixels.

    Returns:
        The key, for `CachePlan.result_key`; None if the card has no feature cache of the component, if requests may not
        share its entries, or in the train profile, where a result carries gradients.

    Raises:
        ParameterError: An input has no content that could be hashed.
    """
    contract = next(
        (one for one in model.card.caches.values() if one.cache_class == "feature" and one.component == key.component),
        None,
    )
    if contract is None or not contract.shareable or key.profile == "train":
        return None
    return CacheKey(
        model_id=model.card.model_id,
        component_id=key.component,
        loop_id=key.loop_kind,
        weights_version=key.weights_version,
        adapter_versions=key.adapters,
        precision=key.precision,
        parallel_plan_hash=key.parallel_plan,
        shape_sig=repr(key.shape_sig.dims),
        layout_sig=key.variant,
        input_hashes=input_hashes(**inputs),
        contract_version=contract.contract_version,
    )
