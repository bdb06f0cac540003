"""Judge a clip by plain image processing: which colour, shape and direction does it show, and is it clean?

The judge knows the kinds of `scenes` and nothing of any model. It finds the background from the frame's border, the
object as what differs from it, and compares the object's outline with an ideal outline of the same area and centre.

Shape letters: T frames, H rows, W columns, C colour channels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from fastvideo_wan.shapes.render import (
    CROSS_HALF_LENGTH,
    CROSS_HALF_WIDTH,
    DIAMOND_HALF_DIAGONAL,
    SQUARE_HALF_SIDE,
    TRIANGLE_CIRCUMRADIUS,
    coverage,
)
from fastvideo_wan.shapes.scenes import BACKGROUNDS, COLOURS, SHAPES

Array = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

EDGE_LEVEL = 0.5  # part of the way from background to object colour at which a pixel belongs to the object
MIN_CONTRAST = 0.15  # RGB distance, 0 to sqrt(3), below which nothing stands out from the background
MIN_AREA = 0.01  # of the frame
MAX_STRAY = 0.004  # part of the frame that may differ from the background away from the object
STRAY_CONTRAST = 0.25
PART_CONTRAST = 0.2  # from which on a pixel may belong to one of several objects
MIN_TRAVEL = 0.08  # of the frame's shorter side; less is standing still
MIN_OUTLINE = 0.85  # overlap with the ideal outline, intersection over union
MIN_LEAD = 0.02  # by which the best outline must beat the second best
MAX_SIZE_DRIFT = 0.10
AREA_PER_SQUARED_RADIUS = {
    "circle": math.pi,
    "square": (2 * SQUARE_HALF_SIDE) ** 2,
    "triangle": 0.75 * math.sqrt(3) * TRIANGLE_CIRCUMRADIUS**2,
    "diamond": 2 * DIAMOND_HALF_DIAGONAL**2,
    "cross": 8 * CROSS_HALF_LENGTH * CROSS_HALF_WIDTH - 4 * CROSS_HALF_WIDTH**2,
}
DIRECTIONS = ("right", "down-right", "down", "down-left", "left", "up-left", "up", "up-right")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a clip shows.

    Args:
        colour: Key of `scenes.COLOURS`, or None if there is no object or it is of no known colour.
        shape: One of `scenes.SHAPES`, or None if no outline fits or the frames disagree.
        direction: "still" or one of `DIRECTIONS`, or None if there is no object or its way is no straight line.
        background: Key of `scenes.BACKGROUNDS`, or None if the background is of no known colour.
        size_drift: Largest deviation of the object's diameter from its median over the clip, relative.
        stray: Largest part of a frame that differs from the background away from the object, 0 to 1.
        is_whole: The object is in every frame, away from the border, and its outline fits a shape.
        travel: How far the object gets from the first frame to the last, in the frame's shorter sides; 0 if it is not
            in every frame.
        off_centre: How far the middle of its way is from the frame's, in the frame's shorter sides; 1 if there is no
            object.
    """

    colour: str | None
    shape: str | None
    direction: str | None
    background: str | None
    size_drift: float
    stray: float
    is_whole: bool
    travel: float = 0.0
    off_centre: float = 1.0

    @property
    def is_clean(self) -> bool:
        """Whether nothing but the object is on the background."""
        return self.stray <= MAX_STRAY

    @property
    def is_size_constant(self) -> bool:
        """Whether the object's size stays within 10 %."""
        return self.size_drift <= MAX_SIZE_DRIFT


@dataclass(frozen=True, slots=True)
class _Sight:
    """What one frame shows: the object's mask, centre (x, y), area in pixels, colour, and stray pixels' share.

    `moved_by` says by how many pixels (x, y) the frame was moved before it was looked at.
    """

    mask: Mask
    centre: tuple[float, float]
    area: float
    colour: Array
    stray: float
    moved_by: tuple[int, int] = (0, 0)


def judge_clip(frames_THWC: npt.NDArray[np.uint8] | torch.Tensor, *, is_wrapped: bool = False) -> Verdict:
    """Say what a clip of one object on a plain background shows.

    Args:
        frames_THWC: Bytes, shape (T, H, W, 3), RGB, at least 16 by 16 pixels and one frame.
        is_wrapped: The frame's opposite sides are joined: an object that crosses one comes in at the other, and counts
            as whole. Each frame is moved so that the object is in its middle before it is looked at.

    Raises:
        ValueError: If shape or type are not as above.
    """
    frames = _checked(frames_THWC)
    background = _background(frames)
    sights = [_look_around(frame, background) if is_wrapped else _look(frame, background) for frame in frames]
    return _verdict(sights, background, frames.shape[1:3], is_wrapped=is_wrapped)


def judge_objects(frames_THWC: npt.NDArray[np.uint8] | torch.Tensor, *, num_objects: int = 2) -> list[Verdict]:
    """Say what a clip of several objects on a plain background shows: a verdict for each, in no order of meaning.

    In each frame the largest parts that differ from the background are the objects, and each is looked at with the
    others painted over; what is left besides them is stray. Objects are followed by the shortest ways. One that
    is never seen has a verdict of nothing.

    Args:
        frames_THWC: As `judge_clip` takes them.
        num_objects: How many there should be, 1 to 4.

    Raises:
        ValueError: As `judge_clip` says.
    """
    frames = _checked(frames_THWC)
    background = _background(frames)
    tracks: list[list[_Sight | None]] = [[] for _ in range(num_objects)]
    for frame in frames:
        sights = _look_at_each(frame, background, num_objects)
        for track, sight in zip(tracks, _in_order_of(tracks, sights), strict=True):
            track.append(sight)
    return [_verdict(track, background, frames.shape[1:3], is_wrapped=False) for track in tracks]


def _verdict(sights: Sequence[_Sight | None], background: Array, size: tuple[int, ...], *, is_wrapped: bool) -> Verdict:
    """Return what the sights of one object say, one for each frame."""
    seen = [sight for sight in sights if sight is not None]
    name = _nearest(background, BACKGROUNDS, max_distance=0.3)
    if not seen:
        return Verdict(None, None, None, name, 1.0, 0.0, False)
    shapes, fits = zip(*[_outline(sight) for sight in seen], strict=True)
    diameters = np.sqrt([sight.area for sight in seen])
    centres = _centres(seen, size, is_wrapped)
    return Verdict(
        colour=_nearest(np.median([sight.colour for sight in seen], axis=0), COLOURS, max_distance=0.3),
        shape=_majority(shapes),
        direction=_direction(centres, min(size)) if len(seen) == len(sights) else None,
        background=name,
        size_drift=float(np.abs(diameters / np.median(diameters) - 1).max()),
        stray=max(sight.stray for sight in seen),
        is_whole=len(seen) == len(sights) and min(fits) >= MIN_OUTLINE and not any(map(_touches_border, seen)),
        travel=_travel(centres, min(size)) if len(seen) == len(sights) else 0.0,
        off_centre=float(np.linalg.norm(centres.mean(0) - np.array([size[1], size[0]]) / 2) / min(size)),
    )


def _checked(frames_THWC: npt.NDArray[np.uint8] | torch.Tensor) -> Array:
    frames = np.asarray(frames_THWC)
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or min(frames.shape[1:3]) < 16:
        raise ValueError(f"frames: got {frames.dtype} {frames.shape}; allowed: uint8 (T, H, W, 3), H and W at least 16")
    if frames.shape[0] < 1:
        raise ValueError("frames: got none; allowed: at least one")
    return np.asarray(frames / 255, dtype=np.float32)


def _background(frames: Array) -> Array:
    sides = (frames[:, :2], frames[:, -2:], frames[:, :, :2], frames[:, :, -2:])
    border = np.concatenate([side.reshape(-1, 3) for side in sides])
    return np.asarray(np.median(border, axis=0), dtype=np.float32)


def _look(frame: Array, background: Array) -> _Sight | None:
    """Find the object in one frame; None if nothing stands out."""
    smooth = _box_blur(frame)
    distance = np.linalg.norm(smooth - background, axis=2)
    core = distance >= 0.8 * np.partition(distance.ravel(), -20)[-20]
    colour = np.median(frame[core], axis=0)
    contrast = float(np.linalg.norm(colour - background))
    if contrast < MIN_CONTRAST:
        return None
    # Project on the line from background to object: the noise across that line drops out.
    level = (smooth - background) @ (colour - background) / contrast**2
    mask = _component(level >= EDGE_LEVEL, seed=_box_blur(level, radius=3))
    if mask.mean() < MIN_AREA:
        return None
    colour = np.median(frame[_shrink(mask)] if _shrink(mask).any() else frame[mask], axis=0)
    soft = np.clip(level, 0, 1) * _grow(_grow(mask))
    rows, columns = np.indices(mask.shape) + 0.5
    area = float(soft.sum())
    centre = (float((soft * columns).sum() / area), float((soft * rows).sum() / area))
    outside = ~_grow(_grow(_grow(mask)))
    stray = float(((distance >= STRAY_CONTRAST) & outside).mean())
    return _Sight(mask, centre, area, np.asarray(colour, dtype=np.float32), stray)


def _look_at_each(frame: Array, background: Array, num_objects: int) -> list[_Sight | None]:
    """Find objects in one frame, the largest first, each looked at alone; None for those that are not there."""
    distance = np.linalg.norm(_box_blur(frame) - background, axis=2)
    left, parts = distance >= PART_CONTRAST, list[Mask]()
    while left.any() and len(parts) < num_objects:
        part = _component(left, seed=_box_blur(left.astype(np.float32), radius=3))
        parts.append(_grow(_grow(_grow(part))))
        left = left & ~part
    everything = np.logical_or.reduce(parts) if parts else np.zeros_like(left)
    stray = float(((distance >= STRAY_CONTRAST) & ~everything).mean())
    sights = [_look(np.where(part[..., None], frame, background), background) for part in parts]
    sights = [sight if sight is None else replace(sight, stray=stray) for sight in sights]
    return [*sights, *[None] * (num_objects - len(sights))]


def _in_order_of(tracks: list[list[_Sight | None]], sights: list[_Sight | None]) -> tuple[_Sight | None, ...]:
    """Return a frame's sights in the order of the tracks, by the shortest ways from where these were seen last."""
    last = [next((sight for sight in reversed(track) if sight is not None), None) for track in tracks]

    def way(order: tuple[_Sight | None, ...]) -> float:
        pairs = [(old, new) for old, new in zip(last, order, strict=True) if old is not None and new is not None]
        return sum(math.dist(old.centre, new.centre) for old, new in pairs)

    return min(itertools.permutations(sights), key=way)


def _look_around(frame: Array, background: Array) -> _Sight | None:
    """Find the object in a frame whose sides are joined, moved so that the object is in its middle."""
    distance = np.linalg.norm(_box_blur(frame) - background, axis=2)
    is_object = distance >= EDGE_LEVEL * max(float(distance.max()), MIN_CONTRAST)
    shifts = [length // 2 - _circular_middle(is_object.sum(1 - axis)) for axis, length in enumerate(is_object.shape)]
    sight = _look(np.asarray(np.roll(frame, shifts, axis=(0, 1)), dtype=np.float32), background)
    return None if sight is None else replace(sight, moved_by=(shifts[1], shifts[0]))


def _circular_middle(counts: npt.NDArray[np.int64]) -> int:
    """Return the mean place of things on a ring, to the nearest whole place."""
    angles = 2 * math.pi * np.arange(len(counts)) / len(counts)
    angle = math.atan2(float((counts * np.sin(angles)).sum()), float((counts * np.cos(angles)).sum()))
    return round(angle / (2 * math.pi) * len(counts))


def _centres(seen: list[_Sight], size: tuple[int, ...], is_wrapped: bool) -> npt.NDArray[np.float64]:
    """Return the object's centres, shape (T, 2); across joined sides, along the shortest way from frame to frame."""
    centres = np.array([sight.centre for sight in seen]) - np.array([sight.moved_by for sight in seen])
    if not is_wrapped:
        return np.asarray(centres)
    lengths = np.array([size[1], size[0]])
    steps = (np.diff(centres, axis=0) + lengths / 2) % lengths - lengths / 2
    return np.asarray(np.concatenate([centres[:1], centres[0] + np.cumsum(steps, axis=0)]))


def _box_blur(image: Array, radius: int = 1) -> Array:
    padded = np.pad(image, [(radius, radius), (radius, radius)] + [(0, 0)] * (image.ndim - 2), mode="edge")
    height, width = image.shape[:2]
    window = range(2 * radius + 1)
    total = sum(padded[i : i + height, j : j + width] for i in window for j in window)
    return np.asarray(total / (2 * radius + 1) ** 2, dtype=np.float32)


def _grow(mask: Mask) -> Mask:
    padded = np.pad(mask, 1)
    return padded[1:-1, 1:-1] | padded[:-2, 1:-1] | padded[2:, 1:-1] | padded[1:-1, :-2] | padded[1:-1, 2:]


def _shrink(mask: Mask) -> Mask:
    return ~_grow(_grow(~mask))


def _component(mask: Mask, *, seed: Array) -> Mask:
    """Return the connected part of `mask` that holds the pixel where `seed` is largest."""
    part = np.zeros_like(mask)
    part[np.unravel_index(np.argmax(np.where(mask, seed, -np.inf)), mask.shape)] = True
    part &= mask
    while True:
        grown = _grow(part) & mask
        if (grown == part).all():
            return part
        part = grown


def _outline(sight: _Sight) -> tuple[str | None, float]:
    """Return the shape whose ideal outline overlaps the object best, or None if none leads clearly; and the overlap."""
    rows, columns = (torch.arange(n, dtype=torch.float32) + 0.5 for n in sight.mask.shape)
    dx, dy = columns.view(1, -1) - sight.centre[0], rows.view(-1, 1) - sight.centre[1]
    overlaps = {}
    for shape in SHAPES:
        radius = math.sqrt(sight.area / AREA_PER_SQUARED_RADIUS[shape])
        ideal = (coverage(shape, dx, dy, radius) >= EDGE_LEVEL).expand(sight.mask.shape).numpy()
        overlaps[shape] = float((ideal & sight.mask).sum() / max((ideal | sight.mask).sum(), 1))
    (best, first), (_, second) = sorted(overlaps.items(), key=lambda item: -item[1])[:2]
    return (best if first - second >= MIN_LEAD else None), first


def _majority(shapes: tuple[str | None, ...]) -> str | None:
    """Return the shape seen in at least three quarters of the frames."""
    best = max(SHAPES, key=shapes.count)
    return best if shapes.count(best) >= 0.75 * len(shapes) else None


def _direction(centres: npt.NDArray[np.float64], side: int) -> str | None:
    """Fit a straight way through the centres; None if they stray from it by more than the least travel."""
    if len(centres) == 1:
        return "still"
    times = np.linspace(-0.5, 0.5, len(centres))
    travel = _fitted_travel(centres)
    deviation = np.linalg.norm(centres - centres.mean(0) - times[:, None] * travel, axis=1).max()
    if deviation > MIN_TRAVEL * side:
        return None
    if np.linalg.norm(travel) < MIN_TRAVEL * side:
        return "still"
    return DIRECTIONS[round(math.atan2(travel[1], travel[0]) / (math.pi / 4)) % 8]


def _fitted_travel(centres: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the way (x, y) from the first frame to the last of the straight line that fits the centres best."""
    times = np.linspace(-0.5, 0.5, len(centres))
    slope = 12 * (times[:, None] * (centres - centres.mean(0))).mean(0)
    return np.asarray(slope * (len(centres) - 1) / (len(centres) + 1))


def _travel(centres: npt.NDArray[np.float64], side: int) -> float:
    """Return how far the object gets, in sides of the frame; a single frame shows no way."""
    return float(np.linalg.norm(_fitted_travel(centres)) / side) if len(centres) > 1 else 0.0


def _nearest(colour: Array, table: dict[str, tuple[int, int, int]], *, max_distance: float) -> str | None:
    distances = {name: float(np.linalg.norm(colour - np.array(rgb) / 255)) for name, rgb in table.items()}
    name = min(distances, key=lambda key: distances[key])
    return name if distances[name] <= max_distance else None


def _touches_border(sight: _Sight) -> bool:
    mask = sight.mask
    return bool(mask[0].any() or mask[-1].any() or mask[:, 0].any() or mask[:, -1].any())
