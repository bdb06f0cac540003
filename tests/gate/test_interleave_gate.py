"""The interleave gate on the cards that are shipped, at small sizes and few steps."""

from __future__ import annotations

import pytest

from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.loading import load_instance
from fastvideo_testing.gate import MODES, run_gate

SMALL = {"num_frames": 5, "height": 64, "width": 64, "num_inference_steps": 2}


@pytest.fixture(scope="module")
def shapes():
    return load_instance(Catalog.installed().find("wan-shapes"))


def test_wan_shapes_gives_in_a_crowd_what_it_gives_alone(shapes):
    variations = [{}, {"num_frames": 9}, {}, {"height": 96}, {}]
    report = run_gate(shapes, parameters=SMALL, variations=variations, num_survivors=4, faults=("nan", "error"))
    assert len(report.modes) == len(MODES)
    for one in report.modes:
        limit = 0.0 if one.mode.is_exact or one.mode.max_batch == 1 else shapes.card.parity.batch_max_relative_error
        assert one.relative_error <= limit
    assert max(one.max_batch for one in report.modes) >= 3
