"""Scenes stay inside the frame, follow from the seed, and move as they say."""

from __future__ import annotations

import json
import random

import pytest
import torch

from fastvideo_wan.shapes.render import render_clip
from fastvideo_wan.shapes.scenes import (
    BACKGROUNDS,
    FRAME_SIZE,
    MOTIONS,
    PAIRS,
    PLAIN,
    WIDE,
    SceneRanges,
    World,
    as_json,
    draw_scene,
    from_json,
)


def test_the_same_seed_draws_the_same_scenes() -> None:
    first, second = random.Random(3), random.Random(3)
    assert [draw_scene(first) for _ in range(20)] == [draw_scene(second) for _ in range(20)]


@pytest.mark.parametrize("world", [PLAIN, WIDE, PAIRS], ids=["plain", "wide", "pairs"])
def test_every_kind_is_drawn(world: World) -> None:
    rng = random.Random(0)
    scenes = [one for _ in range(300) for one in draw_scene(rng, world=world).objects]
    assert {s.colour for s in scenes} == set(world.colours)
    assert {s.shape for s in scenes} == set(world.shapes)
    assert {s.motion for s in scenes} == set(world.motions)
    assert {s.background for s in scenes} == set(BACKGROUNDS)


def test_the_plain_world_is_drawn_as_before_there_were_others() -> None:
    """Prompts that figures were measured on follow from these draws."""
    scene = draw_scene(random.Random("evaluation/20000"))
    assert (scene.colour, scene.shape, scene.motion, scene.background) == ("purple", "square", "still", "black")
    assert (len(PLAIN.colours), len(PLAIN.shapes), len(PLAIN.motions)) == (6, 3, 5)
    assert (len(WIDE.colours), len(WIDE.shapes), len(WIDE.motions)) == (8, 5, 9)


def test_two_objects_differ_in_colour_and_keep_apart() -> None:
    rng = random.Random(2)
    for _ in range(100):
        scene = draw_scene(rng, world=PAIRS)
        first, second = scene.objects
        assert first.colour != second.colour and first.background == second.background
        alone = [(render_clip(one) - render_clip(one)[:, :, :1, :1]).abs().amax(0) > 0 for one in (first, second)]
        together = (render_clip(scene) - render_clip(scene)[:, :, :1, :1]).abs().amax(0) > 0
        assert not (alone[0] & alone[1]).any()
        assert torch.equal(together, alone[0] | alone[1])


@pytest.mark.parametrize("world", [WIDE, PAIRS], ids=["wide", "pairs"])
def test_scenes_survive_json(world: World) -> None:
    rng = random.Random(3)
    for _ in range(20):
        scene = draw_scene(rng, world=world)
        read = from_json(json.loads(json.dumps(as_json(scene))))
        assert as_json(read) == json.loads(json.dumps(as_json(scene)))
        assert torch.equal(render_clip(read), render_clip(scene))


@pytest.mark.parametrize("world", [PLAIN, WIDE, PAIRS], ids=["plain", "wide", "pairs"])
def test_objects_never_touch_the_border(world: World) -> None:
    rng = random.Random(1)
    for _ in range(100):
        scene = draw_scene(rng, world=world)
        clip = render_clip(scene, num_frames=5)
        background = clip[:, :1, :1, :1]
        border = [clip[:, :, 0], clip[:, :, -1], clip[:, :, :, 0], clip[:, :, :, -1]]
        assert all((side - background[..., 0]).abs().max() == 0 for side in border), scene


@pytest.mark.parametrize("motion", MOTIONS)
def test_the_way_has_the_motions_direction_and_length(motion: str) -> None:
    rng, ranges = random.Random(motion), SceneRanges()
    scene = next(s for s in (draw_scene(rng, ranges, WIDE) for _ in range(200)) if s.motion == motion)
    way = [b - a for a, b in zip(scene.start_xy, scene.end_xy, strict=True)]
    length = sum(part**2 for part in way) ** 0.5
    step = MOTIONS[motion]
    assert way == pytest.approx([length * part for part in step])
    if motion != "still":
        assert ranges.min_travel <= length <= ranges.max_travel
    assert all(0 < c < FRAME_SIZE for c in (*scene.start_xy, *scene.end_xy))
