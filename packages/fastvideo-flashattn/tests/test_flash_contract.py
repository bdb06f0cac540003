from __future__ import annotations

import pytest

from fastvideo_flashattn import plugin
from fastvideo_testing.contract import AttentionContract


class TestFlash2(AttentionContract):
    @pytest.fixture
    def spec(self):
        return plugin.FLASH2


class TestFlash3(AttentionContract):
    @pytest.fixture
    def spec(self):
        return plugin.FLASH3


class TestFlash(AttentionContract):
    @pytest.fixture
    def spec(self):
        return plugin.FLASH
