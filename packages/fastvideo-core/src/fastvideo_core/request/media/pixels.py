"""Between a model's pixels and the bytes of a file, both ways, with the rounding of the reference implementation.

Shapes: C channels, T frames, H height, W width. Frames are uint8 (T, H, W, C); pixels are float in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastvideo_core.errors import NonFiniteError, ParameterError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Frames", "as_frames", "frames_to_pixels", "image_to_pixels", "iter_frames", "pixels_to_frames"]

Frames = npt.NDArray[np.uint8]


def pixels_to_frames(pixels_CTHW: Tensor) -> Frames:
    """Turn decoded pixels into frames for a file.

    The arithmetic is that of `VideoProcessor.postprocess_video(output_type="np")` followed by `export_to_video` in
    diffusers 0.42: halve and shift in the pixels' own precision, clamp, widen to float32, times 255, cut off the
    fraction. It runs on the pixels' device, so that a quarter of the bytes is copied.

    Args:
        pixels_CTHW: Floating-point tensor, nominally in [-1, 1]; values beyond are clamped.

    Returns:
        uint8 array (T, H, W, C) on the host.

    Raises:
        NonFiniteError: NaN or infinity in the pixels.
    """
    import torch

    _check_finite(pixels_CTHW)
    with torch.no_grad():
        unit_THWC = (pixels_CTHW * 0.5).add_(0.5).clamp_(0, 1).permute(1, 2, 3, 0).float()
        frames: Frames = unit_THWC.mul_(255).to(torch.uint8).contiguous().cpu().numpy()
    return frames


def iter_frames(pixels_CTHW: Tensor, *, chunk_frames: int = 8) -> Iterator[Frames]:
    """Yield `pixels_to_frames` of a few frames at a time, so that the float copies stay small.

    Args:
        pixels_CTHW: As for `pixels_to_frames`.
        chunk_frames: Frames in one item; the last has what is left.
    """
    for start in range(0, pixels_CTHW.shape[1], chunk_frames):
        yield pixels_to_frames(pixels_CTHW[:, start : start + chunk_frames])


def frames_to_pixels(frames_THWC: Frames) -> Tensor:
    """Turn frames of an input video into pixels for an encoder.

    Args:
        frames_THWC: uint8 array (T, H, W, C).

    Returns:
        Float32 CPU tensor (C, T, H, W) in [-1, 1], as `VideoProcessor.preprocess_video` of diffusers 0.42 gives it.
    """
    import torch

    unit = frames_THWC.astype(np.float32) / 255.0
    return torch.from_numpy(2.0 * unit - 1.0).permute(3, 0, 1, 2).contiguous()


def image_to_pixels(image_HWC: Frames) -> Tensor:
    """Turn one image into pixels: float32 (C, H, W) in [-1, 1]."""
    return frames_to_pixels(image_HWC[None])[:, 0]


def as_frames(frames: Any, *, field: str = "frames") -> Frames:
    """Check frames and return them as a contiguous array on the host.

    Args:
        frames: uint8 array or tensor (T, H, W, 3).
        field: Name of the argument, for the message.

    Raises:
        ParameterError: Another type, shape or number of channels.
    """
    array = frames.detach().cpu().numpy() if hasattr(frames, "detach") else np.asarray(frames)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3 or 0 in array.shape[1:]:
        raise ParameterError(
            "not frames of a video",
            field=field,
            value=f"{array.dtype}{list(array.shape)}",
            allowed="uint8 (T, H, W, 3); float pixels in [-1, 1] go through pixels_to_frames first",
        )
    return np.ascontiguousarray(array)


def _check_finite(pixels_CTHW: Tensor) -> None:
    import torch

    if not pixels_CTHW.is_floating_point() or pixels_CTHW.ndim != 4:
        raise ParameterError(
            "not decoded pixels",
            field="pixels",
            value=f"{pixels_CTHW.dtype}{list(pixels_CTHW.shape)}",
            allowed="floating point (C, T, H, W) in [-1, 1]",
        )
    if not pixels_CTHW.numel() or all(torch.isfinite(end) for end in torch.aminmax(pixels_CTHW)):
        return  # the usual case, in one pass: NaN is both least and greatest
    is_bad_T = ~torch.isfinite(pixels_CTHW).all(dim=3).all(dim=2).all(dim=0)
    if bool(is_bad_T.any()):
        bad = is_bad_T.nonzero().flatten().tolist()
        raise NonFiniteError(f"NaN or infinity in the pixels of {len(bad)} of {len(is_bad_T)} frames, first {bad[0]}")
