"""What is in a clip: kinds, ranges, and the seeded draw of one scene.

Lengths are in pixels of a 64 pixel wide frame; x grows to the right and y downwards, both from the top left corner.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

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
}
BACKGROUNDS: dict[str, Rgb] = {
    "black": (10, 10, 10),
    "grey": (120, 120, 120),
    "white": (245, 245, 245),
    "brown": (92, 62, 40),
}
SHAPES: tuple[str, ...] = ("circle", "square", "triangle")

# Unit steps (x, y) in frame coordinates.
MOTIONS: dict[str, tuple[int, int]] = {
    "still": (0, 0),
    "right": (1, 0),
    "left": (-1, 0),
    "up": (0, -1),
    "down": (0, 1),
}


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
    """One object on a plain background.

    Args:
        colour: Key of `COLOURS`.
        shape: One of `SHAPES`.
        motion: Key of `MOTIONS`.
        background: Key of `BACKGROUNDS`.
        radius: Nominal radius in pixels; `render.coverage` says what it means for each shape.
        start_xy: Centre in the first frame, pixels.
        end_xy: Centre in the last frame, pixels.
    """

    colour: str
    shape: str
    motion: str
    background: str
    radius: float
    start_xy: tuple[float, float]
    end_xy: tuple[float, float]


def draw_scene(rng: random.Random, ranges: SceneRanges | None = None) -> Scene:
    """Draw a scene: kinds uniformly, lengths uniformly within `ranges`; advances `rng`."""
    ranges = ranges or SceneRanges()
    motion = rng.choice(list(MOTIONS))
    start_xy, end_xy = _draw_path(rng, motion, ranges)
    return Scene(
        colour=rng.choice(list(COLOURS)),
        shape=rng.choice(SHAPES),
        motion=motion,
        background=rng.choice(list(BACKGROUNDS)),
        radius=rng.uniform(ranges.min_radius, ranges.max_radius),
        start_xy=start_xy,
        end_xy=end_xy,
    )


def _draw_path(rng: random.Random, motion: str, ranges: SceneRanges) -> tuple[tuple[float, float], tuple[float, float]]:
    step_x, step_y = MOTIONS[motion]
    travel = rng.uniform(ranges.min_travel, ranges.max_travel)
    slack_x = ranges.along_slack if step_x else ranges.across_slack
    slack_y = ranges.along_slack if step_y else ranges.across_slack
    middle_x = FRAME_SIZE / 2 + rng.uniform(-slack_x, slack_x)
    middle_y = FRAME_SIZE / 2 + rng.uniform(-slack_y, slack_y)
    half_x, half_y = step_x * travel / 2, step_y * travel / 2
    return (middle_x - half_x, middle_y - half_y), (middle_x + half_x, middle_y + half_y)
