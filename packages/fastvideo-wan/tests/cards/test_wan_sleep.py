"""Sleep and wake of the shipped card's components."""

from __future__ import annotations

import weakref

import pytest
import torch

from fastvideo_core.errors import ComponentAsleepError
from fastvideo_core.runtime.engine import Engine


def test_the_shipped_card_sleeps_by_component_and_makes_the_same_video_after_waking():
    with Engine.open("wan-shapes", device="cpu") as engine:
        instance = engine.instance
        ask = {"seed": 5, "num_inference_steps": 2, "num_frames": 9, "guidance_scale": 1.0}
        first = engine.generate("a red circle moving right", **ask)
        before = {name: tensor.clone() for name, tensor in instance.component("transformer").state_dict().items()}
        module = weakref.ref(instance.component("transformer"))
        expected = sum(tensor.nbytes for tensor in instance.component("transformer").parameters())

        freed = instance.sleep(["transformer"])
        assert freed == expected
        assert module() is None
        assert instance.component("vae") is not None
        with pytest.raises(ComponentAsleepError, match="transformer asleep"):
            engine.generate("a red circle moving right", **ask)

        assert instance.wake() == freed
        after = instance.component("transformer").state_dict()
        assert after.keys() == before.keys()
        assert all(torch.equal(after[name], before[name]) for name in before)
        again = engine.generate("a red circle moving right", **ask)
    assert (first.video.frames == again.video.frames).all()
