"""The pools of a card: one for each cache that it declares, none for what it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastvideo_core.cache.base import CacheKey
from fastvideo_core.cache.blocks import BlockPool
from fastvideo_core.cache.features import FeatureCache
from fastvideo_core.cache.residual import ResidualPool
from fastvideo_core.cache.slab_pool import SlabPool
from fastvideo_core.cache.weights import WeightCache
from fastvideo_core.card import CacheContract, ModelCard
from fastvideo_core.errors import CardError, ParameterError

__all__ = ["DEFAULT_MAX_BYTES", "CacheBudget", "CachePools"]

DEFAULT_MAX_BYTES = 256 << 20
"""Budget of a cache for which neither the card nor the deployment says one."""


@dataclass(frozen=True, slots=True)
class CacheBudget:
    """What a deployment gives a cache, in place of what the card says.

    Attributes:
        max_bytes: Most bytes on the device.
        host_bytes: Most bytes in host memory, for a cache of weights.
    """

    max_bytes: int
    host_bytes: int = 0


class CachePools:
    """The pools of a card's caches; nothing is allocated before it is used.

    Args:
        card: The card.
        budgets: Budgets by cache, where they differ from the card's.
        storages: Makers of the memory behind the blocks, by cache; called with the number of blocks.

    Attributes:
        features: Feature caches by name.
        blocks: Pools of blocks by name.
        slabs: Pools of slabs by name.
        residuals: Residual pools by name.
        weights: Weight caches by name.

    Raises:
        CardError: A cache of blocks does not say how large one is.
        ParameterError: A budget is for a cache that the card does not have, or holds not even one block.
    """

    def __init__(
        self,
        card: ModelCard,
        *,
        budgets: Mapping[str, CacheBudget] | None = None,
        storages: Mapping[str, Callable[[int], Any]] | None = None,
    ) -> None:
        given = dict(budgets or {})
        for name in given:
            if name not in card.caches:
                raise ParameterError(
                    f"card {card.model_id} has no such cache",
                    field="caches",
                    value=name,
                    allowed=", ".join(card.caches) or "none",
                )
        self.features: dict[str, FeatureCache] = {}
        self.blocks: dict[str, BlockPool] = {}
        self.slabs: dict[str, SlabPool] = {}
        self.residuals: dict[str, ResidualPool] = {}
        self.weights: dict[str, WeightCache] = {}
        self._features_by_component: dict[str, FeatureCache] = {}
        for name, contract in card.caches.items():
            budget = given.get(name, CacheBudget(contract.max_bytes or DEFAULT_MAX_BYTES))
            self._add(name, contract, budget, (storages or {}).get(name))

    def feature_cache(self, key: CacheKey) -> FeatureCache | None:
        """Return the cache that may hold a result; None if the card shares no results of that component."""
        return self._features_by_component.get(key.component_id)

    def num_blocks(self) -> dict[str, int]:
        """Return how many blocks or slabs each pool has, for admission."""
        blocks = {name: pool.num_blocks for name, pool in self.blocks.items()}
        return blocks | {name: pool.num_slabs for name, pool in self.slabs.items()}

    def invalidate(self, model_id: str, *, weights_version: str | None = None) -> int:
        """Drop the features of a model, or of one version of its weights, from all caches; see `FeatureCache`.

        Returns:
            Number of entries dropped.
        """
        return sum(cache.invalidate(model_id, weights_version=weights_version) for cache in self.features.values())

    def to_json(self) -> dict[str, Any]:
        """Return the figures of all pools, by name."""
        return {
            **{name: cache.stats.to_json() for name, cache in self.features.items()},
            **{name: pool.stats.to_json() for name, pool in self.blocks.items()},
            **{name: pool.stats.to_json() for name, pool in self.slabs.items()},
            **{
                name: {"used_bytes": pool.used_bytes, "max_bytes": pool.max_bytes}
                for name, pool in self.residuals.items()
            },
            **{name: cache.stats.to_json() for name, cache in self.weights.items()},
        }

    def _add(
        self, name: str, contract: CacheContract, budget: CacheBudget, make_storage: Callable[[int], Any] | None
    ) -> None:
        match contract.cache_class:
            case "feature":
                cache = self.features[name] = FeatureCache(name, budget.max_bytes)
                self._features_by_component[contract.component] = cache
            case "paged_kv":
                size = _block_bytes(name, contract)
                self.blocks[name] = BlockPool(name, _num_blocks(name, size, budget), size, make_storage)
            case "slab_kv":
                size = _block_bytes(name, contract)
                self.slabs[name] = SlabPool(name, _num_blocks(name, size, budget), size)
            case "residual":
                self.residuals[name] = ResidualPool(name, budget.max_bytes)
            case "weight":
                self.weights[name] = WeightCache(name, budget.max_bytes, budget.host_bytes)


def _block_bytes(name: str, contract: CacheContract) -> int:
    if contract.block_bytes is None:
        raise CardError("a cache of blocks says how large one is", field=f"caches.{name}.block_bytes", value=None)
    return contract.block_bytes


def _num_blocks(name: str, block_bytes: int, budget: CacheBudget) -> int:
    num_blocks = budget.max_bytes // block_bytes
    if num_blocks < 1:
        raise ParameterError(
            "not even one block fits",
            field=f"caches.{name}.max_bytes",
            value=budget.max_bytes,
            allowed=f"{block_bytes} or more",
            nearest=block_bytes,
        )
    return num_blocks
