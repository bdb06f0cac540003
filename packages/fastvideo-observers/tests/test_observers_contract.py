from __future__ import annotations

import pytest

from fastvideo_observers import nanwatch_plugin, profiler_plugin
from fastvideo_testing.contract import ObserverContract


class TestNaNWatch(ObserverContract):
    @pytest.fixture
    def spec(self):
        return nanwatch_plugin.SPEC


class TestProfiler(ObserverContract):
    @pytest.fixture
    def spec(self):
        return profiler_plugin.SPEC
