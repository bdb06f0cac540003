"""Images and videos that the reasoner looks at: patches for the vision encoder, and their place in the text.

The encoder itself is transformers' (`Qwen3VLVisionModel`); its published weights are kept under the names of its parts.

Shape letters: T, H, W frames, rows, columns; P patches; K numbers of a patch; A the three axes; S tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from fastvideo_core.errors import CheckpointError, MediaError
from fastvideo_core.request.media.pixels import Frames
from fastvideo_cosmos3.models.config_file import read_json_object

__all__ = ["VisionPreprocessor", "VisionSettings", "Visual", "text_positions"]

_MAX_ASPECT = 200
_SAMPLED_FPS = 2.0
_MIN_FRAMES = 4
_MAX_FRAMES = 768
_VIDEO_PIXELS = (128 * 32 * 32, 32 * 32 * 768)
"""Fewest and most pixels of a whole video; the format states them nowhere but in the reference's code."""


class _Size(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    shortest_edge: Annotated[int, Field(ge=1)] = 65536
    longest_edge: Annotated[int, Field(ge=1)] = 16777216


class VisionSettings(BaseModel):
    """What a `preprocessor_config.json` says.

    Attributes:
        size: Fewest and most pixels of an image, under the format's names.
        patch_size: Edge of a patch.
        temporal_patch_size: Frames of a patch.
        merge_size: Edge of the square of patches that becomes a token.
        image_mean: Taken off each colour in [0, 1].
        image_std: What each colour is divided by then.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    size: _Size = _Size()
    patch_size: Annotated[int, Field(ge=1)] = 16
    temporal_patch_size: Annotated[int, Field(ge=1)] = 2
    merge_size: Annotated[int, Field(ge=1)] = 2
    image_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    image_std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read `preprocessor_config.json`.

        Raises:
            CheckpointError: It is missing, or says what cannot be.
        """
        path = folder / "preprocessor_config.json"
        try:
            return cls.model_validate(read_json_object(path))
        except ValidationError as error:
            first = error.errors()[0]
            raise CheckpointError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error

    @property
    def factor(self) -> int:
        """Pixels of a token's edge."""
        return self.patch_size * self.merge_size


@dataclass(frozen=True, slots=True)
class Visual:
    """An image or a video, ready for the vision encoder.

    Attributes:
        patches_PK: Its patches, float32.
        grid: Patches in time, rows and columns.
        merge: Edge of the square of patches that becomes a token.
        seconds: Mean time of each group of frames of a video; empty for an image.
    """

    patches_PK: Tensor
    grid: tuple[int, int, int]
    merge: int
    seconds: tuple[float, ...] = field(default=())

    @property
    def tokens_a_group(self) -> int:
        """Tokens of one group of frames."""
        return (self.grid[1] // self.merge) * (self.grid[2] // self.merge)


class VisionPreprocessor:
    """Makes patches of images and videos.

    Args:
        settings: Sizes and scales.
    """

    def __init__(self, settings: VisionSettings) -> None:
        self.settings = settings

    def image(self, image_HWC: Frames) -> Visual:
        """Return an image's patches.

        Raises:
            MediaError: It is far too narrow.
        """
        size = self._fitted(image_HWC.shape[0], image_HWC.shape[1], self.settings.size.shortest_edge,
                            self.settings.size.longest_edge, num_frames=1, field="image")  # fmt: skip
        pixels = self._scale(_resize(image_HWC, size))
        return self._patches(np.repeat(pixels[None], self.settings.temporal_patch_size, axis=0), ())

    def video(self, frames_THWC: Frames, fps: float) -> Visual:
        """Return a video's patches, of two frames a second.

        Args:
            frames_THWC: At least one frame.
            fps: Frames a second of them.

        Raises:
            MediaError: There is no frame, or they are far too narrow.
        """
        if len(frames_THWC) == 0:
            raise MediaError("has no frames", field="video", value=0, allowed="at least one frame")
        indices = _sampled(len(frames_THWC), fps)
        group = self.settings.temporal_patch_size
        indices += [indices[-1]] * (-len(indices) % group)
        rows, columns = frames_THWC.shape[1:3]
        size = self._fitted(rows, columns, *_VIDEO_PIXELS, num_frames=len(indices), field="video")
        pixels = np.stack([self._scale(_resize(frames_THWC[index], size)) for index in indices])
        times = [index / fps for index in indices]
        seconds = tuple((times[i] + times[i + group - 1]) / 2 for i in range(0, len(times), group))
        return self._patches(pixels, seconds)

    def _fitted(
        self, rows: int, columns: int, fewest: int, most: int, *, num_frames: int, field: str
    ) -> tuple[int, int]:
        """Return rows and columns on the grid of tokens, within the pixels that are allowed."""
        factor = self.settings.factor
        if max(rows, columns) > _MAX_ASPECT * min(rows, columns):
            raise MediaError(
                "too narrow", field=field, value=f"{columns}x{rows}", allowed=f"sides of at most 1 to {_MAX_ASPECT}"
            )
        size = (round(rows / factor) * factor, round(columns / factor) * factor)
        pixels = num_frames * size[0] * size[1]
        if pixels > most:
            shrink = math.sqrt(num_frames * rows * columns / most)
            return tuple(max(factor, math.floor(edge / shrink / factor) * factor) for edge in (rows, columns))  # type: ignore[return-value]
        if pixels < fewest:
            grow = math.sqrt(fewest / (num_frames * rows * columns))
            return tuple(math.ceil(edge * grow / factor) * factor for edge in (rows, columns))  # type: ignore[return-value]
        return size

    def _scale(self, image_HWC: Frames) -> np.ndarray[Any, np.dtype[np.float32]]:
        mean, std = (np.array(part, dtype=np.float32) for part in (self.settings.image_mean, self.settings.image_std))
        scaled: np.ndarray[Any, np.dtype[np.float32]] = ((image_HWC * (1 / 255)).astype(np.float32) - mean) / std
        return scaled

    def _patches(self, pixels_THWC: np.ndarray[Any, np.dtype[np.float32]], seconds: tuple[float, ...]) -> Visual:
        patch, merge, group = self.settings.patch_size, self.settings.merge_size, self.settings.temporal_patch_size
        frames, rows, columns, channels = pixels_THWC.shape
        grid = (frames // group, rows // patch, columns // patch)
        cells = pixels_THWC.reshape(
            grid[0], group, grid[1] // merge, merge, patch, grid[2] // merge, merge, patch, channels
        )
        # Squares of patches that become one token stand together.
        patches = cells.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(math.prod(grid), -1)
        return Visual(torch.from_numpy(np.ascontiguousarray(patches)), grid, merge, seconds)


def _sampled(num_frames: int, fps: float) -> list[int]:
    wanted = min(max(int(num_frames / fps * _SAMPLED_FPS), _MIN_FRAMES), _MAX_FRAMES, num_frames)
    return [int(index) for index in np.linspace(0, num_frames - 1, wanted).round()]


def _resize(image_HWC: Frames, size: tuple[int, int]) -> Frames:
    resized = Image.fromarray(image_HWC).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    return np.asarray(resized)


def text_positions(ids: Sequence[int], visual_ids: Sequence[int], grids: Sequence[tuple[int, int]]) -> Tensor:
    """Return the positions of a text with images in it, float32 (3, S).

    Args:
        ids: The text's tokens.
        visual_ids: Tokens that stand for parts of images and videos.
        grids: Rows and columns of tokens of each image, and of each group of frames, in the text's order.

    Source: Qwen3-VL: text counts on all axes together; an image stands at one time, and what follows it begins after
    its longer side.
    """
    parts, start, index, left = [], 0, 0, list(grids)
    while index < len(ids):
        if ids[index] in visual_ids:
            rows, columns = left.pop(0)
            row, column = torch.meshgrid(torch.arange(rows).float(), torch.arange(columns).float(), indexing="ij")
            parts.append(torch.stack((torch.zeros(rows * columns), row.flatten(), column.flatten())) + start)
            start, index = start + max(rows, columns), index + rows * columns
            continue
        end = next((place for place in range(index, len(ids)) if ids[place] in visual_ids), len(ids))
        parts.append((torch.arange(end - index).float() + start).expand(3, -1))
        start, index = start + end - index, end
    return torch.cat(parts, dim=1)
