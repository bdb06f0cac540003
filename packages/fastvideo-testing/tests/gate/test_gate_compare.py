from __future__ import annotations

import numpy as np
import pytest
import torch

from fastvideo_core.request.artifacts import LatentArtifact, TensorArtifact, TextArtifact, VideoArtifact
from fastvideo_testing.gate.compare import describe_differences, largest_relative_error


def latents(*values):
    return {"latents": LatentArtifact(np.array(values, np.float32).reshape(1, 1, 1, -1))}


def video(level):
    return {"video": VideoArtifact(np.full((1, 2, 2, 3), level, np.uint8), 8)}


def test_the_same_bits_are_no_difference():
    assert describe_differences(latents(1, 2), latents(1, 2), None) == []
    assert describe_differences(video(3), video(3), None) == []
    assert largest_relative_error(latents(1, 2), latents(1, 2)) == 0.0


def test_a_difference_says_how_much_and_where():
    (line,) = describe_differences(latents(1, -4, 3), latents(1, -4, 3.5), None)
    assert line == (
        "latents differs in 1 of 3 values, by at most 0.5 (at (0, 0, 0, 2)); allowed: no other bit, got 0.12"
    )  # fmt: skip
    assert largest_relative_error(latents(1, -4, 3), latents(1, -4, 3.5)) == pytest.approx(0.125)


def test_a_sign_of_zero_is_another_bit():
    assert describe_differences(latents(0.0, 1.0), latents(-0.0, 1.0), None)
    assert not describe_differences(latents(0.0, 1.0), latents(-0.0, 1.0), 0.0)


@pytest.mark.parametrize(("bound", "is_within"), [(0.1, False), (0.125, True), (1.0, True)])
def test_a_bound_is_relative_to_the_largest_value(bound, is_within):
    assert (describe_differences(latents(1, -4, 3), latents(1, -4, 3.5), bound) == []) is is_within


@pytest.mark.parametrize(
    ("level", "bound", "is_within"), [(1, 1e-4, True), (2, 1e-4, False), (2, 2 / 255, True), (1, None, False)]
)
def test_pixels_may_go_to_the_next_level(level, bound, is_within):
    assert (describe_differences(video(100), video(100 + level), bound) == []) is is_within


def test_shapes_types_and_names_are_compared():
    one = {"t": TensorArtifact(torch.zeros(2, dtype=torch.bfloat16)), "x": TextArtifact((1,), "a")}
    other = {"t": TensorArtifact(torch.zeros(3, dtype=torch.bfloat16)), "x": TextArtifact((2,), "a")}
    assert describe_differences(one, other, 1.0) == [
        "t.tensor is float32[3] and not float32[2]", "x.token_ids is (2,) and not (1,)",
    ]  # fmt: skip
    assert describe_differences(one, {"t": one["t"]}, None) == ["it made t and not t, x"]
