"""Drawn shapes have the areas, places and colours that geometry gives."""

from __future__ import annotations

import math

import pytest
import torch

from fastvideo_wan.shapes.judge import AREA_PER_SQUARED_RADIUS
from fastvideo_wan.shapes.render import coverage, render_clip, render_view, signed_distance, to_uint8_frames, way
from fastvideo_wan.shapes.scenes import SHAPES, Scene

SCENE = Scene("red", "circle", "right", "black", 12.0, (20.0, 32.0), (44.0, 32.0))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("radius", [9.0, 12.3])
def test_coverage_sums_to_the_shapes_area(shape: str, radius: float) -> None:
    axis = torch.arange(64) + 0.5 - 31.7
    total = coverage(shape, axis.view(1, -1), axis.view(-1, 1), radius).sum().item()
    assert total == pytest.approx(AREA_PER_SQUARED_RADIUS[shape] * radius**2, rel=0.02)


def test_a_triangle_points_up() -> None:
    zero = torch.zeros(1)
    assert signed_distance("triangle", zero, torch.tensor([-12.0]), 12.0).item() < 0
    assert signed_distance("triangle", zero, torch.tensor([12.0]), 12.0).item() > 0


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="circle, square, triangle"):
        signed_distance("star", torch.zeros(1), torch.zeros(1), 1.0)


def test_centres_move_evenly_from_start_to_end() -> None:
    red_THW = render_clip(SCENE)[0] - 10 / 255
    columns = torch.arange(64) + 0.5
    centres = (red_THW.sum(1) * columns).sum(1) / red_THW.sum((1, 2))
    assert torch.allclose(centres, torch.linspace(20, 44, 17), atol=0.05)


def test_bytes_have_the_palettes_colours() -> None:
    frames = to_uint8_frames(render_clip(SCENE, num_frames=1))
    assert frames.shape == (1, 64, 64, 3)
    assert frames[0, 32, 20].tolist() == [225, 40, 40]
    assert frames[0, 0, 0].tolist() == [10, 10, 10]


def test_a_larger_frame_shows_the_same_scene_larger() -> None:
    small, large = render_clip(SCENE, num_frames=1), render_clip(SCENE, num_frames=1, height=128, width=128)
    halved = torch.nn.functional.avg_pool2d(large[:, 0], 2)
    assert (halved - small[:, 0]).abs().mean() < 0.002
    area = (large[0] > 0.4).sum().item()
    assert area == pytest.approx(math.pi * 24**2, rel=0.02)


def test_a_wide_frame_shows_the_square_scene_in_its_middle() -> None:
    square, wide = render_clip(SCENE, num_frames=5), render_clip(SCENE, num_frames=5, width=96)
    assert wide.shape == (3, 5, 64, 96)
    assert torch.allclose(wide[..., 16:80], square, atol=1e-6)
    tall = render_clip(SCENE, num_frames=5, height=80, width=64)
    assert torch.allclose(tall[:, :, 8:72], square, atol=1e-6)


def test_a_window_is_a_part_of_the_clip() -> None:
    clip = render_clip(SCENE, height=96, width=96)
    view = render_view(SCENE, way(17)[3:8], scale=1.5, corner_xy=(24.0, 40.0), height=32, width=48)
    assert torch.allclose(view, clip[:, 3:8, 40:72, 24:72], atol=1e-5)
