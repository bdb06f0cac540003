"""Caches: keys that hold all that a content depends on, and a pool with a budget of its own for each class of block.

Imports no torch; slabs, which are made of tensors, are in `fastvideo_core.cache.slabs`. Pools are used from one thread,
the control plane's, unless they say otherwise.
"""

from fastvideo_core.cache.base import CacheHandle, CacheKey
from fastvideo_core.cache.blocks import BlockPool, BlockTable
from fastvideo_core.cache.content import content_hash, held_bytes, input_hashes, tensors_in
from fastvideo_core.cache.features import Claim, FeatureCache, FeatureHandle, FeatureStats
from fastvideo_core.cache.pools import CachePools
from fastvideo_core.cache.residual import ResidualHandle, ResidualPool
from fastvideo_core.cache.slab_pool import SlabLease, SlabPool
from fastvideo_core.cache.weights import WeightCache, WeightHandle, WeightLoader

__all__ = [
    "BlockPool",
    "BlockTable",
    "CacheHandle",
    "CacheKey",
    "CachePools",
    "Claim",
    "FeatureCache",
    "FeatureHandle",
    "FeatureStats",
    "ResidualHandle",
    "ResidualPool",
    "SlabLease",
    "SlabPool",
    "WeightCache",
    "WeightHandle",
    "WeightLoader",
    "content_hash",
    "held_bytes",
    "input_hashes",
    "tensors_in",
]
