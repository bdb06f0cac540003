"""Clips without an end: the frame's opposite sides are joined, and what is shown may change at the start of a chunk.

An object that leaves the frame on the right comes in again on the left. Lengths are in pixels of a frame of 64 by 64.
A chunk is three latent frames: the first one of a stream has 9 frames, every other one 12.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastvideo_wan.shapes.captions import draw_caption, is_ordered, names_background
from fastvideo_wan.shapes.render import render_wrapped
from fastvideo_wan.shapes.scenes import BACKGROUNDS, FRAME_SIZE, MOTIONS, PLAIN, Scene

CHUNK_LATENTS = 3
CHUNK_FRAMES = 12
FIRST_CHUNK_FRAMES = 9

KINDS: dict[str, tuple[str, ...]] = {
    "motion": PLAIN.motions,
    "colour": PLAIN.colours,
    "shape": PLAIN.shapes,
    "background": tuple(BACKGROUNDS),
}
CHANGE_WEIGHTS = {"motion": 9, "colour": 5, "shape": 3, "background": 3}
"""How often each of them is what changes."""

NUM_CHANGES = (1, 1, 1, 1, 1, 2, 2)
"""Of how many of them a turn is made, each entry as often as the others."""


@dataclass(frozen=True, slots=True)
class StreamRanges:
    """From which ranges a stream is drawn, in pixels and frames.

    Args:
        min_radius: Smallest nominal radius of an object.
        max_radius: Largest nominal radius.
        min_speed: Slowest motion, pixels a frame.
        max_speed: Fastest motion.
        start_slack: How far from the frame's middle, in both directions, the object may be when the stream begins.
    """

    min_radius: float = 11.0
    max_radius: float = 12.5
    min_speed: float = 1.3
    max_speed: float = 1.7
    start_slack: float = 10.0


@dataclass(frozen=True, slots=True)
class Turn:
    """What a stream shows from a chunk on.

    Args:
        first_chunk: The chunk, counted from 0.
        scene: The object and its way: `start_xy` in the chunk's first frame, `end_xy` 12 frames later.
        changed: Keys of `KINDS` in which it differs from the turn before.
    """

    first_chunk: int
    scene: Scene
    changed: tuple[str, ...] = ()


def first_frame(chunk: int) -> int:
    """Return the number of a chunk's first frame in its stream."""
    return 0 if chunk == 0 else FIRST_CHUNK_FRAMES + (chunk - 1) * CHUNK_FRAMES


def num_frames(num_chunks: int) -> int:
    """Return the frames of a stream of some chunks."""
    return first_frame(num_chunks)


def draw_stream(
    rng: random.Random, turns: Sequence[int] = (0,), *, ranges: StreamRanges | None = None, changes: int | None = None
) -> list[Turn]:
    """Draw a stream; advances `rng`.

    Args:
        rng: Source of randomness.
        turns: First chunk of each turn, ascending, the first one 0.
        ranges: Of lengths.
        changes: How many kinds change at a turn; None draws it.
    """
    ranges = ranges or StreamRanges()
    speed = rng.uniform(ranges.min_speed, ranges.max_speed)
    kinds = {name: rng.choice(values) for name, values in KINDS.items()}
    radius = rng.uniform(ranges.min_radius, ranges.max_radius)
    slack = ranges.start_slack
    middle = FRAME_SIZE / 2 + rng.uniform(-slack, slack), FRAME_SIZE / 2 + rng.uniform(-slack, slack)
    stream = [Turn(0, _scene(kinds, radius, middle, speed))]
    for chunk in turns[1:]:
        changed = _draw_changed(rng, changes)
        kinds |= {name: rng.choice([value for value in KINDS[name] if value != kinds[name]]) for name in changed}
        before = position(stream[-1], first_frame(chunk) - 1)
        step_x, step_y = MOTIONS[kinds["motion"]]
        start = before[0] + step_x * speed, before[1] + step_y * speed
        stream.append(Turn(chunk, _scene(kinds, radius, start, speed), changed))
    return stream


def _draw_changed(rng: random.Random, changes: int | None) -> tuple[str, ...]:
    wanted, changed = changes or rng.choice(NUM_CHANGES), set[str]()
    while len(changed) < wanted:
        changed |= set(rng.choices(list(CHANGE_WEIGHTS), list(CHANGE_WEIGHTS.values())))
    return tuple(name for name in KINDS if name in changed)


def _scene(kinds: dict[str, str], radius: float, start: tuple[float, float], speed: float) -> Scene:
    step_x, step_y = MOTIONS[kinds["motion"]]
    end = start[0] + step_x * speed * CHUNK_FRAMES, start[1] + step_y * speed * CHUNK_FRAMES
    colour, shape, motion, background = (kinds[name] for name in ("colour", "shape", "motion", "background"))
    return Scene(colour, shape, motion, background, radius, start, end)


def position(turn: Turn, frame: int) -> tuple[float, float]:
    """Return where a turn's object is in a frame of the stream, before or after the turn's own, not wrapped."""
    part = (frame - first_frame(turn.first_chunk)) / CHUNK_FRAMES
    (x0, y0), (x1, y1) = turn.scene.start_xy, turn.scene.end_xy
    return x0 + part * (x1 - x0), y0 + part * (y1 - y0)


def render_turn(turn: Turn, start: int, count: int) -> Tensor:
    """Return frames `start` to `start + count` of a stream as if this turn had always been and would stay.

    Returns:
        Float32, shape (3, count, 64, 64), values 0 to 1.
    """
    path_T = (torch.arange(start, start + count) - first_frame(turn.first_chunk)) / CHUNK_FRAMES
    return render_wrapped(turn.scene, path_T)


def render_stream(stream: Sequence[Turn], num_chunks: int) -> Tensor:
    """Return a stream's first chunks as frames, float32, shape (3, frames, 64, 64), values 0 to 1."""
    bounds = [*(first_frame(turn.first_chunk) for turn in stream), num_frames(num_chunks)]
    spans = zip(stream, bounds[:-1], bounds[1:], strict=True)
    return torch.cat([render_turn(turn, start, stop - start) for turn, start, stop in spans], dim=1)


def turn_of_chunk(stream: Sequence[Turn], num_chunks: int) -> list[int]:
    """Return for each of the first chunks the index of its turn."""
    return [sum(turn.first_chunk <= chunk for turn in stream) - 1 for chunk in range(num_chunks)]


def draw_captions(
    stream: Sequence[Turn], rng: random.Random, *, is_held_out_wanted: bool = False, ordered_part: float = 0.0
) -> list[str]:
    """Return a caption for each turn; one at which the background changes names it. Advances `rng`.

    Args:
        stream: The turns.
        rng: Source of randomness.
        is_held_out_wanted: Whether captions are from those that are never trained on.
        ordered_part: Part of the captions of moving objects in which the order of the words must say where they move.
    """
    captions = []
    for turn in stream:
        must_order = ordered_part > 0 and turn.scene.motion != "still" and rng.random() < ordered_part
        caption = draw_caption(turn.scene, rng, is_held_out_wanted=is_held_out_wanted)
        while ("background" in turn.changed and not names_background(caption)) or (
            must_order and not is_ordered(caption)
        ):
            caption = draw_caption(turn.scene, rng, is_held_out_wanted=is_held_out_wanted)
        captions.append(caption)
    return captions
