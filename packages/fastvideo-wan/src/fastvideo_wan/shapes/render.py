"""Draw scenes as frames, with exact coverage at the edges, so that edges carry sub-pixel positions.

Shape letters: N clips, T frames, H rows, W columns, C colour channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fastvideo_wan.shapes.scenes import BACKGROUNDS, COLOURS, FRAME_SIZE, NUM_FRAMES, SHAPES, Scene

SQUARE_HALF_SIDE = 0.9  # in nominal radii; the shapes look about equally large so
TRIANGLE_CIRCUMRADIUS = 1.2
DIAMOND_HALF_DIAGONAL = 1.2
CROSS_HALF_LENGTH, CROSS_HALF_WIDTH = 1.1, 0.42


def signed_distance(shape: str, dx: Tensor, dy: Tensor, radius: Tensor | float) -> Tensor:
    """Return the distance in pixels from the shape's edge, negative inside, of points at (`dx`, `dy`) from its centre.

    Outside corners it is a lower bound, which is enough for coverage within one pixel of the edge.
    """
    if shape == "circle":
        return torch.hypot(dx, dy) - radius
    if shape == "square":
        return torch.maximum(dx.abs(), dy.abs()) - SQUARE_HALF_SIDE * radius
    if shape == "triangle":
        inradius = TRIANGLE_CIRCUMRADIUS * radius / 2
        slope_side = math.sqrt(3) / 2 * dx.abs() - dy / 2
        return torch.maximum(slope_side, dy) - inradius
    if shape == "diamond":
        return (dx.abs() + dy.abs() - DIAMOND_HALF_DIAGONAL * radius) / math.sqrt(2)
    if shape == "cross":
        length, width = CROSS_HALF_LENGTH * radius, CROSS_HALF_WIDTH * radius
        lying = torch.maximum(dx.abs() - length, dy.abs() - width)
        return torch.minimum(lying, torch.maximum(dx.abs() - width, dy.abs() - length))
    raise ValueError(f"shape={shape!r}: allowed: {', '.join(SHAPES)}")


def coverage(shape: str, dx: Tensor, dy: Tensor, radius: Tensor | float) -> Tensor:
    """Return which part of each pixel the shape covers, 0 to 1.

    The nominal `radius` is the circle's radius, 1/0.9 of the square's half side, 1/1.2 of the circumradius of the
    triangle, which points up and is centred on its centroid, 1/1.2 of the diamond's half diagonal, and 1/1.1 of the
    length of a cross's arm from its middle.
    """
    return (0.5 - signed_distance(shape, dx, dy, radius)).clamp(0, 1)


def render_view(
    scene: Scene, path_T: Tensor, *, scale: float, corner_xy: tuple[float, float], height: int, width: int
) -> Tensor:
    """Return what a window shows of a scene, float32, shape (C, T, H, W), values 0 to 1.

    Args:
        scene: What to draw.
        path_T: Where on its way the object is in each frame, 0 for `start_xy` to 1 for `end_xy`.
        scale: Pixels a unit of the scene's lengths.
        corner_xy: The window's upper left corner in pixels from the scene's; may be a fraction, and outside.
        height: Rows of the window in pixels.
        width: Columns.
    """
    columns, rows = (torch.arange(n, dtype=torch.float32) + 0.5 for n in (width, height))
    view = _empty(scene, (len(path_T), height, width))
    for one in scene.objects:
        x_T, y_T = (scale * (a + path_T * (b - a)) for a, b in zip(one.start_xy, one.end_xy, strict=True))
        dx_THW = columns.view(1, 1, -1) - (x_T - corner_xy[0]).view(-1, 1, 1)
        dy_THW = rows.view(1, -1, 1) - (y_T - corner_xy[1]).view(-1, 1, 1)
        view = _painted(view, one, coverage(one.shape, dx_THW, dy_THW, one.radius * scale))
    return view


def render_wrapped(scene: Scene, path_T: Tensor) -> Tensor:
    """Return a frame of 64 by 64 pixels whose opposite sides are joined, float32, shape (C, T, H, W), values 0 to 1.

    Args:
        scene: What to draw, one object; its way may leave the frame and goes on at the other side.
        path_T: Where on its way the object is in each frame; any numbers.
    """
    places = torch.arange(FRAME_SIZE, dtype=torch.float32) + 0.5
    (x0, y0), (x1, y1) = scene.start_xy, scene.end_xy
    dx_TW = wrapped(places - (x0 + path_T * (x1 - x0)).unsqueeze(1))
    dy_TH = wrapped(places - (y0 + path_T * (y1 - y0)).unsqueeze(1))
    alpha_THW = coverage(scene.shape, dx_TW.unsqueeze(1), dy_TH.unsqueeze(2), scene.radius)
    return _painted(_empty(scene, (len(path_T), FRAME_SIZE, FRAME_SIZE)), scene, alpha_THW)


def wrapped(lengths: Tensor) -> Tensor:
    """Return the shortest ways that lead to the same places in a frame whose sides are joined, from -32 to 32."""
    return (lengths + FRAME_SIZE / 2) % FRAME_SIZE - FRAME_SIZE / 2


def _empty(scene: Scene, shape_THW: tuple[int, int, int]) -> Tensor:
    return (torch.tensor(BACKGROUNDS[scene.background]) / 255).view(3, 1, 1, 1).expand(3, *shape_THW)


def _painted(view_CTHW: Tensor, scene: Scene, alpha_THW: Tensor) -> Tensor:
    colour = (torch.tensor(COLOURS[scene.colour]) / 255).view(3, 1, 1, 1)
    return view_CTHW + (colour - view_CTHW) * alpha_THW


def way(num_frames: int) -> Tensor:
    """Return where on its way an object is in each frame of a clip; one frame shows the start."""
    return torch.linspace(0, 1, num_frames) if num_frames > 1 else torch.zeros(1)


def render_clip(
    scene: Scene, *, num_frames: int = NUM_FRAMES, height: int = FRAME_SIZE, width: int = FRAME_SIZE
) -> Tensor:
    """Return the scene's frames, float32, shape (C, T, H, W), values 0 to 1.

    Args:
        scene: What to draw, scaled so that its square fits, and in the middle.
        num_frames: Frames over which the object goes from `start_xy` to `end_xy`.
        height: In pixels.
        width: In pixels.
    """
    side = min(height, width)
    corner_xy = (side - width) / 2, (side - height) / 2
    scale = side / FRAME_SIZE
    return render_view(scene, way(num_frames), scale=scale, corner_xy=corner_xy, height=height, width=width)


def render_clips(
    scenes: Sequence[Scene], *, num_frames: int = NUM_FRAMES, height: int = FRAME_SIZE, width: int = FRAME_SIZE
) -> Tensor:
    """Return the frames of several scenes, float32, shape (N, C, T, H, W), values 0 to 1."""
    return torch.stack([render_clip(s, num_frames=num_frames, height=height, width=width) for s in scenes])


def to_uint8_frames(clip_CTHW: Tensor) -> Tensor:
    """Return a clip with values 0 to 1 as bytes in the order that players and the judge take, shape (T, H, W, C)."""
    return (clip_CTHW.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 3, 0).contiguous()
