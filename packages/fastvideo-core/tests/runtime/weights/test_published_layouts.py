"""Checkpoints as diffusers and transformers write them, against what those libraries themselves load from them."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from fastvideo_core.errors import CheckpointError
from fastvideo_core.runtime.weights.files import list_weight_files
from fastvideo_core.runtime.weights.keys import names_matching, rename_by_rules
from fastvideo_core.runtime.weights.module import load_module

diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module", autouse=True)
def quiet():
    """Keep the libraries' progress bars out of the log."""
    transformers.utils.logging.disable_progress_bar()
    diffusers.utils.logging.disable_progress_bar()


def assert_same(found, expected):
    assert found.state_dict().keys() == expected.state_dict().keys()
    for name, tensor in expected.state_dict().items():
        assert found.state_dict()[name].dtype == tensor.dtype, name
        assert torch.equal(found.state_dict()[name], tensor), name
    buffers = dict(found.named_buffers())
    for name, tensor in expected.named_buffers():
        assert torch.equal(buffers[name], tensor), name


@pytest.fixture(scope="module")
def umt5_config():
    return transformers.UMT5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4)


@pytest.fixture(scope="module")
def umt5(umt5_config):
    torch.manual_seed(0)
    return transformers.UMT5EncoderModel(umt5_config).eval()


def load_umt5(config, folder, **options):
    return load_module(lambda: transformers.UMT5EncoderModel(config), list_weight_files(folder), **options)


def test_umt5(tmp_path, umt5, umt5_config):
    umt5.save_pretrained(tmp_path)
    module, _ = load_umt5(umt5_config, tmp_path)
    assert_same(module, umt5)
    assert module.shared.weight is module.encoder.embed_tokens.weight
    ids = torch.tensor([[3, 5, 7, 1]])
    with torch.no_grad():
        assert torch.equal(module(ids).last_hidden_state, umt5(ids).last_hidden_state)


def test_umt5_in_shards(tmp_path, umt5, umt5_config):
    umt5.save_pretrained(tmp_path, max_shard_size="5KB")
    files = list_weight_files(tmp_path)
    assert len(files.paths) > 2
    assert_same(load_umt5(umt5_config, tmp_path)[0], umt5)


@pytest.mark.parametrize("names", [("shared",), ("encoder.embed_tokens",), ("shared", "encoder.embed_tokens")])
def test_umt5_with_every_name_of_its_embedding(tmp_path, umt5, umt5_config, names):
    tensors = {n: t.clone() for n, t in umt5.state_dict().items()}
    embedding = tensors.pop("shared.weight")
    tensors.pop("encoder.embed_tokens.weight")
    tensors.update({f"{name}.weight": embedding.clone() for name in names})
    save_file(tensors, tmp_path / "model.safetensors")
    assert_same(load_umt5(umt5_config, tmp_path)[0], umt5)


def test_umt5_in_bfloat16(tmp_path, umt5, umt5_config):
    """Published encoders are bfloat16 on disk; in memory they are what was asked for."""
    transformers.UMT5EncoderModel(umt5_config).bfloat16().save_pretrained(tmp_path)
    for dtype in (torch.bfloat16, torch.float32):
        expected = transformers.UMT5EncoderModel.from_pretrained(tmp_path, dtype=dtype)
        assert_same(load_umt5(umt5_config, tmp_path, dtype=dtype)[0], expected)


def test_umt5_with_decoder(tmp_path, umt5_config):
    """The whole model's file is not the encoder's: the names that are too many have to be ignored on purpose."""
    whole = transformers.UMT5ForConditionalGeneration(umt5_config)
    whole.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="in the files that the model does not have: decoder"):
        load_umt5(umt5_config, tmp_path)
    module, report = load_umt5(umt5_config, tmp_path, ignored=names_matching(["^decoder", "^lm_head"]))
    assert torch.equal(module.shared.weight, whole.shared.weight)
    assert all(name.startswith(("decoder", "lm_head")) for name in report.ignored)


@pytest.fixture(scope="module")
def clip_config():
    return transformers.CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )


@pytest.mark.parametrize("prefix", ["", "vision_model."])
@pytest.mark.parametrize("has_position_ids", [False, True])
def test_clip_vision_of_old_and_new_writers(tmp_path, clip_config, prefix, has_position_ids):
    torch.manual_seed(0)
    expected = transformers.CLIPVisionModel(clip_config).eval()
    tensors = {prefix + n: t.clone() for n, t in expected.state_dict().items()}
    if has_position_ids:
        tensors[f"{prefix}embeddings.position_ids"] = expected.embeddings.position_ids.clone()
    save_file(tensors, tmp_path / "model.safetensors")
    module, _ = load_module(
        lambda: transformers.CLIPVisionModel(clip_config),
        list_weight_files(tmp_path),
        key_map=rename_by_rules([(r"^vision_model\.", "")]),
    )
    assert_same(module, expected)
    image = torch.rand(1, 3, 28, 28)
    with torch.no_grad():
        assert torch.equal(module(image).last_hidden_state, expected(image).last_hidden_state)


def test_wan_transformer(tmp_path):
    config = dict(
        num_attention_heads=2,
        attention_head_dim=12,
        text_dim=16,
        freq_dim=16,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=32,
    )
    torch.manual_seed(0)
    expected = diffusers.WanTransformer3DModel(**config).eval()
    expected.save_pretrained(tmp_path / "plain")
    expected.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    expected.save_pretrained(tmp_path / "half", variant="fp16")
    expected.save_pretrained(tmp_path / "half_shards", variant="fp16", max_shard_size="40KB")

    def build():
        return diffusers.WanTransformer3DModel(**config)

    for folder, variant in (("plain", None), ("shards", None), ("half", "fp16"), ("half_shards", "fp16")):
        files = list_weight_files(tmp_path, folder, variant=variant)
        assert ("shards" in folder) == (files.index is not None)
        assert_same(load_module(build, files)[0], expected)


def test_wan_transformer_in_bfloat16_with_its_float32_parts(tmp_path):
    config = dict(
        num_attention_heads=2,
        attention_head_dim=12,
        text_dim=16,
        freq_dim=16,
        ffn_dim=32,
        num_layers=1,
        rope_max_seq_len=32,
    )
    diffusers.WanTransformer3DModel(**config).save_pretrained(tmp_path)
    expected = diffusers.WanTransformer3DModel.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)
    parts = diffusers.WanTransformer3DModel._keep_in_fp32_modules
    module, report = load_module(
        lambda: diffusers.WanTransformer3DModel(**config),
        list_weight_files(tmp_path),
        dtype=torch.bfloat16,
        keep_float32=names_matching([rf"(^|\.){part}(\.|$)" for part in parts]),
    )
    assert report.conversions[("float32", "float32")] > 0
    assert_same(module, expected)


def test_wan_vae(tmp_path):
    config = dict(base_dim=4, z_dim=4, dim_mult=[1, 2], num_res_blocks=1, temperal_downsample=[True])
    config |= dict(latents_mean=[0.0] * 4, latents_std=[1.0] * 4)
    torch.manual_seed(0)
    expected = diffusers.AutoencoderKLWan(**config).eval()
    expected.save_pretrained(tmp_path)
    module, _ = load_module(lambda: diffusers.AutoencoderKLWan(**config), list_weight_files(tmp_path))
    assert_same(module, expected)


def test_another_size_of_the_same_model(tmp_path, umt5, umt5_config):
    umt5.save_pretrained(tmp_path)
    config = transformers.UMT5Config(**{**umt5_config.to_diff_dict(), "d_model": 32})
    with pytest.raises(CheckpointError, match=r"do not fit: .*shape \[64, 16\] in the file, \[64, 32\] in"):
        load_umt5(config, tmp_path)


def test_the_index_is_what_diffusers_writes(tmp_path):
    """`total_size` is often wrong in published files, and is not relied on."""
    config = dict(num_attention_heads=2, attention_head_dim=12, text_dim=16, freq_dim=16, ffn_dim=32, num_layers=1)
    diffusers.WanTransformer3DModel(**config).save_pretrained(tmp_path, max_shard_size="20KB")
    index = tmp_path / "diffusion_pytorch_model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["metadata"]["total_size"] = 1
    index.write_text(json.dumps(content))
    files = list_weight_files(tmp_path)
    assert files.tensors.keys() == content["weight_map"].keys()
    assert sum(len(load_file(path)) for path in files.paths) == len(files.tensors)
