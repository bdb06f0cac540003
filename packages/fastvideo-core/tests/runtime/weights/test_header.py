from __future__ import annotations

import itertools
import json
import pickle
import random

import pytest
import safetensors
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from fastvideo_core.errors import CheckpointError, UnsafeFormatError
from fastvideo_core.runtime.weights.dtypes import DTYPES
from fastvideo_core.runtime.weights.header import read_header

TENSORS = {
    "a.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b": torch.ones(5, dtype=torch.bfloat16),
    "c": torch.tensor(7),
    "empty": torch.zeros(0, 4),
}
CONTENT = save(TENSORS, {"format": "pt"})


def test_entries_say_where_the_bytes_are(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file(TENSORS, path, {"format": "pt"})
    header = read_header(path)
    assert header.size_bytes == path.stat().st_size
    assert header.metadata == {"format": "pt"}
    assert header.tensors.keys() == TENSORS.keys()
    content = path.read_bytes()
    for name, tensor in TENSORS.items():
        entry = header.tensors[name]
        assert entry.shape == tuple(tensor.shape)
        assert entry.num_bytes == tensor.nbytes
        assert entry.num_elements == tensor.numel()
        assert content[entry.start : entry.end] == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(num_bytes=st.integers(0, len(CONTENT) - 1))
def test_every_shorter_file_is_refused_by_name_and_size(tmp_path, num_bytes):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(CONTENT[:num_bytes])
    with pytest.raises(CheckpointError, match="cut short") as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    assert str(num_bytes) in str(caught.value)


def test_a_cut_file_names_both_sizes(tmp_path):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(CONTENT[:-7])
    with pytest.raises(CheckpointError, match=rf"{len(CONTENT) - 7} bytes of {len(CONTENT)}, 7 are missing"):
        read_header(path)


def test_bytes_too_many(tmp_path):
    path = tmp_path / "long.safetensors"
    path.write_bytes(CONTENT + b"xyz")
    with pytest.raises(CheckpointError, match="has 3 bytes too many"):
        read_header(path)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, len(CONTENT) - 1), value=st.integers(0, 255))
def test_a_changed_byte_is_an_error_or_harmless(tmp_path, position, value):
    """Whatever this reader accepts, the library accepts too, and sees the same tensors."""
    path = tmp_path / "changed.safetensors"
    content = bytearray(CONTENT)
    content[position] = value
    path.write_bytes(content)
    try:
        header = read_header(path)
    except CheckpointError:
        return
    with safetensors.safe_open(path, framework="pt") as file:
        assert set(file.keys()) == header.tensors.keys()


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_garbage(tmp_path, content):
    path = tmp_path / "garbage.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        read_header(path)


def torch_save(path):
    torch.save({"w": torch.ones(1)}, path)


def old_torch_save(path):
    torch.save({"w": torch.ones(1)}, path, _use_new_zipfile_serialization=False)


def plain_pickle(path):
    path.write_bytes(pickle.dumps({"w": [1.0]}))


@pytest.mark.parametrize("write", [torch_save, old_torch_save, plain_pickle])
def test_a_pickle_under_this_name(tmp_path, write):
    path = tmp_path / "model.safetensors"
    write(path)
    with pytest.raises(UnsafeFormatError, match=r"model.safetensors is a pickle file, .*; use the model's"):
        read_header(path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 3\n", "git-lfs pointer.*git lfs pull"),
        (b"<!DOCTYPE html><html>Not found</html>", "a web page"),
        (bytes(4096), "starts with zeros"),
        (b"GGUF\x03\x00\x00\x00rest of it", "not a safetensors file"),
        (b"", "0 bytes"),
    ],
)
def test_other_files_under_this_name(tmp_path, content, text):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=text):
        read_header(path)


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({"w": entry(dtype="F31")}, "'w' has the unknown dtype 'F31'; known: BOOL, "),
        ({"w": entry(shape=(3,))}, "'w' of shape (3,) and dtype F32 needs 12 bytes, its entry has 4"),
        ({"w": entry(shape=(-1,))}, "entry for 'w' is damaged"),
        ({"w": entry(shape=(True,))}, "entry for 'w' is damaged"),
        ({"w": entry(offsets=(0, 4, 8))}, "entry for 'w' is damaged"),
        ({"w": entry(offsets=(4, 0))}, "needs 4 bytes, its entry has -4"),
        ({"w": entry(offsets=(4, 8))}, "'w' starts at byte"),
        ({"w": entry(), "v": entry()}, "'v' starts at byte"),
        ({"w": 3}, "entry for 'w' is damaged"),
        ({"__metadata__": {"a": 1}, "w": entry()}, "__metadata__ must map strings to strings"),
        ({"__metadata__": 1, "w": entry()}, "__metadata__ must map strings to strings"),
        (b'{"w": ', "not valid JSON"),
        (b'{"w": 1}\xff', "not valid JSON"),
        (b'{"w":' + b"[" * 100_000, "not valid JSON"),
        (f'{{"w": {json.dumps(entry())}, "w": {json.dumps(entry())}}}'.encode(), "names 'w' twice"),
    ],
)
def test_damaged_headers(tmp_path, write_raw, header, text):
    path = write_raw(tmp_path / "w.safetensors", header, bytes(4))
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert text in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_header_without_end(tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes((5000).to_bytes(8, "little") + b'{"w": ')
    with pytest.raises(CheckpointError, match="its header alone ends at byte 5008, the file has 14"):
        read_header(path)


def test_a_folder_or_nothing_under_this_name(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot read .*none.safetensors: No such file"):
        read_header(tmp_path / "none.safetensors")
    with pytest.raises(CheckpointError, match=r"cannot read .*: Is a directory"):
        read_header(tmp_path)


def test_the_table_of_dtypes_is_the_librarys(tmp_path, write_raw):
    """Every dtype of ours opens in the library, with our size; the library names no other."""
    for name, dtype in DTYPES.items():
        path = write_raw(tmp_path / name, {"w": entry(name, (8,), (0, dtype.bits))}, bytes(dtype.bits))
        assert read_header(path).tensors["w"].num_bytes == dtype.bits
        with safetensors.safe_open(path, framework="pt") as file:
            assert file.keys() == ["w"]
            if dtype.torch_name is not None:
                assert file.get_tensor("w").dtype == getattr(torch, dtype.torch_name)
    letters = ["F", "I", "U", "BF", "C"]
    others = {f"{kind}{bits}" for kind, bits in itertools.product(letters, [4, 8, 16, 32, 64, 128])} - DTYPES.keys()
    for name in random.Random(0).sample(sorted(others), len(others)):
        path = write_raw(tmp_path / name, {"w": entry(name, (8,), (0, 64))}, bytes(64))
        with pytest.raises(safetensors.SafetensorError):
            safetensors.safe_open(path, framework="pt")
