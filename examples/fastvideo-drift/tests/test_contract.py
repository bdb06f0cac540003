"""The contract suite on this family."""

from __future__ import annotations

import pytest
from fastvideo_drift.model import ShifterConfig
from fastvideo_drift.training import train

from fastvideo_testing.contract import ModelFamilyContract


class TestDrift(ModelFamilyContract):
    @pytest.fixture
    def card(self, tmp_path):
        return train(tmp_path / "checkpoint", num_steps=0, config=ShifterConfig(width=28, num_blocks=2))
