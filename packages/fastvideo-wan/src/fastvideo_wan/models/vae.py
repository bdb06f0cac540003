"""The Wan causal video autoencoder, of Wan 2.1 and Wan 2.2: pixels to latents and back, any number of frames at a time.

The module holds parameters only. What a clip leaves behind for its next chunk is a `FeatureCache`, passed in and
returned anew, so that a chunk can be run again from the old one.

Shapes: B batch rows; P pixel channels; C latent channels; T, H, W frames, rows, columns, of pixels or of latents.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fastvideo_core.errors import ParameterError
from fastvideo_wan.models import vae_exact, vae_fast
from fastvideo_wan.models.vae_blocks import CausalConv3d
from fastvideo_wan.models.vae_cache import FeatureCache, Tape, split_cache, stack_caches
from fastvideo_wan.models.vae_coder import Decoder, Encoder
from fastvideo_wan.models.vae_config import WanVAEConfig
from fastvideo_wan.models.vae_ops import VAEOps

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
        """Encode the next frames of a clip: `encode_features`, then `project_moments`.

        With `is_exact`, a whole clip in one call has the reference's bits; for a clip in several calls, join the
        features of all and project once.
        """
        features, cache = self.encode_features(pixels_BPTHW, cache, is_exact=is_exact)
        return self.project_moments(features, is_exact=is_exact), cache

    def encode_features(
        self, pixels_BPTHW: Tensor, cache: FeatureCache, *, is_exact: bool = False
    ) -> tuple[Tensor, FeatureCache]:
        """Run the encoder on the next frames of a clip, up to its last convolution over channels alone.

        Args:
            pixels_BPTHW: Pixels in [-1, 1]: 1 frame more than a multiple of four if they open the clip, else a multiple
                of four; rows and columns multiples of the model's spatial factor.
            cache: What the frames before left behind; an empty cache opens a clip.
            is_exact: Keep the reference's order of operations and its groups of frames, so that float32 results have
                the same bits.

        Returns:
            Features, (B, 2C, T', H', W'), and the cache for the next frames.

        Raises:
            ParameterError: If the pixels are off the grid.
        """
        self._check_pixels(pixels_BPTHW, is_first=cache.is_empty)
        patches = patchify(pixels_BPTHW, self.config.patch_edge)
        if not is_exact:
            return self._run(self.encoder, patches, cache, vae_fast)
        sizes = [1] * cache.is_empty + [ENCODE_GROUP_FRAMES] * (pixels_BPTHW.shape[2] // ENCODE_GROUP_FRAMES)
        return self._run_groups(self.encoder, patches.split(sizes, dim=2), cache)

    def project_moments(self, features_BCTHW: Tensor, *, is_exact: bool = False) -> Tensor:
        """Turn features of a clip, or of a part, into means and log variances, (B, 2C, T', H', W').

        The bits may depend on how many frames are given; the reference gives all frames of the clip at once.
        """
        tape = Tape(None, vae_exact if is_exact else vae_fast)
        return self.quant_conv(features_BCTHW, tape)

    def decode_frames(
        self,
        latents_BCTHW: Tensor,
        cache: FeatureCache,
        *,
        is_exact: bool = False,
        span: tuple[int, int] | None = None,
    ) -> tuple[Tensor, FeatureCache]:
        """Decode the next latent frames of a clip.

        Args:
            latents_BCTHW: One or more latent frames, not normalized.
            cache: What the frames before left behind; an empty cache opens a clip.
            is_exact: Keep the reference's order of operations, one latent frame at a time, so that float32 results
                have the same bits.
            span: First latent frame to decode and the one after the last, in `latents_BCTHW`; None means all. A clip
                that is decoded exactly in several calls gives all its latents to each: the reference's first
                convolution takes them all, and its bits may depend on how many they are.

        Returns:
            Pixels, not clamped, and the cache for the next frames. A clip's first latent frame gives one frame of
            pixels, the others as many as the temporal factor.

        Raises:
            ParameterError: If there is no frame, or the channels are not the model's.
        """
        start, stop = (0, latents_BCTHW.shape[2]) if span is None else span
        self._check_latents(latents_BCTHW[:, :, start:stop])
        if is_exact:
            mixed = self.post_quant_conv(latents_BCTHW, Tape(None, vae_exact))
            patches, cache = self._run_groups(self.decoder, mixed[:, :, start:stop].split(1, dim=2), cache)
        else:
            mixed = self.post_quant_conv(latents_BCTHW[:, :, start:stop], Tape(None, vae_fast))
            patches, cache = self._run(self.decoder, mixed, cache, vae_fast)
        return unpatchify(patches, self.config.patch_edge), cache

    def decode_many(
        self, chunks: Sequence[Tensor], caches: Sequence[FeatureCache]
    ) -> list[tuple[Tensor, FeatureCache]]:
        """Decode chunks of several clips as the rows of one batch; equal to `decode_frames` of each but for rounding.

        Args:
            chunks: Latent frames of each clip, one shape but for the rows.
            caches: What each clip's frames before left behind; all empty or none.

        Returns:
            For each clip, what `decode_frames` returns.

        Raises:
            ParameterError: If the chunks do not fit together or are not the model's.
            StateError: If some clips have begun and others have not.
        """
        shapes = {chunk.shape[1:] for chunk in chunks}
        if len(shapes) != 1 or len(chunks) != len(caches):
            raise ParameterError(
                "chunks do not make a batch",
                field="chunks",
                value=[tuple(chunk.shape) for chunk in chunks],
                allowed="one or more of one shape but for the rows, one cache each",
            )
        if len(chunks) == 1:
            return [self.decode_frames(chunks[0], caches[0])]
        pixels, cache = self.decode_frames(torch.cat(list(chunks)), stack_caches(caches))
        num_rows = [chunk.shape[0] for chunk in chunks]
        return list(zip(pixels.split(num_rows), split_cache(cache, caches, num_rows), strict=True))

    def encode_many(
        self, chunks: Sequence[Tensor], caches: Sequence[FeatureCache]
    ) -> list[tuple[Tensor, FeatureCache]]:
        """Run the encoder on chunks of several clips as the rows of one batch; see `decode_many`.

        Returns:
            For each clip, what `encode_features` returns.
        """
        if len(chunks) == 1:
            return [self.encode_features(chunks[0], caches[0])]
        features, cache = self.encode_features(torch.cat(list(chunks)), stack_caches(caches))
        num_rows = [chunk.shape[0] for chunk in chunks]
        return list(zip(features.split(num_rows), split_cache(cache, caches, num_rows), strict=True))

    def encode(self, pixels_BPTHW: Tensor) -> Tensor:
        """Encode a whole clip at once; differentiable.

        Returns:
            Means and log variances, (B, 2C, T', H', W').

        Raises:
            ParameterError: If the pixels are off the grid.
        """
        self._check_pixels(pixels_BPTHW, is_first=True)
        features, _ = self._run(self.encoder, patchify(pixels_BPTHW, self.config.patch_edge), None, vae_fast)
        return self.project_moments(features)

    def decode(self, latents_BCTHW: Tensor) -> Tensor:
        """Decode a whole clip at once; differentiable.

        Returns:
            Pixels, not clamped.

        Raises:
            ParameterError: If there is no frame, or the channels are not the model's.
        """
        self._check_latents(latents_BCTHW)
        mixed = self.post_quant_conv(latents_BCTHW, Tape(None, vae_fast))
        patches, _ = self._run(self.decoder, mixed, None, vae_fast)
        return unpatchify(patches, self.config.patch_edge)

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

    def _run(
        self, coder: nn.Module, chunk_BCTHW: Tensor, cache: FeatureCache | None, ops: VAEOps
    ) -> tuple[Tensor, FeatureCache]:
        """Run the encoder or the decoder on one chunk; without a cache, on a whole clip, remembering nothing."""
        tape = Tape(cache, ops)
        result = coder(chunk_BCTHW, tape)
        return result, tape.cache_after(chunk_BCTHW.shape[2])

    def _run_groups(
        self, coder: nn.Module, groups: Sequence[Tensor], cache: FeatureCache
    ) -> tuple[Tensor, FeatureCache]:
        """Run the encoder or the decoder on groups of frames one after the other, exactly."""
        results = []
        for group in groups:
            result, cache = self._run(coder, group, cache, vae_exact)
            results.append(result)
        return torch.cat(results, dim=2), cache

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
