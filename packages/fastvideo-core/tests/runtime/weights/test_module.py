from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fastvideo_core.errors import CheckpointError, ResourceError
from fastvideo_core.runtime.weights import reader
from fastvideo_core.runtime.weights.files import list_weight_files, read_weight_files
from fastvideo_core.runtime.weights.keys import names_matching, rename_by_rules
from fastvideo_core.runtime.weights.memory import estimate_bytes
from fastvideo_core.runtime.weights.module import load_module
from fastvideo_core.runtime.weights.skeleton import build_skeleton


class Block(nn.Module):
    """Everything that a checkpoint can and cannot hold: parameters, saved and computed buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)
        self.scale = nn.Parameter(torch.randn(1, 2, 4) / 4**0.5)
        self.register_buffer("count", torch.tensor(5))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("table", torch.linspace(0, 1, 6, dtype=torch.float64), persistent=False)
        self.register_buffer("ids", torch.arange(6).expand(1, -1), persistent=False)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


@pytest.fixture
def block():
    torch.manual_seed(0)
    module = Block()
    module.mean += 3
    return module


@pytest.fixture
def saved(tmp_path, block):
    save_file(block.state_dict(), tmp_path / "model.safetensors")
    return list_weight_files(tmp_path)


def rewrite(saved, change):
    """Change the tensors of a saved checkpoint."""
    tensors = load_file(saved.paths[0])
    change(tensors)
    save_file(tensors, saved.paths[0])
    return list_weight_files(saved.paths[0].parent)


def test_everything_arrives(block, saved):
    module, report = load_module(Block, saved)
    assert not module.training
    for name, expected in block.state_dict().items():
        found = module.state_dict()[name]
        assert torch.equal(found, expected), name
        assert found.dtype == expected.dtype
    assert torch.equal(module.table, torch.linspace(0, 1, 6, dtype=torch.float64))
    assert torch.equal(module.ids, torch.arange(6)[None])
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in module.parameters())
    assert report.num_tensors == 7
    assert report.conversions == {("float32", "float32"): 6, ("int64", "int64"): 1}
    assert report.memory_bytes == report.disk_bytes == sum(t.nbytes for t in block.state_dict().values())
    assert report.memory_bytes == estimate_bytes(saved)
    expected = r"test.*: 7 tensors \(.*6 float32.*\) from 1 files, 152 bytes on disk, 152 bytes on cpu, \d+\.\d\d s"
    assert re.fullmatch(expected, str(report))


def test_floats_are_converted_and_nothing_else(block, saved):
    module, report = load_module(Block, saved, dtype=torch.bfloat16, keep_float32=names_matching([r"^norm\.", "scale"]))
    assert module.proj.weight.dtype == module.mean.dtype == torch.bfloat16
    assert torch.equal(module.proj.weight, block.proj.weight.bfloat16())
    assert module.norm.weight.dtype == module.scale.dtype == torch.float32
    assert module.count.dtype == torch.int64
    assert module.table.dtype == torch.float64
    assert report.conversions[("float32", "bfloat16")] == 3
    keep = names_matching([r"^norm\.", "scale"])
    assert report.memory_bytes == estimate_bytes(saved, "bfloat16", keep_float32=keep)
    assert report.memory_bytes == estimate_bytes(saved, torch.bfloat16, keep_float32=keep)


@pytest.mark.parametrize("on_disk", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, None])
def test_formats_on_disk(tmp_path, block, on_disk, dtype):
    tensors = {n: t.to(on_disk) if t.is_floating_point() else t for n, t in block.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    module, _ = load_module(Block, list_weight_files(tmp_path), dtype=dtype)
    expected = tensors["proj.weight"].to(dtype or on_disk)
    assert module.proj.weight.dtype == expected.dtype
    assert torch.equal(module.proj.weight.float(), expected.float())


def test_a_value_that_does_not_fit_is_refused(saved):
    files = rewrite(saved, lambda tensors: tensors["proj.bias"].fill_(1e6))
    with pytest.raises(CheckpointError, match=r"'proj.bias' holds values that float16 cannot; load it as bfloat16"):
        load_module(Block, files, dtype=torch.float16)
    with pytest.raises(CheckpointError, match=r"'proj.bias' holds values that float8_e4m3fn cannot"):
        load_module(Block, files, dtype=torch.float8_e4m3fn)
    module, _ = load_module(Block, files, dtype=torch.bfloat16)
    assert torch.isfinite(module.proj.bias).all()


def test_an_empty_tensor(tmp_path):
    class Empty(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(0, 3))

    save_file({"w": torch.zeros(0, 3)}, tmp_path / "model.safetensors")
    module, _ = load_module(Empty, list_weight_files(tmp_path), dtype=torch.float16)
    assert module.w.shape == (0, 3)


def test_plain_weights_lie_as_the_reference_loader_puts_them(block, saved):
    """What a kernel computes can depend on the address within a cache line."""
    module, _ = load_module(Block, saved, dtype=torch.float32)
    for name, reference in load_file(saved.paths[0]).items():
        assert module.state_dict()[name].data_ptr() % 4096 == reference.data_ptr() % 4096, name
    converted, _ = load_module(Block, saved, dtype=torch.bfloat16)
    assert converted.proj.weight.data_ptr() % 64 == 0


def test_weights_and_files_do_not_change_each_other(block, saved):
    module, _ = load_module(Block, saved)
    before = saved.paths[0].read_bytes()
    with torch.no_grad():
        module.proj.weight.add_(1)
    assert saved.paths[0].read_bytes() == before
    changed = saved.paths[0].with_name("new")
    changed.write_bytes(bytes(len(before)))
    changed.replace(saved.paths[0])
    assert torch.equal(module.proj.weight, block.proj.weight + 1)
    assert torch.equal(module.norm.weight, block.norm.weight)


def test_a_missing_key(saved):
    files = rewrite(saved, lambda tensors: tensors.pop("norm.bias"))
    with pytest.raises(CheckpointError, match=r"the weights are not this model's: 1 missing .*: norm.bias") as caught:
        load_module(Block, files)
    assert (caught.value.missing, caught.value.unexpected) == (("norm.bias",), ())


def test_an_extra_key(saved):
    files = rewrite(saved, lambda tensors: tensors.update(extra=torch.ones(1)))
    with pytest.raises(CheckpointError, match=r"1 in the files that the model does not have: extra$") as caught:
        load_module(Block, files)
    assert caught.value.unexpected == ("extra",)
    module, report = load_module(Block, files, ignored=names_matching(["^extra$"]))
    assert report.ignored == ("extra",)
    assert not hasattr(module, "extra")


def test_a_misspelt_key_names_its_neighbour(saved):
    files = rewrite(saved, lambda tensors: tensors.update({"proj.weights": tensors.pop("proj.weight")}))
    with pytest.raises(
        CheckpointError,
        match=r"1 missing .*: proj.weight \(nearest left over: proj.weights\); 1 in the files .*: proj.weights",
    ):
        load_module(Block, files)


def test_many_wrong_keys_are_counted(tmp_path):
    save_file({f"layer.{n}": torch.ones(1) for n in range(50)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"7 missing .* and 4 more.*; 50 in the files .* and 47 more") as caught:
        load_module(Block, list_weight_files(tmp_path))
    assert len(str(caught.value)) < 500
    assert len(caught.value.unexpected) == 50
    assert len(caught.value.missing) == 7


def test_a_wrong_shape(saved):
    files = rewrite(saved, lambda tensors: tensors.update({"proj.weight": torch.ones(4, 5)}))
    with pytest.raises(
        CheckpointError, match=r"1 that do not fit: proj.weight: shape \[4, 5\] in the file, \[4, 3\] in the model"
    ) as caught:
        load_module(Block, files)
    assert caught.value.mismatched == ("proj.weight",)


def test_a_shape_that_would_broadcast(saved):
    files = rewrite(saved, lambda tensors: tensors.update({"proj.bias": torch.ones(1)}))
    with pytest.raises(CheckpointError, match=r"do not fit: proj.bias"):
        load_module(Block, files)


def test_quantised_weights_are_not_taken_for_plain_ones(saved):
    files = rewrite(saved, lambda tensors: tensors.update({"proj.weight": torch.ones(4, 3, dtype=torch.int8)}))
    with pytest.raises(CheckpointError, match=r"proj.weight: I8 numbers in the file, float in the model"):
        load_module(Block, files)


def test_renamed_keys(block, tmp_path):
    save_file({f"model.block.{n}": t for n, t in block.state_dict().items()}, tmp_path / "model.safetensors")
    rename = rename_by_rules([(r"^model\.block\.", "")])
    module, report = load_module(Block, list_weight_files(tmp_path), key_map=rename)
    assert torch.equal(module.proj.weight, block.proj.weight)
    assert report.num_tensors == 7


def test_errors_name_the_keys_of_the_file(block, tmp_path):
    tensors = {f"model.block.{n}": t for n, t in block.state_dict().items()}
    tensors["model.block.extra"] = torch.ones(1)
    tensors["model.block.proj.bias"] = torch.ones(9)
    del tensors["model.block.mean"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        load_module(Block, list_weight_files(tmp_path), key_map=rename_by_rules([(r"^model\.block\.", "")]))
    assert caught.value.missing == ("mean",)
    assert caught.value.unexpected == ("model.block.extra",)
    assert caught.value.mismatched == ("model.block.proj.bias",)
    assert "model.block.extra (as extra)" in str(caught.value)


def test_two_keys_that_become_one(saved):
    with pytest.raises(CheckpointError, match=r"the key map sends both .* and .* to 'x'"):
        load_module(Block, saved, key_map=lambda name: "x")


@pytest.mark.parametrize("names", [("embed.weight",), ("head.weight",), ("embed.weight", "head.weight")])
def test_tied_weights(tmp_path, names):
    weight = torch.arange(15.0).reshape(5, 3)
    save_file({name: weight.clone() for name in names}, tmp_path / "model.safetensors")
    module, report = load_module(Tied, list_weight_files(tmp_path), dtype=torch.bfloat16)
    assert module.head.weight is module.embed.weight
    assert torch.equal(module.head.weight, weight.bfloat16())
    assert (report.num_tensors, report.memory_bytes) == (1, 30)


def test_tied_weights_that_disagree(tmp_path):
    save_file({"embed.weight": torch.ones(5, 3), "head.weight": torch.zeros(5, 3)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'head.weight' and 'embed.weight' are one tensor .* and differ"):
        load_module(Tied, list_weight_files(tmp_path))


def test_a_parameter_that_is_registered_twice_stays_one(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            parameter = nn.Parameter(torch.empty(3))
            self.first = parameter
            self.second = parameter

    save_file({"first": torch.ones(3)}, tmp_path / "model.safetensors")
    module, _ = load_module(Twice, list_weight_files(tmp_path))
    assert module.first is module.second


def test_a_computed_buffer_in_the_file(saved):
    """Checkpoints of older writers hold position numbers that the model computes: right ones do not disturb."""
    files = rewrite(saved, lambda tensors: tensors.update(ids=torch.arange(6)[None].clone()))
    module, report = load_module(Block, files)
    assert torch.equal(module.ids, torch.arange(6)[None])
    assert report.num_tensors == 7
    files = rewrite(saved, lambda tensors: tensors.update(ids=torch.arange(1, 7)[None].clone()))
    with pytest.raises(CheckpointError, match="'ids' is computed by this model, and the files hold other values"):
        load_module(Block, files)
    files = rewrite(saved, lambda tensors: tensors.update(ids=torch.arange(7)[None].clone()))
    with pytest.raises(CheckpointError, match="'ids' is computed by this model"):
        load_module(Block, files)


def test_flags_of_parameters_survive(tmp_path):
    class Flagged(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
            self.codes = nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False)
            self.frozen.no_weight_decay = True

    save_file({"frozen": torch.zeros(2), "codes": torch.zeros(2, dtype=torch.int8)}, tmp_path / "model.safetensors")
    module, _ = load_module(Flagged, list_weight_files(tmp_path), dtype=torch.bfloat16)
    assert not module.frozen.requires_grad
    assert module.frozen.no_weight_decay
    assert module.codes.dtype == torch.int8


def test_a_module_built_on_meta_without_values_for_its_buffers(tmp_path):
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))
            self.register_buffer("table", torch.ones(2), persistent=False)

    def build():
        with torch.device("meta"):
            return Small()

    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="buffer 'table' has no values: `build` made it on the meta device"):
        load_module(build, list_weight_files(tmp_path))


def test_building_keeps_no_weights():
    """A parameter's memory is given back before the next one is made."""

    def build():
        module = nn.Module()
        for number in range(3):
            parameter = nn.Parameter(torch.empty(4, 4))
            alive = weakref.ref(parameter)
            module.register_parameter(f"weight{number}", parameter)
            del parameter
            assert alive() is None
        return module

    module = build_skeleton(build)
    assert [parameter.is_meta for parameter in module.parameters()] == [True] * 3


def private_bytes():
    """Memory of this process that no file backs, without what the kernel can drop."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    pytest.skip("the kernel does not say")


def test_memory_stays_near_the_weights_own(tmp_path):
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(1024, 1024, bias=False) for _ in range(16))

    tensors = {f"parts.{n}.weight": torch.full((1024, 1024), n, dtype=torch.bfloat16) for n in range(16)}
    save_file(tensors, tmp_path / "model.safetensors")
    del tensors
    files = list_weight_files(tmp_path)
    gc.collect()
    before = private_bytes()
    peaks = []
    module, report = load_module(
        Large, files, dtype=torch.float32, on_progress=lambda done, total: peaks.append(private_bytes())
    )
    assert report.memory_bytes == 16 * 4 * 2**20
    assert max(peaks) - before < report.memory_bytes + 8 * 2**20
    assert module.parts[7].weight[0, 0].item() == 7


def test_progress(saved):
    told = []
    load_module(Block, saved, on_progress=lambda done, total: told.append((done, total)))
    assert len(told) == 7
    assert told[-1] == (152, 152)
    assert told == sorted(told)


def test_shards_are_read_as_one(tmp_path, block, write_shards):
    names = sorted(block.state_dict())
    write_shards(tmp_path, [{n: block.state_dict()[n] for n in part} for part in (names[::2], names[1::2])])
    module, report = load_module(Block, list_weight_files(tmp_path))
    assert len(report.files) == 2
    assert all(torch.equal(module.state_dict()[name], block.state_dict()[name]) for name in names)


def test_tensors_that_are_not_aligned(tmp_path, write_raw):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("bytes", torch.zeros(3, dtype=torch.uint8))
            self.weight = nn.Parameter(torch.zeros(2))

    header = {
        "bytes": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "weight": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]},
    }
    data = bytes([1, 2, 3]) + torch.tensor([1.5, -2.5]).numpy().tobytes()
    path = write_raw(tmp_path / "odd.safetensors", json.dumps(header).encode() + b" ", data)
    module, _ = load_module(Odd, read_weight_files("odd", [path]))
    assert module.weight.tolist() == [1.5, -2.5]
    assert module.bytes.tolist() == [1, 2, 3]


def test_formats_that_torch_has_no_numbers_for(tmp_path, write_raw):
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(16))

    header = {"w": {"dtype": "F4", "shape": [16], "data_offsets": [0, 8]}}
    files = read_weight_files("small", [write_raw(tmp_path / "f4.safetensors", header, bytes(8))])
    with pytest.raises(CheckpointError, match="'w' is stored as F4, which torch cannot read as plain numbers"):
        load_module(Small, files, dtype=torch.float32)


def test_a_file_that_is_replaced_meanwhile(saved):
    rewrite(saved, lambda tensors: tensors.update({"proj.bias": torch.ones(1)}))
    with pytest.raises(CheckpointError, match="changed while it was being loaded; load again"):
        load_module(Block, saved)


def test_a_file_that_is_cut_meanwhile(saved):
    content = saved.paths[0].read_bytes()
    saved.paths[0].write_bytes(content[:-5])
    with pytest.raises(CheckpointError, match="cut short"):
        load_module(Block, saved)
    saved.paths[0].unlink()
    with pytest.raises(CheckpointError, match="cannot read"):
        load_module(Block, saved)


def test_memory_that_runs_out(saved, monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(reader.torch, "empty", refuse)
    with pytest.raises(ResourceError, match=r"no memory on cpu for '.*' of model.safetensors: \d+ bytes more needed"):
        list(reader.read_tensors(saved, dtype=torch.bfloat16))


def test_an_error_in_build_leaves_nothing_behind(saved):
    def build():
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="no such layer"):
        load_module(build, saved)
    assert not nn.Linear(2, 2).weight.is_meta


def test_many_threads_load_and_build_at_once(tmp_path, block):
    """Loading builds without memory; modules that other threads build at that moment must not notice."""
    save_file(block.state_dict(), tmp_path / "model.safetensors")
    files = list_weight_files(tmp_path)
    problems = []

    def load():
        for _ in range(10):
            module, _ = load_module(Block, files)
            if not torch.equal(module.proj.weight, block.proj.weight):
                problems.append("wrong weights")

    def build():
        for _ in range(200):
            if any(parameter.is_meta for parameter in Block().parameters()):
                problems.append("a module without memory")

    threads = [threading.Thread(target=target) for target in (load, build, load, build)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_reading_a_choice_of_names(saved, block):
    found = dict(reader.read_tensors(saved, names=["mean", "count"]))
    assert found.keys() == {"mean", "count"}
    assert torch.equal(found["mean"], block.mean)


def test_building_does_not_wake_the_compiler():
    """The first random fill on the meta device makes torch import hundreds of modules, for seconds."""
    code = """
import sys, torch
from torch import nn
from fastvideo_core.runtime.weights.skeleton import build_skeleton
def build():
    module = nn.ModuleList([nn.Embedding(5, 3), nn.Linear(3, 3), nn.LSTM(2, 2), nn.MultiheadAttention(4, 2)])
    nn.init.trunc_normal_(module[0].weight, std=0.02)
    module[1].weight.data.normal_(mean=0.0, std=0.02)
    return module
before = len(sys.modules)
assert all(parameter.is_meta for parameter in build_skeleton(build).parameters())
assert len(sys.modules) - before < 30, len(sys.modules) - before
assert build()[0].weight.std() > 0
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
