"""Input images: from whatever people have to upright 8-bit RGB, or an error that says what is wrong with the file.

Shapes: H height, W width. Images are uint8 (H, W, 3).
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from fastvideo_core.errors import MediaError
from fastvideo_core.request.media.files import open_input
from fastvideo_core.request.media.pixels import Frames

__all__ = ["IMAGE_INPUTS", "MAX_IMAGE_BYTES", "MAX_IMAGE_PIXELS", "load_image", "resize_image"]

IMAGE_INPUTS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""Formats that are tried. Pillow knows more, some of which start other programs."""

MAX_IMAGE_BYTES = 64 << 20
MAX_IMAGE_PIXELS = 64_000_000

_WHITE = (255, 255, 255, 255)
_WIDE_MODES = {"I;16", "I;16B", "I;16L", "I;16N", "I"}


def load_image(
    source: str | Path | bytes | Image.Image | npt.NDArray[Any],
    *,
    field: str = "image",
    max_pixels: int = MAX_IMAGE_PIXELS,
    max_bytes: int = MAX_IMAGE_BYTES,
) -> Frames:
    """Read an image.

    It is turned upright as its EXIF orientation says; transparency is laid over white; 16-bit grey keeps its
    brightness; palettes and grey become RGB; of an animation the first picture is taken. Colour profiles are not
    applied.

    Args:
        source: A path, the bytes of a file, a Pillow image, or an array: uint8 or uint16, or float in [0, 1], of shape
            (H, W), (H, W, 1), (H, W, 3) or (H, W, 4).
        field: Name of the parameter, for messages.
        max_pixels: Limit of width times height, checked before anything is decoded.
        max_bytes: Limit of the file's size.

    Returns:
        uint8 array (H, W, 3).

    Raises:
        MediaError: Missing, no image, broken, or too large.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source, field, max_pixels)
    if isinstance(source, Image.Image):
        return _to_rgb(source, "an image object", field, max_pixels)
    name = "bytes" if isinstance(source, bytes) else str(source)
    with (
        open_input(source, what="an image", field=field, max_bytes=max_bytes) as file,
        _open(file, name, field) as image,
    ):
        return _to_rgb(image, name, field, max_pixels)


def resize_image(image_HWC: Frames, *, height: int, width: int) -> Frames:
    """Stretch an image to a size with the Lanczos filter, as `VideoProcessor.preprocess` of diffusers 0.42 does."""
    resized = Image.fromarray(image_HWC).resize((width, height), resample=Image.Resampling.LANCZOS)
    return np.array(resized)


def _open(file: BinaryIO, name: str, field: str) -> Image.Image:
    try:
        with warnings.catch_warnings():
            # Sizes are checked here, against limits of our own and before anything is decoded.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return Image.open(file, formats=IMAGE_INPUTS)
    except Image.DecompressionBombError:
        raise _too_large("beyond any limit", name, field, MAX_IMAGE_PIXELS) from None
    # A parser that reads hostile bytes can raise anything.
    except Exception as error:
        raise MediaError(
            "not an image that can be read", field=field, value=name, allowed=", ".join(IMAGE_INPUTS)
        ) from error


def _to_rgb(image: Image.Image, name: str, field: str, max_pixels: int) -> Frames:
    if image.width * image.height > max_pixels:
        raise _too_large(f"{image.width}x{image.height}", name, field, max_pixels)
    try:
        image.load()
        rgb = _flatten(ImageOps.exif_transpose(image))
    except Exception as error:
        raise MediaError(f"a broken image: {_reason(error)}", field=field, value=name) from error
    if rgb is None:
        raise MediaError(f"pixels of mode {image.mode} have no defined brightness", field=field, value=name)
    return np.array(rgb)


def _flatten(image: Image.Image) -> Image.Image | None:
    if image.mode in _WIDE_MODES:
        wide = np.asarray(image).astype(np.int64)
        # Mode I has 32 bits; what files hold in it has 16.
        return _grey(wide / 257.0) if wide.min() >= 0 and wide.max() <= 65535 else None
    if image.mode == "F":
        return None
    if "A" in image.getbands() or "transparency" in image.info:
        # Modes La and RGBa hold premultiplied colours; they convert to RGBA only.
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, _WHITE), rgba).convert("RGB")
    return image.convert("RGB")


def _grey(values_HW: npt.NDArray[np.float64]) -> Image.Image:
    return Image.fromarray(np.rint(values_HW).astype(np.uint8)).convert("RGB")


def _from_array(array: npt.NDArray[Any], field: str, max_pixels: int) -> Frames:
    shape = f"{array.dtype}{list(array.shape)}"
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.ndim not in (2, 3) or channels not in (1, 3, 4) or 0 in array.shape:
        raise MediaError("not an image", field=field, value=shape, allowed="(H, W), (H, W, 1), (H, W, 3) or (H, W, 4)")
    if array.shape[0] * array.shape[1] > max_pixels:
        raise _too_large(f"{array.shape[1]}x{array.shape[0]}", shape, field, max_pixels)
    bytes_HWC = _to_bytes(array.reshape(*array.shape[:2], channels), shape, field)
    if channels == 1:
        return np.repeat(bytes_HWC, 3, axis=2)
    if channels == 4:
        return _to_rgb(Image.fromarray(bytes_HWC, "RGBA"), shape, field, max_pixels)
    return np.ascontiguousarray(bytes_HWC)


def _to_bytes(array: npt.NDArray[Any], shape: str, field: str) -> Frames:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.uint16:
        return np.rint(array / 257.0).astype(np.uint8)
    if not np.issubdtype(array.dtype, np.floating):
        raise MediaError("not an image", field=field, value=shape, allowed="uint8, uint16, or float in [0, 1]")
    if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
        raise MediaError("values outside [0, 1]", field=field, value=shape, allowed="float in [0, 1], or uint8")
    return np.rint(array * 255.0).astype(np.uint8)


def _too_large(size: str, name: str, field: str, max_pixels: int) -> MediaError:
    return MediaError(
        f"the image is too large: {size}", field=field, value=name, allowed=f"{max_pixels / 1e6:g} million pixels"
    )


def _reason(error: Exception) -> str:
    text = str(error).splitlines()
    return text[0] if text else type(error).__name__
