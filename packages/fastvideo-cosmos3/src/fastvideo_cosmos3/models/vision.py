"""Images and videos that the reasoner looks at: patches for the vision encoder, and their place in the text.

The encoder itself is transformers' (`Qwen3VLVisionModel`); its published weights are kept under the names of its parts.

Shape letters: T, H, W frames, rows, columns; P patches; K numbers of a patch; A the three axes; S tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor
from torch.nn import functional as F

from fastvideo_core.errors import CheckpointError, MediaError
from fastvideo_core.request.media.pixels import Frames
from fastvideo_cosmos3.models.config_file import read_json_object

__all__ = ["PatchSettings", "VisionPreprocessor", "VisionSettings", "Visual", "text_positions"]

_MAX_ASPECT = 200
_FILES = {
    "image": ("preprocessor_config.json",),
    "video": ("video_preprocessor_config.json", "preprocessor_config.json"),
}
"""Where the settings of each kind stand, the first that is there; before them, as part of `processor_config.json`."""


class _Size(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    shortest_edge: Annotated[int, Field(ge=1)] = 65536
    longest_edge: Annotated[int, Field(ge=1)] = 16777216


class PatchSettings(BaseModel):
    """How images, or videos, become patches; names are those of the files.

    Attributes:
        size: Fewest and most pixels, of a video those of all its frames, under the format's names.
        patch_size: Edge of a patch.
        temporal_patch_size: Frames of a patch.
        merge_size: Edge of the square of patches that becomes a token.
        image_mean: Taken off each colour in [0, 1].
        image_std: What each colour is divided by then.
        fps: Frames a second of a video that are looked at.
        min_frames: Fewest of them, if the video has as many.
        max_frames: Most of them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    size: _Size = _Size()
    patch_size: Annotated[int, Field(ge=1)] = 16
    temporal_patch_size: Annotated[int, Field(ge=1)] = 2
    merge_size: Annotated[int, Field(ge=1)] = 2
    image_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    image_std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    fps: Annotated[float, Field(gt=0)] = 2.0
    min_frames: Annotated[int, Field(ge=1)] = 4
    max_frames: Annotated[int, Field(ge=1)] = 768

    @property
    def factor(self) -> int:
        """Pixels of a token's edge."""
        return self.patch_size * self.merge_size


class VisionSettings(BaseModel):
    """How images and videos become patches.

    Attributes:
        image: Images.
        video: Videos.
    """

    model_config = ConfigDict(frozen=True)

    image: PatchSettings = PatchSettings()
    video: PatchSettings = PatchSettings(size=_Size(shortest_edge=128 * 32 * 32, longest_edge=768 * 32 * 32))

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read a checkpoint's settings where transformers looks for them.

        Raises:
            CheckpointError: There are none, or they say what cannot be.
        """
        image, video = (_read_settings(folder, kind) for kind in ("image", "video"))
        return cls(image=image, video=video)


def _read_settings(folder: Path, kind: str) -> PatchSettings:
    whole = folder / "processor_config.json"
    nested = read_json_object(whole).get(f"{kind}_processor") if whole.is_file() else None
    path = whole if nested else next((folder / name for name in _FILES[kind] if (folder / name).is_file()), None)
    content = nested or read_json_object(path or folder / _FILES[kind][0])
    try:
        return PatchSettings.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


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
    """Makes patches of images and videos, as transformers does it.

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
        settings = self.settings.image
        rows, columns = image_HWC.shape[:2]
        size = _fitted(settings, rows, columns, num_frames=1, whole_frames=1, field="image")
        pixels = _pixels(settings, image_HWC[None], size)
        return _patches(settings, pixels.expand(settings.temporal_patch_size, -1, -1, -1), ())

    def video(self, frames_THWC: Frames, fps: float) -> Visual:
        """Return a video's patches, of a few frames a second.

        Args:
            frames_THWC: At least one frame.
            fps: Frames a second of them.

        Raises:
            MediaError: There is no frame, or they are far too narrow.
        """
        if len(frames_THWC) == 0:
            raise MediaError("has no frames", field="video", value=0, allowed="at least one frame")
        settings, (rows, columns) = self.settings.video, frames_THWC.shape[1:3]
        group = settings.temporal_patch_size
        indices = _sampled(settings, len(frames_THWC), fps)
        # A video of fewer frames than a patch has stands still; the reference refuses it.
        indices += [indices[-1]] * (group - len(indices))
        if min(rows, columns) < settings.factor:
            grow = max(settings.factor / rows, settings.factor / columns)
            rows, columns = int(rows * grow), int(columns * grow)
        whole = round(len(indices) / group) * group
        size = _fitted(settings, rows, columns, num_frames=len(indices), whole_frames=whole, field="video")
        pixels = _pixels(settings, frames_THWC[indices], size)
        missing = -len(indices) % group
        pixels = torch.cat([pixels, pixels[-1:].expand(missing, -1, -1, -1)])
        times = [index / fps for index in (*indices, *[indices[-1]] * missing)]
        seconds = tuple((times[i] + times[i + group - 1]) / 2 for i in range(0, len(times), group))
        return _patches(settings, pixels, seconds)


def _fitted(
    settings: PatchSettings, rows: int, columns: int, *, num_frames: int, whole_frames: int, field: str
) -> tuple[int, int]:
    """Return rows and columns on the grid of tokens, within the pixels that are allowed.

    Args:
        settings: The grid, and the pixels.
        rows: Of what is shown.
        columns: Of what is shown.
        num_frames: Its frames.
        whole_frames: The frames that are counted, which are whole patches.
        field: What it is, for messages.
    """
    factor, fewest, most = settings.factor, settings.size.shortest_edge, settings.size.longest_edge
    if max(rows, columns) > _MAX_ASPECT * min(rows, columns):
        raise MediaError(
            "too narrow", field=field, value=f"{columns}x{rows}", allowed=f"sides of at most 1 to {_MAX_ASPECT}"
        )
    height, width = (round(edge / factor) * factor for edge in (rows, columns))
    pixels = whole_frames * height * width
    if pixels > most:
        shrink = math.sqrt(num_frames * rows * columns / most)
        height, width = (max(factor, math.floor(edge / shrink / factor) * factor) for edge in (rows, columns))
    elif pixels < fewest:
        grow = math.sqrt(fewest / (num_frames * rows * columns))
        height, width = (math.ceil(edge * grow / factor) * factor for edge in (rows, columns))
    return height, width


def _sampled(settings: PatchSettings, num_frames: int, fps: float) -> list[int]:
    wanted = min(max(int(num_frames / fps * settings.fps), settings.min_frames), settings.max_frames, num_frames)
    return [int(index) for index in np.linspace(0, num_frames - 1, wanted).round()]


def _pixels(settings: PatchSettings, frames_THWC: Frames, size: tuple[int, int]) -> Tensor:
    """Return frames of a size, scaled, float32 (T, C, H, W).

    Bytes are resized as bytes, as torchvision does it, which transformers takes: other libraries round otherwise.
    """
    frames = torch.from_numpy(np.ascontiguousarray(frames_THWC)).permute(0, 3, 1, 2).contiguous()
    if tuple(frames.shape[2:]) != size:
        frames = F.interpolate(frames, size=size, mode="bicubic", align_corners=False, antialias=True)
    mean, std = (torch.tensor(part).view(3, 1, 1) * 255 for part in (settings.image_mean, settings.image_std))
    return (frames.float() - mean) / std


def _patches(settings: PatchSettings, pixels_TCHW: Tensor, seconds: tuple[float, ...]) -> Visual:
    patch, merge, group = settings.patch_size, settings.merge_size, settings.temporal_patch_size
    frames, channels, rows, columns = pixels_TCHW.shape
    grid = (frames // group, rows // patch, columns // patch)
    cells = pixels_TCHW.reshape(
        grid[0], group, channels, grid[1] // merge, merge, patch, grid[2] // merge, merge, patch
    )
    # Squares of patches that become one token stand together.
    patches = cells.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(math.prod(grid), -1)
    return Visual(patches, grid, merge, seconds)


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
