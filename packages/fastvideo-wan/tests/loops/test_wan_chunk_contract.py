"""The contract of model families on causal cards."""

from __future__ import annotations

from typing import ClassVar

import pytest

from fastvideo_testing.contract import ModelFamilyContract


class TestCausal(ModelFamilyContract):
    """A window with a sink."""

    parameters: ClassVar[dict[str, int]] = {"num_frames": 13, "num_inference_steps": 2, "height": 32, "width": 32}
    larger: ClassVar[dict[str, int]] = {**parameters, "num_frames": 21}

    @pytest.fixture
    def card(self, causal_instance):
        return causal_instance("sink").card

    @pytest.mark.xfail(reason="16 times what torch counts is stated; the cause is not settled", strict=True)
    def test_costs_grow_and_are_near_what_is_counted(self, card):
        super().test_costs_grow_and_are_near_what_is_counted(card)
