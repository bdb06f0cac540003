"""The Wan causal video autoencoder, of Wan 2.1 and Wan 2.2: pixels to latents and back, any number of frames at a time.

The module holds parameters only. What a clip leaves behind for its next chunk is a `FeatureCache`, passed in and
returned anew, so that a chunk can be run again from the old one.

Shapes: B batch rows; P pixel channels; C latent channels; T, H, W frames, rows, columns, of pixels or of latents.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastvideo_core.errors import ParameterError
from fastvideo_wan.models import vae_exact, vae_fast
from fastvideo_wan.models.vae_blocks import CausalConv3d
from fastvideo_wan.models.vae_cache import FeatureCache, Tape
from fastvideo_wan.models.vae_coder import Decoder, Encoder
from fastvideo_wan.models.vae_config import WanVAEConfig

ENCODE_GROUP_FRAMES = 4
"""Frames that the encoder takes at a time, after a clip's first frame."""


class WanVAE(nn.Module):
    """Encoder and decoder; parameters are named as in diffusers checkpoints.

    Args:
        config: The model's shape.
    """

    def __init__(self, config: WanVAEConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.quant_conv = CausalConv3d(config.z_dim * 2, config.z_dim * 2, (1, 1, 1))
        self.post_quant_conv = CausalConv3d(config.z_dim, config.z_dim, (1, 1, 1))
        self.decoder = Decoder(config)

    def encode_frames(
        self, pixels_BPTHW: Tensor, cache: FeatureCache, *, is_exact: bool = False
    ) -> tuple[Tensor, FeatureCache]:
        """Encode the next frames of a clip.

        Args:
            pixels_BPTHW: Pixels in [-1, 1]: 1 frame more than a multiple of four if they open the clip, else a multiple
                of four; rows and columns multiples of the model's spatial factor.
            cache: What the frames before left behind; an empty cache opens a clip.
            is_exact: Keep the reference's order of operations; its bits need one group of frames a call.

        Returns:
            Means and log variances, (B, 2C, T', H', W'), and the cache for the next frames.

        Raises:
            ParameterError: If the pixels are off the grid.
        """
        self._check_pixels(pixels_BPTHW, is_first=cache.is_empty)
        tape = Tape(cache, vae_exact if is_exact else vae_fast)
        moments = self._encode(pixels_BPTHW, tape)
        return moments, FeatureCache(tape.slots, cache.frames_done + pixels_BPTHW.shape[2])

    def decode_frames(
        self, latents_BCTHW: Tensor, cache: FeatureCache, *, is_exact: bool = False
    ) -> tuple[Tensor, FeatureCache]:
        """Decode the next latent frames of a clip.

        Args:
            latents_BCTHW: One or more latent frames, not normalized.
            cache: What the frames before left behind; an empty cache opens a clip.
            is_exact: Keep the reference's order of operations; its bits need one latent frame a call.

        Returns:
            Pixels, not clamped, and the cache for the next frames. A clip's first latent frame gives one frame of
            pixels, the others as many as the temporal factor.

        Raises:
            ParameterError: If there is no frame, or the channels are not the model's.
        """
        self._check_latents(latents_BCTHW)
        tape = Tape(cache, vae_exact if is_exact else vae_fast)
        pixels = self._decode(latents_BCTHW, tape)
        return pixels, FeatureCache(tape.slots, cache.frames_done + latents_BCTHW.shape[2])

    def encode(self, pixels_BPTHW: Tensor) -> Tensor:
        """Encode a whole clip at once; differentiable.

        Returns:
            Means and log variances, (B, 2C, T', H', W').

        Raises:
            ParameterError: If the pixels are off the grid.
        """
        self._check_pixels(pixels_BPTHW, is_first=True)
        return self._encode(pixels_BPTHW, Tape(None, vae_fast))

    def decode(self, latents_BCTHW: Tensor) -> Tensor:
        """Decode a whole clip at once; differentiable.

        Returns:
            Pixels, not clamped.

        Raises:
            ParameterError: If there is no frame, or the channels are not the model's.
        """
        self._check_latents(latents_BCTHW)
        return self._decode(latents_BCTHW, Tape(None, vae_fast))

    def forward(self, pixels_BPTHW: Tensor, noise_BCTHW: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Encode and decode a whole clip, for training.

        Args:
            pixels_BPTHW: Pixels in [-1, 1], on the grid.
            noise_BCTHW: Standard normal noise; decode a sample of the latents made with it. None decodes the means.

        Returns:
            The reconstruction, not clamped, in the shape of the pixels; and the moments, as `encode` returns them.
        """
        moments = self.encode(pixels_BPTHW)
        latents = mean_latents(moments) if noise_BCTHW is None else sample_latents(moments, noise_BCTHW)
        return self.decode(latents), moments

    def normalize(self, latents_BCTHW: Tensor) -> Tensor:
        """Give every latent channel mean 0 and deviation 1, by the config's figures, in the latents' dtype."""
        mean, inverse_std = self._latent_stats(latents_BCTHW)
        return (latents_BCTHW - mean) * inverse_std

    def denormalize(self, latents_BCTHW: Tensor) -> Tensor:
        """Undo `normalize`; divides by the inverse deviation, as the reference does, for its bits."""
        mean, inverse_std = self._latent_stats(latents_BCTHW)
        return latents_BCTHW / inverse_std + mean

    def _encode(self, pixels_BPTHW: Tensor, tape: Tape) -> Tensor:
        patches = patchify(pixels_BPTHW, self.config.patch_edge)
        return self.quant_conv(self.encoder(patches, tape), tape)

    def _decode(self, latents_BCTHW: Tensor, tape: Tape) -> Tensor:
        patches = self.decoder(self.post_quant_conv(latents_BCTHW, tape), tape)
        return unpatchify(patches, self.config.patch_edge)

    def _latent_stats(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean = torch.tensor(self.config.latents_mean).view(1, -1, 1, 1, 1).to(like.device, like.dtype)
        inverse_std = 1.0 / torch.tensor(self.config.latents_std).view(1, -1, 1, 1, 1).to(like.device, like.dtype)
        return mean, inverse_std

    def _check_pixels(self, pixels: Tensor, *, is_first: bool) -> None:
        if pixels.ndim != 5 or pixels.shape[1] != self.config.pixel_channels:
            raise ParameterError(
                "pixels have a wrong shape",
                field="pixels",
                value=tuple(pixels.shape),
                allowed=f"(batch, {self.config.pixel_channels}, frames, rows, columns)",
            )
        num_frames = pixels.shape[2]
        if num_frames < 1 or num_frames % ENCODE_GROUP_FRAMES != int(is_first):
            grid = "4k + 1 frames at a clip's start" if is_first else "4k frames after a clip's start"
            raise ParameterError("frames are off the grid", field="num_frames", value=num_frames, allowed=grid)
        factor = self.config.spatial_factor
        if pixels.shape[3] % factor or pixels.shape[4] % factor or pixels.shape[3:].numel() == 0:
            raise ParameterError(
                "size is off the grid", field="size", value=tuple(pixels.shape[3:]), allowed=f"multiples of {factor}"
            )

    def _check_latents(self, latents: Tensor) -> None:
        if latents.ndim != 5 or latents.shape[1] != self.config.z_dim or latents.numel() == 0:
            raise ParameterError(
                "latents have a wrong shape",
                field="latents",
                value=tuple(latents.shape),
                allowed=f"(batch, {self.config.z_dim}, frames, rows, columns), none of them zero",
            )


def mean_latents(moments_BCTHW: Tensor) -> Tensor:
    """Return the means, the first half of what `encode` returns."""
    return moments_BCTHW.chunk(2, dim=1)[0]


def sample_latents(moments_BCTHW: Tensor, noise_BCTHW: Tensor) -> Tensor:
    """Return latents drawn from the moments with given standard normal noise.

    Log variances are held to [-30, 20], as the reference does.
    """
    mean, log_variance = moments_BCTHW.chunk(2, dim=1)
    return mean + torch.exp(0.5 * log_variance.clamp(-30.0, 20.0)) * noise_BCTHW


def patchify(pixels_BPTHW: Tensor, edge: int) -> Tensor:
    """Fold squares of `edge` pixels into channels, column within the square before row, as checkpoints expect."""
    if edge == 1:
        return pixels_BPTHW
    num_rows, channels, num_frames, height, width = pixels_BPTHW.shape
    squares = pixels_BPTHW.reshape(num_rows, channels, num_frames, height // edge, edge, width // edge, edge)
    folded = squares.permute(0, 1, 6, 4, 2, 3, 5).contiguous()
    return folded.view(num_rows, channels * edge**2, num_frames, height // edge, width // edge)


def unpatchify(patches_BCTHW: Tensor, edge: int) -> Tensor:
    """Undo `patchify`."""
    if edge == 1:
        return patches_BCTHW
    num_rows, channels, num_frames, height, width = patches_BCTHW.shape
    squares = patches_BCTHW.reshape(num_rows, channels // edge**2, edge, edge, num_frames, height, width)
    pixels = squares.permute(0, 1, 4, 5, 3, 6, 2).contiguous()
    return pixels.view(num_rows, channels // edge**2, num_frames, height * edge, width * edge)
