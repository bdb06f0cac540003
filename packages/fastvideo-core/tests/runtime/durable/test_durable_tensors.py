from __future__ import annotations

import hashlib

import pytest
import torch
from safetensors.torch import load_file

from fastvideo_core.errors import StateError
from fastvideo_core.runtime.durable.disk import Disk
from fastvideo_core.runtime.durable.tensors import TensorReader, write_tensors
from fastvideo_core.runtime.weights.header import read_header

TENSORS = {
    "odd": torch.arange(3, dtype=torch.uint8),
    "flags": torch.tensor([True, False, True]),
    "half": torch.randn(2, 3, generator=torch.Generator().manual_seed(1)).half(),
    "turned": torch.arange(6.0).reshape(2, 3).t(),
    "part": torch.arange(10.0)[2:7:2],
    "spread": torch.ones(1).expand(4),
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "wide": torch.tensor([1, 2], dtype=torch.int64),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 3),
    "float8": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
    "nan": torch.tensor([float("nan"), float("-inf"), -0.0]),
}


def raw(tensor):
    return tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_a_file_is_plain_safetensors_with_the_same_bits(tmp_path):
    path = tmp_path / "x.safetensors"
    digests = write_tensors(Disk(), path, TENSORS)
    assert set(read_header(path).tensors) == set(TENSORS)
    found = load_file(path)
    reader = TensorReader(tmp_path)
    for name, tensor in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert raw(found[name]) == raw(tensor)
        assert digests[name] == hashlib.sha256(raw(tensor)).hexdigest()
        assert raw(reader.read("x.safetensors", name, digests[name])) == raw(tensor)


def test_every_tensor_lies_at_a_multiple_of_its_size(tmp_path):
    write_tensors(Disk(), tmp_path / "x", TENSORS)
    for entry in read_header(tmp_path / "x").tensors.values():
        assert entry.start % max(1, TENSORS[entry.name].element_size()) == 0


def test_a_flipped_bit_is_found_and_named(tmp_path):
    path = tmp_path / "x"
    digests = write_tensors(Disk(), path, {"a": torch.zeros(8), "b": torch.ones(8)})
    data = bytearray(path.read_bytes())
    data[read_header(path).tensors["b"].start + 5] ^= 4
    path.write_bytes(data)
    reader = TensorReader(tmp_path)
    assert raw(reader.read("x", "a", digests["a"])) == bytes(32)
    with pytest.raises(StateError, match=r"x is corrupt: the digest of tensor b differs"):
        reader.read("x", "b", digests["b"])


def test_a_file_that_was_cut_is_found(tmp_path):
    path = tmp_path / "x"
    digests = write_tensors(Disk(), path, {"a": torch.zeros(8)})
    for size in (0, 4, 20, path.stat().st_size - 1):
        cut = tmp_path / "cut"
        cut.write_bytes(path.read_bytes()[:size])
        with pytest.raises(StateError, match=f"{cut} is missing, corrupt or cut short: "):
            TensorReader(tmp_path).read("cut", "a", digests["a"])


def test_other_names_are_refused(tmp_path):
    write_tensors(Disk(), tmp_path / "x", {"a": torch.zeros(8)})
    with pytest.raises(StateError, match="missing, corrupt or cut short"):
        TensorReader(tmp_path).read("x", "b", "")
    with pytest.raises(StateError, match="missing, corrupt or cut short"):
        TensorReader(tmp_path).read("y", "a", "")
    with pytest.raises(StateError, match="no name of a file"):
        TensorReader(tmp_path / "sub").read("../x", "a", "")


def test_a_format_that_safetensors_lacks_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(StateError, match="complex128 cannot be stored"):
        write_tensors(Disk(), tmp_path / "x", {"a": torch.zeros(1, dtype=torch.complex128)})
    assert list(tmp_path.iterdir()) == []
