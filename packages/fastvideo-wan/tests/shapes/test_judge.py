"""The judge is right on drawn clips, noisy or not, and sees what is wrong with spoilt ones."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch

from fastvideo_wan.shapes.judge import Verdict, judge_clip, judge_objects
from fastvideo_wan.shapes.render import render_clip, to_uint8_frames
from fastvideo_wan.shapes.scenes import PAIRS, WIDE, Scene, draw_scene

NOISE = 0.08
SCENE = Scene("green", "square", "still", "white", 12.0, (32.0, 32.0), (32.0, 32.0))


def judged(scene: Scene, noise: float = 0.0, seed: int = 0) -> Verdict:
    clip = render_clip(scene, num_frames=5)
    noisy = clip + noise * torch.randn(clip.shape, generator=torch.Generator().manual_seed(seed))
    return judge_clip(to_uint8_frames(noisy))


@pytest.mark.parametrize("noise", [0.0, NOISE])
def test_all_drawn_clips_are_judged_right(noise: float) -> None:
    rng = random.Random(17)
    for seed in range(100):
        scene = draw_scene(rng, world=WIDE)
        verdict = judged(scene, noise, seed)
        named = (verdict.colour, verdict.shape, verdict.direction, verdict.background)
        assert named == (scene.colour, scene.shape, scene.motion, scene.background)
        assert verdict.is_whole and verdict.is_clean and verdict.is_size_constant


PAIR = dataclasses.replace(
    SCENE, radius=7.0, start_xy=(20.0, 16.0), end_xy=(40.0, 16.0), motion="right",
    second=Scene("red", "cross", "still", "white", 7.0, (32.0, 48.0), (32.0, 48.0)),
)  # fmt: skip


@pytest.mark.parametrize("noise", [0.0, 0.04])
def test_two_objects_are_judged_right(noise: float) -> None:
    rng = random.Random(18)
    for seed in range(60):
        scene = draw_scene(rng, world=PAIRS)
        clip = render_clip(scene, num_frames=5)
        noisy = clip + noise * torch.randn(clip.shape, generator=torch.Generator().manual_seed(seed))
        verdicts = judge_objects(to_uint8_frames(noisy))
        found = {(one.colour, one.shape, one.direction) for one in verdicts}
        assert found == {(one.colour, one.shape, one.motion) for one in scene.objects}
        assert all(one.background == scene.background and one.is_clean for one in verdicts)


def test_what_is_wrong_with_two_objects_is_seen() -> None:
    frames = to_uint8_frames(render_clip(PAIR, num_frames=5)).numpy()
    assert all(one.is_whole and one.is_clean for one in judge_objects(frames))
    one_gone = frames.copy()
    one_gone[2, 32:] = 245
    by_colour = {one.colour: one for one in judge_objects(one_gone)}
    assert not by_colour["red"].is_whole and by_colour["red"].direction is None
    assert by_colour["green"].is_whole and by_colour["green"].direction == "right"
    third = frames.copy()
    third[:, 4:10, 52:58] = (50, 80, 235)
    assert not any(one.is_clean for one in judge_objects(third))
    (alone, nothing) = judge_objects(to_uint8_frames(render_clip(SCENE, num_frames=5)))
    assert (alone.colour, nothing.colour, nothing.is_whole) == ("green", None, False)


def test_objects_that_pass_each_other_keep_their_ways() -> None:
    crossing = Scene("red", "circle", "left", "white", 7.0, (48.0, 40.0), (16.0, 40.0))
    scene = dataclasses.replace(SCENE, radius=7.0, start_xy=(16.0, 20.0), end_xy=(48.0, 20.0), second=crossing)
    found = {one.colour: one.direction for one in judge_objects(to_uint8_frames(render_clip(scene)))}
    assert found == {"green": "right", "red": "left"}


def test_a_diagonal_way_is_named() -> None:
    scene = dataclasses.replace(SCENE, start_xy=(22.0, 22.0), end_xy=(42.0, 42.0))
    assert judged(scene).direction == "down-right"


def test_a_blank_clip_has_no_object() -> None:
    verdict = judge_clip(np.full((5, 64, 64, 3), 120, np.uint8))
    assert verdict.colour is None and verdict.shape is None and verdict.direction is None
    assert verdict.background == "grey"
    assert not verdict.is_whole


def test_a_second_object_is_stray() -> None:
    frames = to_uint8_frames(render_clip(SCENE, num_frames=5)).numpy()
    frames[2, 4:12, 4:12] = (225, 40, 40)
    verdict = judge_clip(frames)
    assert not verdict.is_clean
    assert 64 / 64**2 <= verdict.stray <= 100 / 64**2  # the smoothing may widen it by a pixel on each side
    assert verdict.colour == "green"


def test_an_object_cut_by_the_border_is_not_whole() -> None:
    verdict = judged(dataclasses.replace(SCENE, start_xy=(6.0, 32.0), end_xy=(6.0, 32.0)))
    assert not verdict.is_whole


def test_an_object_that_grows_has_no_constant_size() -> None:
    sizes = [render_clip(dataclasses.replace(SCENE, radius=r), num_frames=1) for r in (9.0, 10.0, 11.0, 12.0, 13.0)]
    verdict = judge_clip(to_uint8_frames(torch.cat(sizes, dim=1)))
    assert not verdict.is_size_constant
    assert verdict.size_drift == pytest.approx(2 / 11, abs=0.03)


def test_an_object_that_vanishes_has_no_direction() -> None:
    clip = render_clip(SCENE, num_frames=5)
    clip[:, 3] = clip[:, 3, :1, :1]
    verdict = judge_clip(to_uint8_frames(clip))
    assert verdict.direction is None
    assert not verdict.is_whole


@pytest.mark.parametrize("shape", [(5, 64, 64), (5, 64, 64, 4), (5, 8, 64, 3), (0, 64, 64, 3)])
def test_other_arrays_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="frames"):
        judge_clip(np.zeros(shape, np.uint8))


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="float32"):
        judge_clip(np.zeros((5, 64, 64, 3), np.float32))
