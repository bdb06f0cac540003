from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fastvideo_core.extend.extensions import Extensions
from fastvideo_wan.shapes.captions import draw_caption
from fastvideo_wan.shapes.judge import judge_clip
from fastvideo_wan.shapes.render import render_clip, to_uint8_frames
from fastvideo_wan.shapes.reward import (
    CentreReward,
    PromptOptions,
    PromptReward,
    SpeedOptions,
    SpeedReward,
    read_prompt,
    read_prompts,
)
from fastvideo_wan.shapes.scenes import PAIRS, Scene, SceneRanges, draw_scene


@dataclass
class One:
    prompt: str
    frames_FYX3: np.ndarray


def clip(scene):
    return to_uint8_frames(render_clip(scene)).numpy()


def scene(start=(20.0, 32.0), end=(44.0, 32.0), motion="right"):
    drawn = draw_scene(random.Random(1), SceneRanges())
    return replace(drawn, colour="red", shape="circle", motion=motion, background="black", start_xy=start, end_xy=end)


def test_what_captions_ask_for_is_read_from_their_words():
    rng = random.Random(7)
    for _ in range(300):
        drawn: Scene = draw_scene(rng, SceneRanges())
        found = read_prompt(draw_caption(drawn, rng))
        assert (found.colour, found.shape, found.motion) == (drawn.colour, drawn.shape, drawn.motion)


def test_following_the_prompt_is_a_share_of_what_it_says():
    frames, reward = clip(scene()), PromptReward(PromptOptions())
    prompts = [
        "a red circle moving right",
        "a blue circle moving right",
        "a blue square moving left",
        "a red ball",
        "x",
    ]
    scores = reward.score([One(prompt, frames) for prompt in prompts])
    assert scores[:4] == pytest.approx([1.0, 2 / 3, 0.0, 1.0])
    assert math.isnan(scores[4])


def test_travel_and_the_middle_of_the_way_are_those_of_the_scene():
    verdict = judge_clip(clip(scene(start=(16.0, 40.0), end=(40.0, 40.0))))
    assert verdict.travel == pytest.approx(24 / 64, abs=0.02)
    assert verdict.off_centre == pytest.approx(math.hypot(28 - 32, 40 - 32) / 64, abs=0.01)
    empty = judge_clip(np.zeros((5, 64, 64, 3), np.uint8))
    assert (empty.travel, empty.off_centre) == (0.0, 1.0)


def test_speed_counts_in_the_right_direction_only():
    reward = SpeedReward(SpeedOptions(full_travel=0.75))
    moving, still = clip(scene()), clip(scene(start=(32.0, 32.0), end=(32.0, 32.0), motion="still"))
    asked = [
        ("a red circle moving right", moving),
        ("a red circle moving left", moving),
        ("a red circle at rest", still),
    ]
    assert reward.score([One(*one) for one in asked]) == pytest.approx([24 / 64 / 0.75, 0.0, 1.0], abs=0.02)


def test_centring_falls_with_the_distance():
    near, far = clip(scene()), clip(scene(start=(20.0, 44.0), end=(44.0, 44.0)))
    scores = CentreReward(None).score([One("x", near), One("x", far), One("x", np.zeros((5, 64, 64, 3), np.uint8))])
    assert scores == pytest.approx([1.0, 1 - 2 * 12 / 64, 0.0], abs=0.02)


def test_the_plugin_brings_them():
    extensions = Extensions.load({"reward.shapes": {}}, strict=True)
    assert {"shapes", "shapes-centre", "shapes-speed"} <= set(extensions.rewards)


def test_prompts_for_two_objects_are_read_and_judged():
    rng = random.Random(6)
    for _ in range(20):
        pair = draw_scene(rng, world=PAIRS)
        prompt = draw_caption(pair, rng)
        wanted = read_prompts(prompt)
        assert [(one.colour, one.shape, one.motion) for one in wanted] == [
            (one.colour, one.shape, one.motion) for one in pair.objects
        ]
        assert PromptReward(PromptOptions()).score([One(prompt, clip(pair))]) == [1.0]
    other = replace(pair, colour=next(name for name in ("red", "blue", "green") if name not in prompt))
    other = replace(other, second=replace(pair.second, colour=pair.second.colour))
    assert PromptReward(PromptOptions()).score([One(draw_caption(other, rng), clip(pair))]) == [pytest.approx(5 / 6)]
    assert PromptReward(PromptOptions(is_joint=True)).score([One(draw_caption(other, rng), clip(pair))]) == [0.0]


@pytest.mark.parametrize("prompt", ["a red circle and more", "and and", "a red circle, a blue square moving up"])
def test_one_object_is_read_where_no_two_are_named(prompt):
    assert read_prompts(prompt) == (read_prompt(prompt),)
