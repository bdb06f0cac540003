"""From images and videos that people give to the pixels that the video autoencoder takes, as the reference makes them.

Shape letters: P pixel channels; T, H, W frames, rows, columns. Frames are uint8 (T, H, W, P).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from fastvideo_core.request.media.pixels import Frames, frames_to_pixels
from fastvideo_cosmos3.models.embodiments import canvas_of

__all__ = ["View", "action_view", "content_latents", "cover_image", "stretch_frames"]


def cover_image(image_HWP: Frames, *, height: int, width: int) -> Tensor:
    """Return an image that covers a size, its edges cut off evenly: float32 (1, 3, H, W) in [-1, 1]."""
    pixels = torch.from_numpy(np.ascontiguousarray(image_HWP)).permute(2, 0, 1).unsqueeze(0).float()
    rows, columns = pixels.shape[-2:]
    scale = max(width / columns, height / rows)
    size = (math.ceil(scale * rows), math.ceil(scale * columns))
    resized = F.interpolate(pixels, size=size, mode="bilinear", align_corners=False, antialias=True)
    top, left = round((size[0] - height) / 2), round((size[1] - width) / 2)
    cut = resized[:, :, top : top + height, left : left + width]
    return cut.round().clamp(0, 255) / 127.5 - 1.0


def stretch_frames(frames_THWP: Frames, *, height: int, width: int) -> Tensor:
    """Return frames stretched to a size: float32 (1, 3, T, H, W) in [-1, 1]."""
    size = (width, height)
    resized = [np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR)) for frame in frames_THWP]
    return frames_to_pixels(np.stack(resized)).unsqueeze(0)


@dataclass(frozen=True, slots=True)
class View:
    """What an action model sees.

    Attributes:
        pixels_1PTHW: Frames on the canvas, float32 in [-1, 1]; what is beyond the content is filled up.
        height: Rows of the canvas.
        width: Columns of the canvas.
        content_height: Rows of the content.
        content_width: Columns of the content.
    """

    pixels_1PTHW: Tensor
    height: int
    width: int
    content_height: int
    content_width: int


def action_view(frames_THWP: Frames, *, tier: str, num_frames: int, grid: int) -> View:
    """Lay frames on the canvas of a tier: made smaller if need be, never larger, and filled up to the right and below.

    Args:
        frames_THWP: The frames; too few are followed by the last one, too many are cut off.
        tier: Key of `CANVASES`.
        num_frames: Frames wanted.
        grid: Pixels of a latent row or column.
    """
    rows, columns = (max(grid, size - size % grid) for size in frames_THWP.shape[1:3])
    pixels = stretch_frames(frames_THWP[:num_frames], height=rows, width=columns)[0].transpose(0, 1)
    if len(pixels) < num_frames:
        pixels = torch.cat([pixels, pixels[-1:].expand(num_frames - len(pixels), -1, -1, -1)])
    height, width = canvas_of(tier, rows, columns)
    scale = min(width / columns, height / rows, 1.0)
    content = (max(1, int(scale * rows + 0.5)), max(1, int(scale * columns + 0.5)))
    if content != (rows, columns):
        pixels = F.interpolate(pixels, size=content, mode="bicubic", align_corners=False, antialias=True)
    right, below = width - content[1], height - content[0]
    if right or below:
        mode = "replicate" if right >= content[1] or below >= content[0] else "reflect"
        pixels = F.pad(pixels, (0, right, 0, below), mode=mode)
    return View(pixels.transpose(0, 1).unsqueeze(0).contiguous(), height, width, *content)


def content_latents(latents_1CTHW: Tensor, view: View, grid: int) -> Tensor:
    """Return the latents of a view's content, without what fills up the canvas."""
    rows, columns = max(view.content_height // grid, 1), max(view.content_width // grid, 1)
    return latents_1CTHW[:, :, :, :rows, :columns].contiguous()
