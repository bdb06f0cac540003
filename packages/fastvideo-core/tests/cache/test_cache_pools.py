from __future__ import annotations

import pytest

from fastvideo_core.cache import CacheHandle, CacheKey, CachePools, ResidualPool
from fastvideo_core.cache.pools import DEFAULT_MAX_BYTES, CacheBudget
from fastvideo_core.card import CacheContract
from fastvideo_core.errors import CardError, ExecutionError, ParameterError, ResourceError
from fastvideo_testing.tiny.card import tiny_card

CACHES = {
    "text": CacheContract(cache_class="feature", component="text_encoder", max_bytes=1000),
    "image": CacheContract(cache_class="feature", component="image_encoder"),
    "pages": CacheContract(cache_class="paged_kv", component="transformer", block_bytes=64, max_bytes=640),
    "slabs": CacheContract(cache_class="slab_kv", component="transformer", block_bytes=1 << 20, max_bytes=4 << 20),
    "residuals": CacheContract(cache_class="residual", component="transformer", max_bytes=500),
    "adapters": CacheContract(cache_class="weight", component="transformer", max_bytes=300),
}


@pytest.fixture
def card(tmp_path):
    return tiny_card(tmp_path)


def test_a_card_without_caches_has_no_pools(card):
    pools = CachePools(card.model_copy(update={"caches": {}}))
    assert pools.to_json() == {}
    assert pools.num_blocks() == {}
    assert pools.feature_cache(CacheKey("m", "text_encoder")) is None


def test_each_class_has_its_pool_with_the_card_s_budget(card):
    pools = CachePools(card.model_copy(update={"caches": CACHES}))
    assert pools.num_blocks() == {"pages": 10, "slabs": 4}
    text = pools.feature_cache(CacheKey("m", "text_encoder"))
    assert text is pools.features["text"]
    assert text.stats.max_bytes == 1000
    assert pools.features["image"].stats.max_bytes == DEFAULT_MAX_BYTES
    figures = pools.to_json()
    assert set(figures) == set(CACHES)
    assert figures["residuals"] == {"used_bytes": 0, "max_bytes": 500}
    assert figures["adapters"]["max_device_bytes"] == 300
    assert figures["slabs"]["num_free"] == 4


def test_a_deployment_sets_other_budgets(card):
    made = []
    pools = CachePools(
        card.model_copy(update={"caches": CACHES}),
        budgets={"pages": CacheBudget(6400), "adapters": CacheBudget(100, host_bytes=900)},
        storages={"pages": lambda num_blocks: made.append(num_blocks) or "memory"},
    )
    assert pools.num_blocks()["pages"] == 100
    assert pools.weights["adapters"].stats.max_host_bytes == 900
    assert not made
    assert pools.blocks["pages"].storage == "memory"
    assert made == [100]


def test_one_call_invalidates_all_features_of_a_model(card):
    pools = CachePools(card.model_copy(update={"caches": CACHES}))
    for name, component in (("text", "text_encoder"), ("image", "image_encoder")):
        pools.features[name].claim(CacheKey("m", component, weights_version="w1")).fill("value", 1).release()
    assert pools.invalidate("m", weights_version="w2") == 0
    assert pools.invalidate("m", weights_version="w1") == 2


def test_one_kind_of_handle_stands_for_all_classes(card):
    pools = CachePools(card.model_copy(update={"caches": CACHES}))
    handles = [
        pools.features["text"].claim(CacheKey("m", "text_encoder")).fill("value", 5),
        pools.blocks["pages"].reserve(2),
        pools.residuals["residuals"].reserve("request-1", 7),
    ]
    assert all(isinstance(handle, CacheHandle) for handle in handles)
    assert [handle.num_bytes for handle in handles] == [5, 128, 7]
    for handle in handles:
        with handle:
            assert not handle.is_released
        assert handle.is_released
        assert handle.num_bytes == 0
        with pytest.raises(ExecutionError, match=f"cache '{handle.pool}' was released before"):
            handle.release()
    assert pools.residuals["residuals"].used_bytes == 0


def test_bad_budgets_are_refused_by_name(card):
    declared = card.model_copy(update={"caches": CACHES})
    with pytest.raises(ParameterError, match=r"caches='txt'.*allowed: text, image"):
        CachePools(declared, budgets={"txt": CacheBudget(1)})
    with pytest.raises(ParameterError, match=r"caches\.pages\.max_bytes=63: not even one block fits"):
        CachePools(declared, budgets={"pages": CacheBudget(63)})
    without = CacheContract(cache_class="paged_kv", component="transformer")
    with pytest.raises(CardError, match=r"caches\.kv\.block_bytes"):
        CachePools(card.model_copy(update={"caches": {"kv": without}}))


def test_residual_bytes_are_counted_by_request():
    pool = ResidualPool("residuals", 100)
    first = pool.reserve("request-1", 60)
    with pytest.raises(ResourceError, match=r"request-2 asks for 50 bytes on cache residuals; 40 bytes of 100 bytes"):
        pool.reserve("request-2", 50)
    first.resize(20)
    second = pool.reserve("request-2", 50)
    with pytest.raises(ResourceError):
        second.resize(81)
    assert pool.used_bytes == 70
    first.release()
    with pytest.raises(ExecutionError):
        first.resize(1)
