"""The contract suite of model families, on the tiny checkpoint."""

from __future__ import annotations

import pytest

from fastvideo_core.runtime.catalog import Catalog
from fastvideo_testing.contract import ModelFamilyContract, family

SMALL = {"num_frames": 5, "height": 32, "width": 32, "num_inference_steps": 2}
LARGER = {**SMALL, "height": 64, "width": 64}
ACTING = {"chunk_size": 4, "resolution_tier": "256p", "num_inference_steps": 1}


class TestCosmos3(ModelFamilyContract):
    parameters = SMALL
    larger = LARGER

    @pytest.fixture
    def card(self, folder):
        return Catalog.installed().read_folder(folder)


@pytest.mark.parametrize(
    ("task", "parameters"),
    [
        ("reasoning_text", {"max_tokens": 4}),
        ("image_to_video_sound", SMALL),
        ("omni_policy", {**ACTING, "max_tokens": 3}),
    ],
)
def test_no_loop_launches_anything_before_its_steps(folder, task, parameters):
    card = Catalog.installed().read_folder(folder)
    capabilities = card.capabilities.model_copy(update={"default_task": task})
    family.check_next(card.model_copy(update={"capabilities": capabilities}), parameters)
