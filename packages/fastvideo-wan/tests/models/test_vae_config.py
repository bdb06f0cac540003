"""What a VAE's config file may say."""

from __future__ import annotations

import json

import pytest

from fastvideo_core.errors import CheckpointError
from fastvideo_wan.models.vae_config import WanVAEConfig

PATCHED = {"is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12, "scale_factor_spatial": 16}


def test_an_empty_file_means_the_references_defaults():
    from diffusers import AutoencoderKLWan

    reference = AutoencoderKLWan(base_dim=4)
    raw = json.loads(reference.to_json_string())
    assert WanVAEConfig.from_diffusers(raw) == WanVAEConfig.from_diffusers({"base_dim": 4})


def test_factors_follow_from_the_levels():
    wan21, wan22 = WanVAEConfig(), WanVAEConfig.from_diffusers(PATCHED)
    assert (wan21.spatial_factor, wan21.temporal_factor, wan21.pixel_channels) == (8, 4, 3)
    assert (wan22.spatial_factor, wan22.temporal_factor, wan22.pixel_channels) == (16, 4, 3)
    image = WanVAEConfig.from_diffusers(
        {"dim_mult": [1], "temperal_downsample": [], "scale_factor_spatial": 1, "scale_factor_temporal": 1}
    )
    assert (image.spatial_factor, image.temporal_factor) == (1, 1)


def test_scale_factors_may_be_left_to_the_levels():
    config = WanVAEConfig.from_diffusers({"scale_factor_temporal": None, "scale_factor_spatial": None})
    assert (config.spatial_factor, config.temporal_factor) == (8, 4)


def test_an_unknown_key_is_refused_with_the_nearest_known():
    with pytest.raises(CheckpointError, match=r"unknown keys: base_dims; nearest: base_dim$") as caught:
        WanVAEConfig.from_diffusers({"base_dims": 96})
    assert caught.value.unexpected == ("base_dims",)


def test_another_class_is_refused():
    with pytest.raises(CheckpointError, match="'AutoencoderKL'; allowed: AutoencoderKLWan"):
        WanVAEConfig.from_diffusers({"_class_name": "AutoencoderKL"})


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"base_dim": 0}, "base_dim: .*greater than or equal to 1"),
        ({"dropout": 1.0}, "dropout"),
        ({"dim_mult": []}, "dim_mult"),
        ({"dim_mult": [1, 2]}, "temperal_downsample needs one entry a step down, 1"),
        ({"temperal_downsample": [True, True, True], "scale_factor_temporal": 8}, "halve time twice at most"),
        ({"attn_scales": [0.5]}, "attn_scales"),
        ({"z_dim": 8}, "latents_mean needs one entry a latent channel, z_dim=8"),
        ({"latents_std": [0.0] * 16}, "latents_std.0: .*greater than 0"),
        ({"patch_size": 2, "scale_factor_spatial": 16}, "in_channels must be a multiple of patch_size squared, 4"),
        ({"scale_factor_temporal": 8}, "scale_factor_temporal must be what the levels give, 4"),
        ({**PATCHED, "scale_factor_spatial": 8}, "scale_factor_spatial must be what the levels and patches give, 16"),
        ({**PATCHED, "dim_mult": [1, 2, 4, 8]}, "too steep for is_residual"),
        ({**PATCHED, "dim_mult": [1, 3, 3, 3]}, "too steep for is_residual"),
    ],
)
def test_values_that_contradict_are_refused(raw, message):
    with pytest.raises(CheckpointError, match=message):
        WanVAEConfig.from_diffusers(raw)


@pytest.mark.parametrize("dim_mult", [[1, 2, 4, 4], [1, 1, 1, 1], [1, 4, 4, 4], [2, 2, 2, 2]])
def test_shortcuts_pass_where_the_references_do(dim_mult):
    from diffusers import AutoencoderKLWan

    raw = {**PATCHED, "base_dim": 4, "dim_mult": dim_mult, "num_res_blocks": 1}
    assert WanVAEConfig.from_diffusers(raw).dim_mult == tuple(dim_mult)
    AutoencoderKLWan(**raw)  # refuses at construction what cannot run


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        WanVAEConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not JSON"):
        WanVAEConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="holds a list"):
        WanVAEConfig.from_folder(tmp_path)
