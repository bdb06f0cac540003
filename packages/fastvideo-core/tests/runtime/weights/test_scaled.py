"""Scaled float8 weights: values, formats that are refused, and files without any scale."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fastvideo_core.errors import CheckpointError
from fastvideo_core.runtime.weights.files import read_weight_files
from fastvideo_core.runtime.weights.keys import names_matching
from fastvideo_core.runtime.weights.module import load_module

EXTRAS = names_matching([r"scale", r"comfy_quant"])


def build():
    return nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4))


def quantized(weight, scale):
    return (weight / scale).to(torch.float8_e4m3fn)


def load(tmp_path, tensors, **options):
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    return load_module(build, read_weight_files("model", [path]), ignored=EXTRAS, **options)[0]


@pytest.fixture
def tensors():
    torch.manual_seed(1)
    return {name: tensor.clone() for name, tensor in build().state_dict().items()}


@pytest.mark.parametrize("name", ["0.scale_weight", "0.weight_scale"])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (4, 1)])
def test_a_weight_is_multiplied_with_its_scale(tmp_path, tensors, name, shape):
    scale = torch.full(shape, 0.03) * (1 + torch.arange(4).reshape(shape) if 4 in shape else 1)
    rows = scale.reshape(-1, 1) if 4 in shape else scale
    stored = quantized(tensors["0.weight"], rows)
    changed = {**tensors, "0.weight": stored, name: scale}
    module = load(tmp_path, changed, dtype=torch.float32)
    expected = stored.double() * rows.double()
    torch.testing.assert_close(module[0].weight.double(), expected, rtol=1e-6, atol=0)
    # Rounded once, from the product.
    half = load(tmp_path, changed, dtype=torch.bfloat16)
    assert torch.equal(half[0].weight, (stored.float() * rows).to(torch.bfloat16))
    assert torch.equal(half[0].bias, tensors["0.bias"].to(torch.bfloat16))


def test_without_a_scale_float8_is_only_converted(tmp_path, tensors):
    stored = tensors["0.weight"].to(torch.float8_e4m3fn)
    module = load(tmp_path, {**tensors, "0.weight": stored}, dtype=torch.float32)
    assert torch.equal(module[0].weight, stored.float())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"0.scale_weight": torch.tensor(float("nan"))}, "not finite"),
        ({"0.scale_weight": torch.ones(3)}, "a scale of 3 values for weights of shape"),
        ({"0.scale_weight": torch.ones(()), "0.weight": torch.ones(4, 6)}, "stored as F32, not float8"),
        (
            {
                "0.weight_scale": torch.ones(()),
                "0.comfy_quant": torch.tensor(list(json.dumps({"format": "nvfp4"}).encode()), dtype=torch.uint8),
            },
            "says format 'nvfp4'; read are float8_e4m3fn, float8_e5m2",
        ),
        (
            {"0.weight_scale": torch.ones(()), "0.comfy_quant": torch.tensor([1, 2], dtype=torch.uint8)},
            "says format None",
        ),
    ],
)
def test_what_is_stored_in_another_way_is_refused(tmp_path, tensors, change, message):
    stored = {**tensors, "0.weight": tensors["0.weight"].to(torch.float8_e4m3fn), **change}
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path, stored, dtype=torch.float32)


def test_a_format_that_is_read(tmp_path, tensors):
    text = json.dumps({"format": "float8_e4m3fn"}).encode()
    stored = tensors["0.weight"].to(torch.float8_e4m3fn)
    quant = torch.tensor(list(text), dtype=torch.uint8)
    changed = {**tensors, "0.weight": stored, "0.weight_scale": torch.tensor(2.0), "0.comfy_quant": quant}
    assert torch.equal(load(tmp_path, changed, dtype=torch.float32)[0].weight, stored.float() * 2)
