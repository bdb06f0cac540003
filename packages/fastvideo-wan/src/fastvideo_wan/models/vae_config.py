"""The shape of a Wan video autoencoder, read from the `vae/config.json` of a diffusers folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fastvideo_core.errors import CheckpointError
from fastvideo_wan.models.config_file import config_fields, read_config

Count = Annotated[int, Field(ge=1)]
Spread = Annotated[float, Field(gt=0)]

CLASS_NAMES = ("AutoencoderKLWan",)
"""Values of `_class_name` that this autoencoder can stand in for."""

WAN21_LATENTS_MEAN = (
    *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
    *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
)
"""Mean of each latent channel of the Wan 2.1 release; what the file format means when it leaves the key out."""

WAN21_LATENTS_STD = (
    *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
    *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)
"""Standard deviation of each latent channel of the Wan 2.1 release; the same rule."""


class WanVAEConfig(BaseModel):
    """Everything that fixes the parameters of a Wan autoencoder; names and defaults are those of the config files.

    Attributes:
        base_dim: Channels of the encoder's first level.
        decoder_base_dim: The same for the decoder; None means `base_dim`.
        z_dim: Latent channels.
        dim_mult: Channels of each level, in multiples of the base; the last level is the coarsest.
        num_res_blocks: Residual blocks in a level of the encoder; the decoder has one more.
        attn_scales: Extra attention between levels; no release has any and the format's own loader cannot run it.
        temperal_downsample: For each step down, whether it also halves time (the format's spelling).
        dropout: Probability of dropping an activation in training.
        latents_mean: Mean of each latent channel over the training data.
        latents_std: Its standard deviation.
        is_residual: Wan 2.2's layout, where averaging shortcuts run past every level.
        in_channels: Channels after patching: 3 times `patch_size` squared for RGB.
        out_channels: The same on the way out.
        patch_size: Edge of the pixel squares folded into channels; None means no folding.
        scale_factor_temporal: Frames that one latent frame stands for, the first frame aside.
        scale_factor_spatial: Pixels that a latent pixel's edge stands for.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_dim: Count = 96
    decoder_base_dim: Count | None = None
    z_dim: Count = 16
    dim_mult: tuple[Count, ...] = Field(default=(1, 2, 4, 4), min_length=1)
    num_res_blocks: Count = 2
    attn_scales: tuple[float, ...] = Field(default=(), max_length=0)
    temperal_downsample: tuple[bool, ...] = (False, True, True)
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    latents_mean: tuple[float, ...] = WAN21_LATENTS_MEAN
    latents_std: tuple[Spread, ...] = WAN21_LATENTS_STD
    is_residual: bool = False
    in_channels: Count = 3
    out_channels: Count = 3
    patch_size: Count | None = None
    scale_factor_temporal: Count | None = 4
    scale_factor_spatial: Count | None = 8

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if len(self.temperal_downsample) != len(self.dim_mult) - 1:
            raise ValueError(f"temperal_downsample needs one entry a step down, {len(self.dim_mult) - 1}")
        if self.temporal_factor > 4:
            raise ValueError("temperal_downsample may halve time twice at most: clips are coded in groups of 4 frames")
        for name in ("latents_mean", "latents_std"):
            if len(getattr(self, name)) != self.z_dim:
                raise ValueError(f"{name} needs one entry a latent channel, z_dim={self.z_dim}")
        if self.is_residual:
            self._check_shortcuts()
        for name, got in (("in_channels", self.in_channels), ("out_channels", self.out_channels)):
            if got % self.patch_edge**2:
                raise ValueError(f"{name} must be a multiple of patch_size squared, {self.patch_edge**2}")
        if self.scale_factor_temporal not in (None, self.temporal_factor):
            raise ValueError(f"scale_factor_temporal must be what the levels give, {self.temporal_factor}")
        if self.scale_factor_spatial not in (None, self.spatial_factor):
            raise ValueError(f"scale_factor_spatial must be what the levels and patches give, {self.spatial_factor}")
        return self

    def _check_shortcuts(self) -> None:
        """Refuse levels past which Wan 2.2's shortcuts cannot run: blocks of pixels fold into whole channels."""
        factors, blocks = self.dim_mult, [8 if halves else 4 for halves in self.temperal_downsample]
        downs = zip((1, *factors), factors, (*blocks, 1), strict=False)
        ups = zip((factors[-1], *factors[::-1]), factors[::-1], blocks[::-1], strict=False)
        if any(fine * block % coarse for fine, coarse, block in downs) or any(
            fine * block % coarse for coarse, fine, block in ups
        ):
            raise ValueError(
                f"dim_mult={factors} is too steep for is_residual, whose shortcuts fold pixels into channels"
            )

    @property
    def patch_edge(self) -> int:
        """Edge of the pixel squares folded into channels; 1 means no folding."""
        return self.patch_size or 1

    @property
    def temporal_factor(self) -> int:
        """Frames that one latent frame stands for, the first frame aside."""
        return 2 ** sum(self.temperal_downsample)

    @property
    def level_factor(self) -> int:
        """Edge of a latent pixel in patches."""
        return 2 ** (len(self.dim_mult) - 1)

    @property
    def spatial_factor(self) -> int:
        """Edge of a latent pixel in pixels."""
        return self.patch_edge * self.level_factor

    @property
    def pixel_channels(self) -> int:
        """Channels of the pixels that `encode` takes."""
        return self.in_channels // self.patch_edge**2

    @classmethod
    def from_diffusers(cls, raw: Mapping[str, Any]) -> Self:
        """Check the contents of a `vae/config.json`.

        Args:
            raw: The parsed file; absent keys take the format's defaults.

        Raises:
            CheckpointError: If the file describes another class, has an unknown key, or a value out of range.
        """
        fields = config_fields(raw, label="VAE", class_names=CLASS_NAMES, known=cls.model_fields)
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise CheckpointError(f"VAE config: {where + ': ' if where else ''}{first['msg']}") from error

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read `config.json` from a VAE's folder.

        Raises:
            CheckpointError: If the file is absent or not JSON, or as for `from_diffusers`.
        """
        return cls.from_diffusers(read_config(folder, label="VAE"))
