from __future__ import annotations

import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from fastvideo_core.errors import CheckpointError
from fastvideo_core.runtime.weights.files import list_weight_files, read_weight_files
from fastvideo_core.runtime.weights.version import weights_version

LARGE = torch.arange(100_000, dtype=torch.float32)


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "transformer"
    place.mkdir()
    save_file({"a": torch.arange(100.0), "b": LARGE, "c": torch.ones(3)}, place / "model.safetensors")
    return tmp_path


def version_of(folder):
    return weights_version(list_weight_files(folder, "transformer"))


def change(folder, name, edit):
    path = folder / "transformer/model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, {"note": name})
    return version_of(folder)


def test_it_is_short_and_repeatable(folder):
    assert re.fullmatch(r"w1-[0-9a-f]{24}", version_of(folder))
    assert version_of(folder) == version_of(folder)


def test_it_does_not_depend_on_place_files_or_notes(folder, tmp_path, write_shards):
    expected = version_of(folder)
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder / "transformer", copy / "transformer")
    assert version_of(copy) == expected
    tensors = load_file(folder / "transformer/model.safetensors")
    write_shards(tmp_path / "shards/transformer", [{"b": tensors["b"]}, {"c": tensors["c"], "a": tensors["a"]}])
    assert version_of(tmp_path / "shards") == expected
    assert change(folder, "a note", lambda tensors: None) == expected


@pytest.mark.parametrize(
    "edit",
    [
        lambda t: t["a"].mul_(1.0001),
        lambda t: t["a"][57:58].add_(1),
        lambda t: t["b"].mul_(1.0001),
        lambda t: t["b"][0:1].add_(1),
        lambda t: t["b"][50_000:50_001].add_(1),
        lambda t: t["b"][-1:].add_(1),
        lambda t: t.update(a=t["a"].reshape(10, 10)),
        lambda t: t.update(a=t["a"].half()),
        lambda t: t.update(a=t["a"].view(torch.int32)),
        lambda t: t.update(d=t.pop("c")),
        lambda t: t.pop("c"),
        lambda t: t.update(d=torch.zeros(0)),
    ],
)
def test_changes_change_it(folder, edit):
    before = version_of(folder)
    assert change(folder, "changed", edit) != before


def test_several_components(folder, tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "vae.safetensors")
    transformer = list_weight_files(folder, "transformer")
    vae = read_weight_files("vae", [tmp_path / "vae.safetensors"])
    other = read_weight_files("other", [tmp_path / "vae.safetensors"])
    assert weights_version(transformer, vae) == weights_version(vae, transformer)
    assert len({weights_version(*parts) for parts in ((transformer, vae), (transformer,), (vae,), (other,), ())}) == 5


def test_a_file_that_is_gone(folder):
    files = list_weight_files(folder, "transformer")
    files.paths[0].unlink()
    with pytest.raises(CheckpointError, match="cannot read"):
        weights_version(files)
