"""The shape of the video autoencoder, read from the `vae/config.json` of a diffusers folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fastvideo_cosmos3.models.config_file import parse_config

__all__ = ["VAE_CLASS", "VideoVAEConfig"]

Count = Annotated[int, Field(ge=1)]

VAE_CLASS = "AutoencoderKLWan"


class VideoVAEConfig(BaseModel):
    """Everything that fixes the parameters of the autoencoder; names are those of the config files.

    Cosmos3 takes the residual layout of this class, with averaging shortcuts past every level.

    Attributes:
        base_dim: Channels of the encoder's first level.
        decoder_base_dim: The same for the decoder; None means `base_dim`.
        z_dim: Latent channels.
        dim_mult: Channels of each level, in multiples of the base; the last is the coarsest.
        num_res_blocks: Residual blocks in a level of the encoder; the decoder has one more.
        attn_scales: Attention between levels; there is none.
        temperal_downsample: For each step down, whether it also halves time (the format's spelling).
        dropout: Of training; unused here.
        latents_mean: Mean of each latent channel.
        latents_std: Its standard deviation.
        is_residual: The layout.
        in_channels: Channels after patching.
        out_channels: The same on the way out.
        patch_size: Edge of the squares of pixels that are folded into channels; None folds nothing.
        scale_factor_temporal: Frames a latent frame.
        scale_factor_spatial: Pixels a latent row or column.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_dim: Count = 160
    decoder_base_dim: Count | None = None
    z_dim: Count = 48
    dim_mult: tuple[Count, ...] = Field(default=(1, 2, 4, 4), min_length=1)
    num_res_blocks: Count = 2
    attn_scales: tuple[float, ...] = Field(default=(), max_length=0)
    temperal_downsample: tuple[bool, ...] = (False, True, True)
    dropout: float = 0.0
    latents_mean: tuple[float, ...]
    latents_std: tuple[Annotated[float, Field(gt=0)], ...]
    is_residual: Literal[True]
    in_channels: Count = 12
    out_channels: Count = 12
    patch_size: Count | None = 2
    scale_factor_temporal: Count | None = 4
    scale_factor_spatial: Count | None = 16

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if len(self.temperal_downsample) != len(self.dim_mult) - 1:
            raise ValueError(f"temperal_downsample needs one entry a step down, {len(self.dim_mult) - 1}")
        if self.temporal_factor > 4:
            raise ValueError("temperal_downsample may halve time twice at most: clips are coded in groups of 4 frames")
        for name in ("latents_mean", "latents_std"):
            if len(getattr(self, name)) != self.z_dim:
                raise ValueError(f"{name} needs one entry a latent channel, z_dim={self.z_dim}")
        for name in ("in_channels", "out_channels"):
            if getattr(self, name) != 3 * self.patch_edge**2:
                raise ValueError(f"{name} must be 3 times patch_size squared, {3 * self.patch_edge**2}")
        if self.scale_factor_temporal not in (None, self.temporal_factor):
            raise ValueError(f"scale_factor_temporal must be what the levels give, {self.temporal_factor}")
        if self.scale_factor_spatial not in (None, self.spatial_factor):
            raise ValueError(f"scale_factor_spatial must be what the levels and patches give, {self.spatial_factor}")
        return self

    @classmethod
    def from_diffusers(cls, raw: Mapping[str, Any]) -> Self:
        """Check the contents of a `vae/config.json`.

        Raises:
            CheckpointError: The file describes another class, has an unknown key, or what is not supported.
        """
        return parse_config(cls, raw, label="VAE", class_name=VAE_CLASS)

    @property
    def patch_edge(self) -> int:
        """Edge of the squares of pixels that are folded into channels; 1 folds nothing."""
        return self.patch_size or 1

    @property
    def temporal_factor(self) -> int:
        """Frames a latent frame, the first aside."""
        return 1 << sum(self.temperal_downsample)

    @property
    def spatial_factor(self) -> int:
        """Pixels a latent row or column."""
        return self.patch_edge << (len(self.dim_mult) - 1)

    def latent_frames(self, num_frames: int) -> int:
        """Return the latent frames of a clip."""
        return (num_frames - 1) // self.temporal_factor + 1
