"""Streams go on without a jump, wrap around the frame, and are judged right chunk by chunk."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from fastvideo_wan.shapes.captions import is_held_out, is_ordered, names_background
from fastvideo_wan.shapes.judge import judge_clip
from fastvideo_wan.shapes.render import render_clip, render_wrapped, to_uint8_frames
from fastvideo_wan.shapes.scenes import Scene
from fastvideo_wan.shapes.streams import (
    KINDS,
    StreamRanges,
    draw_captions,
    draw_stream,
    first_frame,
    num_frames,
    position,
    render_stream,
    render_turn,
    turn_of_chunk,
)


def test_chunks_are_nine_frames_and_then_twelve() -> None:
    assert [first_frame(chunk) for chunk in range(4)] == [0, 9, 21, 33]
    assert num_frames(7) == 81


def test_inside_the_frame_a_wrapped_clip_is_a_plain_one() -> None:
    scene = Scene("red", "triangle", "right", "white", 12.0, (20.0, 30.0), (44.0, 30.0))
    plain = render_clip(scene, num_frames=5)
    assert torch.allclose(render_wrapped(scene, torch.linspace(0, 1, 5)), plain, atol=1e-6)


def test_what_leaves_on_one_side_comes_in_on_the_other() -> None:
    scene = Scene("red", "square", "right", "white", 12.0, (32.0, 20.0), (96.0, 20.0))
    start, half, end = render_wrapped(scene, torch.tensor([0.0, 0.5, 1.0])).unbind(1)
    assert torch.allclose(start, end, atol=1e-6)
    assert torch.allclose(half, start.roll(32, dims=2), atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_object_does_not_jump_where_a_turn_begins(seed: int) -> None:
    stream = draw_stream(random.Random(seed), (0, 2, 5), changes=2)
    speed = 1.7
    for before, after in pairwise(stream):
        frame = first_frame(after.first_chunk)
        old, new = position(before, frame - 1), position(after, frame)
        assert np.abs(np.subtract(old, new)).max() <= speed
        kinds = [name for name in KINDS if getattr(before.scene, name) != getattr(after.scene, name)]
        assert tuple(kinds) == after.changed and len(kinds) == 2


def test_a_stream_shows_each_turn_in_its_chunks() -> None:
    stream = draw_stream(random.Random(4), (0, 2, 3))
    frames = render_stream(stream, 5)
    assert frames.shape == (3, num_frames(5), 64, 64)
    assert turn_of_chunk(stream, 5) == [0, 0, 1, 2, 2]
    for turn, start, stop in zip(stream, (0, 21, 33), (21, 33, 57), strict=True):
        assert torch.equal(frames[:, start:stop], render_turn(turn, start, stop - start))


@pytest.mark.parametrize("noise", [0.0, 0.08])
def test_every_chunk_of_a_drawn_stream_is_judged_right(noise: float) -> None:
    rng = random.Random(11)
    for seed in range(15):
        stream = draw_stream(rng, (0, 3, 6))
        frames = render_stream(stream, 9)
        frames = frames + noise * torch.randn(frames.shape, generator=torch.Generator().manual_seed(seed))
        for chunk, turn in enumerate(turn_of_chunk(stream, 9)):
            clip = to_uint8_frames(frames[:, first_frame(chunk) : first_frame(chunk + 1)])
            verdict, scene = judge_clip(clip, is_wrapped=True), stream[turn].scene
            named = (verdict.colour, verdict.shape, verdict.direction, verdict.background)
            assert named == (scene.colour, scene.shape, scene.motion, scene.background)
            assert verdict.is_whole and verdict.is_clean and verdict.is_size_constant


def test_without_joined_sides_the_same_object_is_cut() -> None:
    scene = Scene("red", "square", "still", "white", 12.0, (0.0, 0.0), (0.0, 0.0))
    clip = to_uint8_frames(render_wrapped(scene, torch.zeros(3)))
    assert not judge_clip(clip).is_whole
    verdict = judge_clip(clip, is_wrapped=True)
    assert (verdict.is_whole, verdict.shape, verdict.direction) == (True, "square", "still")


def test_a_jump_is_no_direction() -> None:
    scene = Scene("red", "square", "still", "white", 12.0, (20.0, 32.0), (20.0, 32.0))
    frames = to_uint8_frames(render_wrapped(scene, torch.zeros(12)))
    frames[6:] = frames[6:].roll(20, dims=2)
    assert judge_clip(frames, is_wrapped=True).direction is None


def test_captions_name_a_background_that_changes() -> None:
    rng = random.Random(2)
    for _ in range(40):
        stream = draw_stream(rng, (0, 1, 2))
        for turn, caption in zip(stream, draw_captions(stream, rng), strict=True):
            assert not is_held_out(caption)
            assert names_background(caption) or "background" not in turn.changed
    assert all(is_held_out(caption) for caption in draw_captions(stream, rng, is_held_out_wanted=True))


def test_captions_may_say_the_way_by_the_order_of_words() -> None:
    rng, counts = random.Random(3), [0, 0]
    for _ in range(60):
        stream = draw_stream(rng)
        (always,) = draw_captions(stream, rng, ordered_part=1.0)
        (seldom,) = draw_captions(stream, rng)
        if stream[0].scene.motion != "still":
            assert is_ordered(always)
            counts[0] += 1
            counts[1] += is_ordered(seldom)
    assert counts[1] < counts[0] / 2


def test_ranges_bound_what_is_drawn() -> None:
    ranges = StreamRanges(min_radius=9.0, max_radius=9.5, min_speed=1.0, max_speed=1.1, start_slack=1.0)
    stream = draw_stream(random.Random(0), (0, 4), ranges=ranges)
    assert all(9.0 <= turn.scene.radius <= 9.5 for turn in stream)
    assert all(abs(place - 32) <= 1 for place in stream[0].scene.start_xy)
