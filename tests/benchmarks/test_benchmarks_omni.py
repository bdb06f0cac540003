"""The benchmark of omni requests, on the tiny model."""

from __future__ import annotations

import warnings

import pytest
import torch

import omni


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(omni, "MODEL", {})
        patch.setattr(omni, "NUM_TOKENS", 4)
        patch.setattr(omni, "LONG_STEPS", 8)
        patch.setattr(omni, "SIZE", {"num_frames": 5, "height": 32, "width": 32})
        patch.setattr(omni, "DENOISING", {**omni.SIZE, "num_inference_steps": 2, "guidance_scale": 3.0})
        found = omni.Sides(tmp_path_factory.mktemp("omni"))
        yield found
        found.engine.close()


def test_both_sides_make_the_same_and_weights_are_counted(sides):
    assert sides.check()["latents_error"] <= 1e-5
    counted = sides.weights()
    assert counted["duplicate_bytes"] == 0
    assert 0.5 < counted["weight_bytes_ratio"] < 1


def test_a_second_copy_of_a_weight_is_counted(sides):
    transformer = sides.engine.instance.component("transformer")
    own = transformer.norm.weight
    try:
        transformer.norm.weight = torch.nn.Parameter(
            transformer.norm_moe_gen.weight.detach().clone(), requires_grad=False
        )
        assert sides.weights()["duplicate_bytes"] == own.nbytes
    finally:
        transformer.norm.weight = own


def test_every_figure_is_measured(sides):
    figures = omni.measure(sides, 1)
    assert {"time_ratio", "ttft_steps", "ar_batch_gain"} <= set(figures)
    assert figures["ttft_steps"] >= 0
