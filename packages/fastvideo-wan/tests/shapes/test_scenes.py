"""Scenes stay inside the frame, follow from the seed, and move as they say."""

from __future__ import annotations

import random

import pytest

from fastvideo_wan.shapes.render import render_clip
from fastvideo_wan.shapes.scenes import BACKGROUNDS, COLOURS, FRAME_SIZE, MOTIONS, SHAPES, SceneRanges, draw_scene


def test_the_same_seed_draws_the_same_scenes() -> None:
    first, second = random.Random(3), random.Random(3)
    assert [draw_scene(first) for _ in range(20)] == [draw_scene(second) for _ in range(20)]


def test_every_kind_is_drawn() -> None:
    rng = random.Random(0)
    scenes = [draw_scene(rng) for _ in range(300)]
    assert {s.colour for s in scenes} == set(COLOURS)
    assert {s.shape for s in scenes} == set(SHAPES)
    assert {s.motion for s in scenes} == set(MOTIONS)
    assert {s.background for s in scenes} == set(BACKGROUNDS)


def test_objects_never_touch_the_border() -> None:
    rng = random.Random(1)
    for _ in range(100):
        scene = draw_scene(rng)
        clip = render_clip(scene, num_frames=5)
        background = clip[:, :1, :1, :1]
        border = [clip[:, :, 0], clip[:, :, -1], clip[:, :, :, 0], clip[:, :, :, -1]]
        assert all((side - background[..., 0]).abs().max() == 0 for side in border), scene


@pytest.mark.parametrize("motion", MOTIONS)
def test_the_way_has_the_motions_direction_and_length(motion: str) -> None:
    rng, ranges = random.Random(motion), SceneRanges()
    scene = next(s for s in (draw_scene(rng, ranges) for _ in range(200)) if s.motion == motion)
    way = [b - a for a, b in zip(scene.start_xy, scene.end_xy, strict=True)]
    length = sum(abs(part) for part in way)
    step = MOTIONS[motion]
    assert way == pytest.approx([length * part for part in step])
    if motion != "still":
        assert ranges.min_travel <= length <= ranges.max_travel
    assert all(0 < c < FRAME_SIZE for c in (*scene.start_xy, *scene.end_xy))
