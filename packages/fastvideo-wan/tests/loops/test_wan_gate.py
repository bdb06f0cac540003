"""The interleave gate on every variant of Wan, built small by the reference library."""

from __future__ import annotations

import pytest

from fastvideo_testing.gate import MODES, run_gate

SMALL = {"num_frames": 5, "height": 32, "width": 32}
CHOSEN = [mode for mode in MODES if mode.name in ("interleaved through bytes", "batched", "exact on the engine")]


@pytest.mark.parametrize("variant", ["t2v", "i2v-vision", "ti2v-5b", "a14b-i2v", "dmd"])
def test_requests_of_a_variant_give_in_a_crowd_what_they_give_alone(variant, instance):
    model = instance(variant)
    pinned = {name for loop in model.card.loops.values() for name in loop.pinned}
    few = {} if "num_inference_steps" in pinned else {"num_inference_steps": 3}
    for task in model.card.capabilities.tasks:
        report = run_gate(
            model, modes=CHOSEN, task=task, parameters={**SMALL, **few}, num_survivors=3, faults=("nan", "error")
        )
        bound = model.card.parity.batch_max_relative_error
        assert [one.relative_error <= bound for one in report.modes] == [True] * len(CHOSEN)
        assert report.modes[1].max_batch >= 2
