"""The contract suite: on the tiny family, and on a small Wan whose blocks are enough to leave some out."""

from __future__ import annotations

import pytest

from fastvideo_cachedit import blocks_plugin, steps_plugin
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_testing.contract import InterceptorContract
from fastvideo_testing.wan_checkpoints import build_wan_checkpoint

SMALL = {"num_frames": 5, "height": 16, "width": 16, "num_inference_steps": 12}


@pytest.fixture(scope="session")
def small_wan(tmp_path_factory):
    """A Wan of six layers with random weights."""
    folder = build_wan_checkpoint(tmp_path_factory.mktemp("wan"), "t2v", transformer={"num_layers": 6})
    return Catalog.installed().read_folder(folder)


class TestBlockCache(InterceptorContract):
    @pytest.fixture
    def spec(self):
        return blocks_plugin.SPEC


class TestStepCache(InterceptorContract):
    @pytest.fixture
    def spec(self):
        return steps_plugin.SPEC


class TestBlockCacheOnWan(InterceptorContract):
    parameters = SMALL

    @pytest.fixture
    def spec(self):
        return blocks_plugin.SPEC

    @pytest.fixture
    def card(self, small_wan):
        return small_wan


class TestStepCacheOnWan(InterceptorContract):
    parameters = SMALL

    @pytest.fixture
    def spec(self):
        return steps_plugin.SPEC

    @pytest.fixture
    def card(self, small_wan):
        return small_wan
