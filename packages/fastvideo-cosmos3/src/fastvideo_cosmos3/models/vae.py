"""The causal video autoencoder: pixels to latents and back, a few frames at a time.

The module holds parameters only. What a clip leaves behind for its next chunk is a tuple of tensors, passed in and
returned anew, so that a chunk can be run again.

Shape letters: B clips; P pixel channels; C latent channels; T, H, W frames, rows, columns, of pixels or of latents.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fastvideo_cosmos3.models.vae_config import VideoVAEConfig
from fastvideo_cosmos3.models.vae_layers import CausalConv3d, Decoder, Encoder, Tape

__all__ = ["Memory", "VideoVAE", "split_memory", "stack_memories"]

Memory = tuple[Tensor, ...]
"""What each temporal convolution saw last; empty before a clip's first chunk."""


class VideoVAE(nn.Module):
    """Encoder and decoder; parameters are named as in diffusers checkpoints.

    Args:
        config: The model's shape.
    """

    def __init__(self, config: VideoVAEConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.quant_conv = CausalConv3d(config.z_dim * 2, config.z_dim * 2, (1, 1, 1))
        self.post_quant_conv = CausalConv3d(config.z_dim, config.z_dim, (1, 1, 1))
        self.decoder = Decoder(config)

    def encode_group(self, pixels_BPTHW: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Encode the next group of a clip, one frame at its start and four after that, up to `quant_conv`.

        Args:
            pixels_BPTHW: Pixels in [-1, 1].
            memory: What the group before left behind.

        Returns:
            Features of one latent frame, (B, 2 C, 1, H', W'), and the memory for the next group.
        """
        tape = Tape(memory)
        features = self.encoder(_patchify(pixels_BPTHW, self.config.patch_edge), tape)
        return features, tuple(tape.slots)

    def mean_latents(self, features_BCTHW: Tensor) -> Tensor:
        """Return normalized means of a whole clip's features; the reference projects all frames at once."""
        means = self.quant_conv(features_BCTHW).chunk(2, dim=1)[0]
        mean, inverse_std = self._stats(means)
        return (means - mean) * inverse_std

    def mix(self, latents_BCTHW: Tensor) -> Tensor:
        """Return what the decoder takes of normalized latents; the reference mixes all frames at once."""
        mean, inverse_std = self._stats(latents_BCTHW)
        return self.post_quant_conv(latents_BCTHW / inverse_std + mean)

    def decode_frame(self, mixed_BCTHW: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Decode the next latent frame of a clip.

        Args:
            mixed_BCTHW: One frame of what `mix` gave.
            memory: What the frame before left behind.

        Returns:
            Pixels, not clamped: one frame for a clip's first latent frame, `temporal_factor` for others; and the memory
            for the next.
        """
        tape = Tape(memory)
        patches = self.decoder(mixed_BCTHW, tape)
        return _unpatchify(patches, self.config.patch_edge), tuple(tape.slots)

    def _stats(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean = torch.tensor(self.config.latents_mean, dtype=like.dtype, device=like.device)
        std = torch.tensor(self.config.latents_std, dtype=like.dtype, device=like.device)
        return mean.view(1, -1, 1, 1, 1), (1.0 / std).view(1, -1, 1, 1, 1)


def stack_memories(memories: Sequence[Memory]) -> Memory:
    """Join the memories of several clips, all before their first chunk or all after it."""
    return tuple(torch.cat(rows) for rows in zip(*memories, strict=True))


def split_memory(memory: Memory, num_clips: int) -> list[Memory]:
    """Undo `stack_memories`; each part has memory of its own."""
    return [tuple(slot[index : index + 1].clone() for slot in memory) for index in range(num_clips)]


def _patchify(pixels_BPTHW: Tensor, edge: int) -> Tensor:
    """Fold squares of pixels into channels, column within the square before row."""
    if edge == 1:
        return pixels_BPTHW
    num_clips, channels, num_frames, height, width = pixels_BPTHW.shape
    squares = pixels_BPTHW.reshape(num_clips, channels, num_frames, height // edge, edge, width // edge, edge)
    folded = squares.permute(0, 1, 6, 4, 2, 3, 5).contiguous()
    return folded.view(num_clips, channels * edge**2, num_frames, height // edge, width // edge)


def _unpatchify(patches_BCTHW: Tensor, edge: int) -> Tensor:
    """Undo `_patchify`."""
    if edge == 1:
        return patches_BCTHW
    num_clips, channels, num_frames, height, width = patches_BCTHW.shape
    squares = patches_BCTHW.reshape(num_clips, channels // edge**2, edge, edge, num_frames, height, width)
    pixels = squares.permute(0, 1, 4, 5, 3, 6, 2).contiguous()
    return pixels.view(num_clips, channels // edge**2, num_frames, height * edge, width * edge)
