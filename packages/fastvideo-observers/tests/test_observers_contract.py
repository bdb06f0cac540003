from __future__ import annotations

import pytest

from fastvideo_observers import activationtrace_plugin, nanwatch_plugin, parityaligner_plugin, profiler_plugin
from fastvideo_testing.contract import ObserverContract


class TestActivationTrace(ObserverContract):
    @pytest.fixture
    def spec(self):
        return activationtrace_plugin.SPEC


class TestNaNWatch(ObserverContract):
    @pytest.fixture
    def spec(self):
        return nanwatch_plugin.SPEC


class TestParityAligner(ObserverContract):
    @pytest.fixture
    def spec(self):
        return parityaligner_plugin.SPEC


class TestProfiler(ObserverContract):
    @pytest.fixture
    def spec(self):
        return profiler_plugin.SPEC
