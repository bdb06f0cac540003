"""Reading a transformer's config file."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from fastvideo_core.errors import CheckpointError
from fastvideo_wan.models.config import WanTransformerConfig

IMAGE_TO_VIDEO = {
    "_class_name": "WanTransformer3DModel",
    "_diffusers_version": "0.33.0.dev0",
    "added_kv_proj_dim": 5120,
    "attention_head_dim": 128,
    "cross_attn_norm": True,
    "eps": 1e-06,
    "ffn_dim": 13824,
    "freq_dim": 256,
    "image_dim": 1280,
    "in_channels": 36,
    "num_attention_heads": 40,
    "num_layers": 40,
    "out_channels": 16,
    "patch_size": [1, 2, 2],
    "qk_norm": "rms_norm_across_heads",
    "rope_max_seq_len": 1024,
    "text_dim": 4096,
}


def test_a_published_file_is_read():
    config = WanTransformerConfig.from_diffusers(IMAGE_TO_VIDEO)
    assert config.inner_dim == 5120
    assert config.patch_size == (1, 2, 2)
    assert config.patch_volume == 4
    assert config.is_image_conditioned
    assert config.pos_embed_seq_len is None


def test_absent_keys_take_the_formats_defaults():
    import inspect

    from diffusers import WanTransformer3DModel

    parameters = inspect.signature(WanTransformer3DModel.__init__).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items() if name != "self"}
    assert WanTransformerConfig.from_diffusers({}).model_dump() == defaults


def test_an_unknown_key_is_named_with_the_nearest_known_one():
    with pytest.raises(CheckpointError, match=r"unknown keys: num_layer; nearest: num_layers$") as caught:
        WanTransformerConfig.from_diffusers({"num_layer": 3})
    assert caught.value.unexpected == ("num_layer",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_class_name": "FluxTransformer2DModel"}, "FluxTransformer2DModel.*allowed: WanTransformer3DModel"),
        ({"num_layers": 0}, "num_layers=0: .*greater than or equal to 1"),
        ({"patch_size": [1, 2]}, "patch_size.*Field required"),
        ({"qk_norm": "layer_norm"}, "qk_norm='layer_norm'"),
        ({"attention_head_dim": 7}, "attention_head_dim=7: .*multiple of 2"),
        ({"image_dim": 1280}, "image_dim and added_kv_proj_dim"),
        ({"image_dim": 1280, "added_kv_proj_dim": 8}, "must equal heads times head width, 5120"),
        ({"pos_embed_seq_len": 514}, "pos_embed_seq_len needs image_dim"),
    ],
)
def test_values_that_cannot_be_are_refused(changes, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        WanTransformerConfig.from_diffusers(changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), (b"{", "is not JSON"), (b"\xff", "is not JSON"), (b"[1]", "holds a list")],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"config\.json {message}"):
        WanTransformerConfig.from_folder(tmp_path)


def test_a_folder_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(IMAGE_TO_VIDEO))
    assert WanTransformerConfig.from_folder(tmp_path) == WanTransformerConfig.from_diffusers(IMAGE_TO_VIDEO)


def test_a_config_cannot_be_changed():
    config = WanTransformerConfig()
    with pytest.raises(ValidationError, match="frozen"):
        config.num_layers = 3
