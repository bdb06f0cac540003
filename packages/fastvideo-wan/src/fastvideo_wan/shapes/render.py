"""Draw scenes as frames, with exact coverage at the edges, so that edges carry sub-pixel positions.

Shape letters: N clips, T frames, H rows, W columns, C colour channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fastvideo_wan.shapes.scenes import BACKGROUNDS, COLOURS, FRAME_SIZE, NUM_FRAMES, Scene

SQUARE_HALF_SIDE = 0.9  # in nominal radii; the shapes look about equally large so
TRIANGLE_CIRCUMRADIUS = 1.2


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
    raise ValueError(f"shape={shape!r}: allowed: circle, square, triangle")


def coverage(shape: str, dx: Tensor, dy: Tensor, radius: Tensor | float) -> Tensor:
    """Return which part of each pixel the shape covers, 0 to 1.

    The nominal `radius` is the circle's radius, 1/0.9 of the square's half side, and 1/1.2 of the circumradius of the
    triangle, which points up and is centred on its centroid.
    """
    return (0.5 - signed_distance(shape, dx, dy, radius)).clamp(0, 1)


def render_clip(scene: Scene, *, num_frames: int = NUM_FRAMES, size: int = FRAME_SIZE) -> Tensor:
    """Return the scene's frames, float32, shape (C, T, H, W), values 0 to 1.

    Args:
        scene: What to draw; its lengths are scaled by `size / FRAME_SIZE`.
        num_frames: Frames over which the object goes from `start_xy` to `end_xy`; one frame shows the start.
        size: Height and width in pixels.
    """
    scale = size / FRAME_SIZE
    centres = torch.arange(size, dtype=torch.float32) + 0.5
    path_T = torch.linspace(0, 1, num_frames) if num_frames > 1 else torch.zeros(1)
    x_T, y_T = (scale * (a + path_T * (b - a)) for a, b in zip(scene.start_xy, scene.end_xy, strict=True))
    dx_THW = centres.view(1, 1, -1) - x_T.view(-1, 1, 1)
    dy_THW = centres.view(1, -1, 1) - y_T.view(-1, 1, 1)
    alpha_THW = coverage(scene.shape, dx_THW, dy_THW, scene.radius * scale).expand(num_frames, size, size)
    front_C, back_C = (torch.tensor(c) / 255 for c in (COLOURS[scene.colour], BACKGROUNDS[scene.background]))
    return back_C.view(3, 1, 1, 1) + (front_C - back_C).view(3, 1, 1, 1) * alpha_THW


def render_clips(scenes: Sequence[Scene], *, num_frames: int = NUM_FRAMES, size: int = FRAME_SIZE) -> Tensor:
    """Return the frames of several scenes, float32, shape (N, C, T, H, W), values 0 to 1."""
    return torch.stack([render_clip(scene, num_frames=num_frames, size=size) for scene in scenes])


def to_uint8_frames(clip_CTHW: Tensor) -> Tensor:
    """Return a clip with values 0 to 1 as bytes in the order that players and the judge take, shape (T, H, W, C)."""
    return (clip_CTHW.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 3, 0).contiguous()
