"""What is in a clip: kinds, ranges, and the seeded draw of one scene.

Lengths are in pixels of a 64 pixel wide frame; x grows to the right and y downwards, both from the top left corner.
"""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass, replace
from typing import Any

Rgb = tuple[int, int, int]

FRAME_SIZE = 64
NUM_FRAMES = 17

COLOURS: dict[str, Rgb] = {
    "red": (225, 40, 40),
    "yellow": (245, 215, 40),
    "green": (40, 170, 60),
    "cyan": (40, 205, 225),
    "blue": (50, 80, 235),
    "purple": (160, 50, 205),
    "orange": (245, 130, 25),
    "pink": (245, 140, 195),
}
BACKGROUNDS: dict[str, Rgb] = {
    "black": (10, 10, 10),
    "grey": (120, 120, 120),
    "white": (245, 245, 245),
    "brown": (92, 62, 40),
}
SHAPES: tuple[str, ...] = ("circle", "square", "triangle", "diamond", "cross")
_SLANT = math.sqrt(0.5)

# Unit steps (x, y) in frame coordinates.
MOTIONS: dict[str, tuple[float, float]] = {
    "still": (0, 0),
    "right": (1, 0),
    "left": (-1, 0),
    "up": (0, -1),
    "down": (0, 1),
    "up-right": (_SLANT, -_SLANT),
    "up-left": (-_SLANT, -_SLANT),
    "down-right": (_SLANT, _SLANT),
    "down-left": (-_SLANT, _SLANT),
}


@dataclass(frozen=True, slots=True)
class World:
    """Which kinds of scenes there are.

    Args:
        colours: Keys of `COLOURS`.
        shapes: Some of `SHAPES`.
        motions: Keys of `MOTIONS`.
        pair_part: Part of the scenes that have two objects.
    """

    colours: tuple[str, ...]
    shapes: tuple[str, ...]
    motions: tuple[str, ...]
    pair_part: float = 0.0


PLAIN = World(tuple(COLOURS)[:6], SHAPES[:3], tuple(MOTIONS)[:5])
"""Six colours, three shapes, four directions and standing still."""
WIDE = World(tuple(COLOURS), SHAPES, tuple(MOTIONS))
"""All kinds."""
PAIRS = replace(WIDE, pair_part=1.0)
"""All kinds, two objects in each scene."""

PAIR_RADII = (6.5, 7.5)
"""Nominal radii of two objects in one scene: each stays in its half of the frame, whose sides are 64 and 32."""
PAIR_TRAVEL = (9.0, 10.0)
PAIR_SLACK = 9.0
"""How far the middle of the way of one of two may lie from the frame's middle, along its half."""


@dataclass(frozen=True, slots=True)
class SceneRanges:
    """From which ranges a scene is drawn, in pixels.

    Args:
        min_radius: Smallest nominal radius of an object.
        max_radius: Largest nominal radius.
        min_travel: Shortest way from the first frame to the last of an object that moves.
        max_travel: Longest way.
        along_slack: How far the middle of the way may lie from the frame's middle along the motion.
        across_slack: The same across the motion, and in both directions for a still object.
    """

    min_radius: float = 11.0
    max_radius: float = 12.5
    min_travel: float = 22.0
    max_travel: float = 27.0
    along_slack: float = 2.0
    across_slack: float = 7.0


@dataclass(frozen=True, slots=True)
class Scene:
    """One object on a plain background, or two.

    Args:
        colour: Key of `COLOURS`.
        shape: One of `SHAPES`.
        motion: Key of `MOTIONS`.
        background: Key of `BACKGROUNDS`.
        radius: Nominal radius in pixels; `render.coverage` says what it means for each shape.
        start_xy: Centre in the first frame, pixels.
        end_xy: Centre in the last frame, pixels.
        second: Another object on the same background; has none itself.
    """

    colour: str
    shape: str
    motion: str
    background: str
    radius: float
    start_xy: tuple[float, float]
    end_xy: tuple[float, float]
    second: Scene | None = None

    @property
    def objects(self) -> tuple[Scene, ...]:
        """Each object as a scene of its own."""
        return (self,) if self.second is None else (replace(self, second=None), self.second)


def as_json(scene: Scene) -> dict[str, Any]:
    """Return a scene as JSON can hold it."""
    return asdict(scene)


def from_json(raw: dict[str, Any]) -> Scene:
    """Return the scene of `as_json`."""
    second = raw.get("second")
    return Scene(**{**raw, "second": None if second is None else from_json(second)})


def draw_scene(rng: random.Random, ranges: SceneRanges | None = None, world: World = PLAIN) -> Scene:
    """Draw a scene: kinds uniformly, lengths uniformly; advances `rng`.

    Args:
        rng: Source of randomness.
        ranges: Of a single object; two have ranges of their own.
        world: Which kinds there are.
    """
    if world.pair_part and rng.random() < world.pair_part:
        return _draw_pair(rng, world)
    ranges = ranges or SceneRanges()
    motion = rng.choice(world.motions)
    start_xy, end_xy = _draw_path(rng, motion, ranges)
    return Scene(
        colour=rng.choice(world.colours),
        shape=rng.choice(world.shapes),
        motion=motion,
        background=rng.choice(list(BACKGROUNDS)),
        radius=rng.uniform(ranges.min_radius, ranges.max_radius),
        start_xy=start_xy,
        end_xy=end_xy,
    )


def _draw_pair(rng: random.Random, world: World) -> Scene:
    """Draw two objects of different colours, each in its half of the frame; which is named first says nothing."""
    background, colours = rng.choice(list(BACKGROUNDS)), rng.sample(world.colours, 2)
    is_stacked = rng.random() < 0.5
    objects = []
    for colour, middle in zip(colours, (FRAME_SIZE / 4, 3 * FRAME_SIZE / 4), strict=True):
        motion, travel = rng.choice(world.motions), rng.uniform(*PAIR_TRAVEL)
        place = (FRAME_SIZE / 2 + rng.uniform(-PAIR_SLACK, PAIR_SLACK), middle)
        x, y = place if is_stacked else place[::-1]
        half_x, half_y = (step * travel / 2 for step in MOTIONS[motion])
        shape, radius = rng.choice(world.shapes), rng.uniform(*PAIR_RADII)
        path = (x - half_x, y - half_y), (x + half_x, y + half_y)
        objects.append(Scene(colour, shape, motion, background, radius, *path))
    first, second = rng.sample(objects, 2)
    return replace(first, second=second)


def _draw_path(rng: random.Random, motion: str, ranges: SceneRanges) -> tuple[tuple[float, float], tuple[float, float]]:
    step_x, step_y = MOTIONS[motion]
    travel = rng.uniform(ranges.min_travel, ranges.max_travel)
    slack_x = ranges.along_slack if step_x else ranges.across_slack
    slack_y = ranges.along_slack if step_y else ranges.across_slack
    middle_x = FRAME_SIZE / 2 + rng.uniform(-slack_x, slack_x)
    middle_y = FRAME_SIZE / 2 + rng.uniform(-slack_y, slack_y)
    half_x, half_y = step_x * travel / 2, step_y * travel / 2
    return (middle_x - half_x, middle_y - half_y), (middle_x + half_x, middle_y + half_y)
