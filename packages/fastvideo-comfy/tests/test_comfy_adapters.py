"""Adapters: every way of naming, sums in double precision, the exact base afterwards, and what does not fit."""

from __future__ import annotations

import os
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fastvideo_comfy.adapters import adapter_patch, patch_cost, put_on, read_adapter, restore_cost, stack_key
from fastvideo_comfy.keys import WAN_TRANSFORMER
from fastvideo_core.errors import CheckpointError

RANK = 3


@contextmanager
def adapted(model, adapters, rename):
    report, undo = put_on(model, adapters, rename)
    try:
        yield report
    finally:
        undo()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q = nn.Linear(6, 8)
        self.to_out = nn.ModuleList([nn.Linear(8, 6)])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn1 = Attention()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model().requires_grad_(False)


def make(path, stem, *, out=8, wide=6, alpha=None, names=("lora_A", "lora_B"), suffix=".weight", **more):
    torch.manual_seed(len(stem))
    down, up = torch.randn(RANK, wide), torch.randn(out, RANK)
    tensors = {f"{stem}.{names[0]}{suffix}": down, f"{stem}.{names[1]}{suffix}": up}
    if alpha is not None:
        tensors[f"{stem}.alpha"] = torch.tensor(float(alpha))
    save_file(tensors | more, path)
    return read_adapter(path), up.double() @ down.double()


STEMS = [
    "blocks.1.attn1.to_q", "transformer.blocks.1.attn1.to_q", "base_model.model.blocks.1.attn1.to_q",
    "blocks.1.self_attn.q", "diffusion_model.blocks.1.self_attn.q", "model.diffusion_model.blocks.1.self_attn.q",
    "lora_unet_blocks_1_self_attn_q", "lora_transformer_blocks_1_attn1_to_q",
]  # fmt: skip


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("names", [("lora_A", "lora_B"), ("lora_down", "lora_up")])
def test_all_names_find_the_matrix(tmp_path, model, stem, names):
    adapter, change = make(tmp_path / "a.safetensors", stem, names=names)
    before = model.blocks[1].attn1.to_q.weight.double()
    with adapted(model, [(adapter, 0.5)], WAN_TRANSFORMER) as report:
        got = model.blocks[1].attn1.to_q.weight.double()
        torch.testing.assert_close(got, before + 0.5 * change, rtol=0, atol=1e-5)
    assert report.counts == {"a.safetensors": 1}
    assert report.num_bytes == 8 * 6 * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_stack_adds_up_and_the_exact_base_comes_back(tmp_path, model, dtype):
    model = model.to(dtype)
    base = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first, one = make(tmp_path / "a.safetensors", "blocks.0.self_attn.q", alpha=6)
    second, two = make(tmp_path / "b.safetensors", "blocks.0.attn1.to_q")
    third, three = make(tmp_path / "c.safetensors", "blocks.0.self_attn.o", out=6, wide=8)
    stack = [(first, 0.7), (second, -1.5), (third, 1.0)]
    with adapted(model, stack, WAN_TRANSFORMER) as report:
        got = model.blocks[0].attn1.to_q.weight.double()
        expected = base["blocks.0.attn1.to_q.weight"].double() + 0.7 * 6 / RANK * one - 1.5 * two
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.2)
        got = model.blocks[0].attn1.to_out[0].weight.double()
        expected = base["blocks.0.attn1.to_out.0.weight"].double() + three
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.1)
    assert report.counts == {"a.safetensors": 1, "b.safetensors": 1, "c.safetensors": 1}
    assert all(torch.equal(tensor, base[name]) for name, tensor in model.state_dict().items())


def test_the_base_comes_back_after_an_error(tmp_path, model):
    base = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    good, _ = make(tmp_path / "a.safetensors", "blocks.0.attn1.to_q")
    bad, _ = make(tmp_path / "b.safetensors", "blocks.0.attn1.to_q", out=5)
    with (
        pytest.raises(
            CheckpointError, match=r"b.safetensors: a change of shape \(5, 6\) for weights of shape \(8, 6\)"
        ),
        adapted(model, [(good, 1.0), (bad, 1.0)], WAN_TRANSFORMER),
    ):
        pass
    with pytest.raises(KeyError), adapted(model, [(good, 1.0)], WAN_TRANSFORMER):
        raise KeyError
    assert all(torch.equal(tensor, base[name]) for name, tensor in model.state_dict().items())


def test_differences_of_weights_and_biases(tmp_path, model):
    stem = "diffusion_model.blocks.0.self_attn.q"
    diff, bias = torch.randn(8, 6), torch.randn(8)
    save_file({f"{stem}.diff": diff, f"{stem}.diff_b": bias}, tmp_path / "d.safetensors")
    layer = model.blocks[0].attn1.to_q
    before = layer.weight.clone(), layer.bias.clone()
    with adapted(model, [(read_adapter(tmp_path / "d.safetensors"), 2.0)], WAN_TRANSFORMER):
        torch.testing.assert_close(layer.weight, before[0] + 2 * diff)
        torch.testing.assert_close(layer.bias, before[1] + 2 * bias)


def test_another_models_adapter_is_an_error_and_not_nothing(tmp_path, model):
    adapter, _ = make(tmp_path / "x.safetensors", "double_blocks.3.img_attn.qkv")
    message = "double_blocks.3.img_attn.qkv: it is another model's"
    with pytest.raises(CheckpointError, match=message) as caught, adapted(model, [(adapter, 1.0)], WAN_TRANSFORMER):
        pass
    assert caught.value.unexpected == ("double_blocks.3.img_attn.qkv",)


def test_files_that_are_no_adapters(tmp_path):
    save_file({"blocks.0.attn1.to_q.weight": torch.ones(2)}, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match="w.safetensors is no adapter: 1 tensors"):
        read_adapter(tmp_path / "w.safetensors")
    save_file({"a.lora_A.weight": torch.ones(2, 2)}, tmp_path / "h.safetensors")
    model = nn.ModuleDict({"a": nn.Linear(2, 2)})
    stack = [(read_adapter(tmp_path / "h.safetensors"), 1.0)]
    with pytest.raises(CheckpointError, match="only one of its two"), adapted(model, stack, WAN_TRANSFORMER):
        pass


def test_the_cost_counts_products_and_bytes(tmp_path, model):
    adapter, _ = make(tmp_path / "a.safetensors", "blocks.0.attn1.to_q")
    twice, _ = make(tmp_path / "b.safetensors", "blocks.0.self_attn.q")
    cost = patch_cost(model, [adapter, twice], WAN_TRANSFORMER)
    assert (cost.flops, cost.weight_bytes) == (2 * 2 * RANK * 8 * 6, 2 * 2 * 8 * 6 * 4)
    off = restore_cost(model, [adapter, twice], WAN_TRANSFORMER)
    assert (off.flops, off.weight_bytes) == (0, 2 * 8 * 6 * 4)  # each matrix once


def test_a_stack_is_named_by_files_strengths_and_order(tmp_path):
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    make(a, "blocks.0.attn1.to_q")
    make(b, "blocks.1.attn1.to_q")
    keys = {stack_key(uses) for uses in ([(a, 1.0), (b, 1.0)], [(b, 1.0), (a, 1.0)], [(a, 1.0), (b, 0.5)])}
    assert len(keys) == 3
    assert stack_key([(a, 1.0), (b, 1.0)]) in keys
    os.utime(a, (1, 1))
    assert stack_key([(a, 1.0), (b, 1.0)]) not in keys


def test_an_engine_is_given_the_stack_as_one_change(tmp_path, model):
    path = tmp_path / "a.safetensors"
    _, change = make(path, "blocks.0.attn1.to_q")
    base, told = {name: one.clone() for name, one in model.state_dict().items()}, []
    patch = adapter_patch(model, [(path, 2.0)], family="wan", tell=told.append)
    undo = patch.put_on(model)
    expected = base["blocks.0.attn1.to_q.weight"].double() + 2 * change
    torch.testing.assert_close(model.blocks[0].attn1.to_q.weight.double(), expected, rtol=0, atol=1e-5)
    assert told == ["a.safetensors: 1 matrices"]
    undo()
    assert all(torch.equal(one, base[name]) for name, one in model.state_dict().items())
    with pytest.raises(CheckpointError, match="of the other family are not known; known: wan"):
        adapter_patch(model, [(path, 1.0)], family="other")
