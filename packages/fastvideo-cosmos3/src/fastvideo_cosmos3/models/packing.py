"""How a request's video, sound and action become one sequence, and how the sequence becomes velocities again.

The order is video (by frame, row, column of patches), sound, action. All three start at the same position in time,
some way after the text; an action stands between the frames that it joins, so that the first is at frame 1.

Shape letters: A the three axes; G tokens; C channels; T, H, W latent frames, rows, columns; K action width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fastvideo_cosmos3.models.config import TransformerConfig

__all__ = ["Layout", "patchify", "positions", "unpatchify"]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a request generates, in tokens.

    Attributes:
        frames: Latent frames of the video.
        rows: Latent rows.
        columns: Latent columns.
        known_frames: Latent frames that are given; they get no timestep and no velocity.
        fps: Frames a second of the video; None counts frames and not time.
        sound_frames: Latent frames of sound; 0 without sound.
        sound_fps: Latent frames of sound a second.
        num_actions: Actions; 0 without.
        has_known_actions: Whether the actions are given.
        temporal_factor: Frames that a latent frame stands for.
        patch: Edge of a patch.
    """

    frames: int
    rows: int
    columns: int
    known_frames: tuple[int, ...]
    fps: float
    sound_frames: int = 0
    sound_fps: float = 25.0
    num_actions: int = 0
    has_known_actions: bool = False
    temporal_factor: int = 4
    patch: int = 2

    @property
    def patches_a_frame(self) -> int:
        """Tokens of one latent frame."""
        return -(-self.rows // self.patch) * -(-self.columns // self.patch)

    @property
    def video_tokens(self) -> int:
        """Tokens of the video."""
        return self.frames * self.patches_a_frame

    @property
    def num_tokens(self) -> int:
        """Tokens in all."""
        return self.video_tokens + self.sound_frames + self.num_actions

    @property
    def noisy_frames(self) -> tuple[int, ...]:
        """Latent frames that are denoised."""
        return tuple(index for index in range(self.frames) if index not in self.known_frames)

    @property
    def has_noisy_actions(self) -> bool:
        """Whether actions are denoised."""
        return self.num_actions > 0 and not self.has_known_actions


def positions(config: TransformerConfig, layout: Layout, text_end: int) -> Tensor:
    """Return the positions of all tokens, float32 (3, G).

    Args:
        config: Gives the frame rate of the positions and the margin after the text.
        layout: The tokens.
        text_end: The position after the text's last one.
    """
    start = text_end + config.unified_3d_mrope_temporal_modality_margin
    height, width = -(-layout.rows // layout.patch), -(-layout.columns // layout.patch)
    frames = _times(config, layout.frames, start, layout.fps, factor=layout.temporal_factor)
    time, row, column = torch.meshgrid(
        frames, torch.arange(height, dtype=torch.float32), torch.arange(width, dtype=torch.float32), indexing="ij"
    )
    parts = [torch.stack((time.flatten(), row.flatten(), column.flatten()))]
    if layout.sound_frames:
        parts.append(_on_time(_times(config, layout.sound_frames, start, layout.sound_fps, factor=1, base_factor=1)))
    if layout.num_actions:
        actions = _times(
            config, layout.num_actions, start, layout.fps, factor=1, base_factor=layout.temporal_factor, first=1
        )
        parts.append(_on_time(actions))
    return torch.cat(parts, dim=1)


def _times(
    config: TransformerConfig,
    count: int,
    start: int,
    fps: float,
    *,
    factor: int,
    base_factor: int | None = None,
    first: int = 0,
) -> Tensor:
    """Return positions in time, in units of a latent frame at the base frame rate; a single one stands at `start`."""
    index = torch.arange(count, dtype=torch.float32)
    if not config.enable_fps_modulation or count == 1:
        return index + start + first
    rate, base_rate = fps / factor, config.base_fps / (base_factor or factor)
    return (index + first) / rate * base_rate + start


def _on_time(times_G: Tensor) -> Tensor:
    zeros = torch.zeros_like(times_G)
    return torch.stack((times_G, zeros, zeros))


def patchify(latents_1CTHW: Tensor, patch: int) -> Tensor:
    """Turn latents into patches, (G, patch * patch * C), edges filled up with zeros; channels change fastest."""
    _, channels, _, rows, columns = latents_1CTHW.shape
    padded = F.pad(latents_1CTHW[0], (0, -columns % patch, 0, -rows % patch))
    grid = padded.unflatten(2, (-1, patch)).unflatten(4, (-1, patch))
    return grid.permute(1, 2, 4, 3, 5, 0).reshape(-1, patch * patch * channels)


def unpatchify(patches_GC: Tensor, layout: Layout) -> Tensor:
    """Turn patches of the noisy frames into latents, (1, C, T, H, W), with zeros in the known frames.

    Args:
        patches_GC: Patches of the noisy frames, in order.
        layout: The tokens.
    """
    patch, noisy = layout.patch, layout.noisy_frames
    height, width = -(-layout.rows // patch), -(-layout.columns // patch)
    channels = patches_GC.shape[1] // patch**2
    latents = patches_GC.new_zeros(channels, layout.frames, layout.rows, layout.columns)
    if noisy:
        grid = patches_GC.view(len(noisy), height, width, patch, patch, channels)
        whole = grid.permute(5, 0, 1, 3, 2, 4).reshape(channels, len(noisy), height * patch, width * patch)
        latents[:, list(noisy)] = whole[:, :, : layout.rows, : layout.columns]
    return latents.unsqueeze(0)
