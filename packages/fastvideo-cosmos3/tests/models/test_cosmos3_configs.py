"""Configurations that do not describe what runs here are refused."""

from __future__ import annotations

import pytest

from fastvideo_core.errors import CheckpointError
from fastvideo_cosmos3.models.config import TransformerConfig
from fastvideo_cosmos3.models.sound import SoundConfig
from fastvideo_cosmos3.models.vae_config import VideoVAEConfig


def test_the_defaults_are_those_of_nano():
    config = TransformerConfig.from_diffusers({})
    assert (config.hidden_size, config.num_hidden_layers, config.rope_axes_dim) == (4096, 36, (24, 20, 20))
    assert config.kv_token_numbers == 2 * 36 * 8 * 128


def test_older_files_keep_the_axes_elsewhere():
    raw = {"rope_scaling": {"mrope_section": [32, 16, 16]}, "rope_axes_dim": None}
    assert TransformerConfig.from_diffusers(raw).rope_axes_dim == (32, 16, 16)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"_class_name": "OtherTransformer"}, "OtherTransformer"),
        ({"hiden_size": 64}, "nearest: hidden_size"),
        ({"hidden_act": "relu2"}, "hidden_act"),
        ({"qk_norm_for_text": False}, "qk_norm_for_text"),
        ({"rope_axes_dim": [1, 2, 3]}, "add up"),
        ({"patch_latent_dim": 100}, "patch_latent_dim"),
        ({"action_gen": True}, "action_dim"),
        ({"sound_gen": True}, "sound_dim"),
        ({"num_key_value_heads": 7}, "multiple"),
    ],
)
def test_other_transformers_are_refused(raw, message):
    with pytest.raises(CheckpointError, match=message):
        TransformerConfig.from_diffusers(raw)


def test_other_autoencoders_are_refused():
    stats = {"latents_mean": [0.0] * 48, "latents_std": [1.0] * 48}
    assert VideoVAEConfig.from_diffusers({"is_residual": True, **stats}).spatial_factor == 16
    for raw in ({"is_residual": False, **stats}, {"is_residual": True, **stats, "scale_factor_spatial": 8}):
        with pytest.raises(CheckpointError):
            VideoVAEConfig.from_diffusers(raw)


def test_other_sound_decoders_are_refused():
    config = SoundConfig.from_diffusers({"enc_dim": 192})
    assert (config.hop, config.latent_frames(48, 24.0)) == (1920, 50)
    with pytest.raises(CheckpointError, match="dec_final_tanh"):
        SoundConfig.from_diffusers({"dec_final_tanh": True})
