"""Images as ComfyUI brings them to a video's size: cut in the middle, then scaled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastvideo_comfy.files import name_problem
from fastvideo_core.errors import MediaError
from fastvideo_core.request.media.images import load_image

__all__ = ["find_image", "fit_image"]


def find_image(folder: Path, name: str, field: str) -> Path:
    """Return an image file of ComfyUI's input folder.

    Raises:
        MediaError: The name leaves the folder, or there is no such file.
    """
    # ComfyUI marks names with the kind of folder that they are in.
    plain = name.removesuffix(" [input]")
    if name_problem(plain) is not None:
        raise MediaError("a name that leaves the folder", field=field, value=name, allowed=f"a file in {folder}")
    path = folder / plain
    if not path.is_file():
        raise MediaError("there is no such image", field=field, value=name, allowed=f"a file in {folder}")
    return path


def fit_image(image_HWC: Any, *, width: int, height: int) -> Any:
    """Cut an image to a video's proportions around its middle, and scale it by bilinear interpolation.

    Args:
        image_HWC: uint8 (H, W, 3).
        width: Width in pixels.
        height: Height in pixels.

    Returns:
        uint8 (height, width, 3).
    """
    rows, columns = image_HWC.shape[:2]
    x = y = 0
    if columns / rows > width / height:
        x = round((columns - columns * (width / height) / (columns / rows)) / 2)
    elif columns / rows < width / height:
        y = round((rows - rows * (columns / rows) / (width / height)) / 2)
    cut_HWC = np.ascontiguousarray(image_HWC[y : rows - y, x : columns - x])
    pixels_1CHW = torch.from_numpy(cut_HWC).permute(2, 0, 1)[None].float()
    scaled = torch.nn.functional.interpolate(pixels_1CHW, size=(height, width), mode="bilinear")
    return scaled[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).numpy()


def read_fitted(folder: Path, name: str, *, width: int, height: int, field: str) -> Any:
    """Read an image of ComfyUI's input folder, fitted; see `find_image` and `fit_image`."""
    return fit_image(load_image(find_image(folder, name, field), field=field), width=width, height=height)
