from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import save_file

from fastvideo_core.errors import CheckpointError, UnsafeFormatError
from fastvideo_core.runtime.weights.files import list_weight_files, read_weight_files

SHARDS = [{"a": torch.ones(2), "b": torch.ones(3)}, {"c": torch.ones(4)}]


def test_a_single_file(tmp_path):
    for component, stem in (("transformer", "diffusion_pytorch_model"), ("text_encoder", "model")):
        (tmp_path / component).mkdir()
        path = tmp_path / component / f"{stem}.safetensors"
        save_file({"w": torch.ones(2)}, path)
        files = list_weight_files(tmp_path, component)
        assert (files.label, files.paths, files.index) == (component, (path,), None)
        assert files.num_bytes == path.stat().st_size
        assert files.tensors["w"].shape == (2,)


def test_the_root_as_component(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    files = list_weight_files(tmp_path)
    assert files.label == tmp_path.name
    assert len(files.paths) == 1


def test_shards(tmp_path, write_shards):
    index = write_shards(tmp_path / "transformer", SHARDS)
    files = list_weight_files(tmp_path, "transformer")
    assert files.index == index
    assert [path.name for path in files.paths] == [
        "diffusion_pytorch_model-00001-of-00002.safetensors",
        "diffusion_pytorch_model-00002-of-00002.safetensors",
    ]
    assert sorted(files.tensors) == ["a", "b", "c"]


def test_a_single_file_goes_before_an_index(tmp_path, write_shards):
    write_shards(tmp_path, SHARDS)
    save_file({"w": torch.ones(2)}, tmp_path / "diffusion_pytorch_model.safetensors")
    assert list_weight_files(tmp_path).index is None


def test_variants_are_taken_only_when_asked_for(tmp_path, write_shards):
    save_file({"w": torch.ones(2)}, tmp_path / "model.fp16.safetensors")
    write_shards(tmp_path, SHARDS, "model", "model.safetensors.index.bf16.json")
    assert list_weight_files(tmp_path, variant="fp16").paths[0].name == "model.fp16.safetensors"
    assert list_weight_files(tmp_path, variant="bf16").index is not None
    with pytest.raises(CheckpointError, match=r"no weights in .*the variants bf16, fp16 are there: ask for one"):
        list_weight_files(tmp_path)
    with pytest.raises(CheckpointError, match=r"looked for .*model.fp32.safetensors.*the variants bf16, fp16"):
        list_weight_files(tmp_path, variant="fp32")


def test_other_stems(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "wan_2.1_vae.safetensors")
    assert len(list_weight_files(tmp_path, stems=["wan_2.1_vae"]).paths) == 1
    with pytest.raises(CheckpointError, match=r"there is wan_2.1_vae.safetensors, and no index that names it"):
        list_weight_files(tmp_path)


def test_names_with_spaces_and_letters_of_other_scripts(tmp_path, write_shards):
    folder = tmp_path / "мои модели 模型 'v1'"
    write_shards(folder / "part one", SHARDS)
    assert sorted(list_weight_files(folder, "part one").tensors) == ["a", "b", "c"]


def test_links_as_in_the_hub_cache(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots/abc/transformer"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    save_file({"w": torch.ones(2)}, blobs / "0123")
    link = snapshot / "diffusion_pytorch_model.safetensors"
    link.symlink_to("../../../blobs/0123")
    assert list_weight_files(snapshot.parent, "transformer").paths == (link,)
    (blobs / "0123").unlink()
    with pytest.raises(CheckpointError, match=r"is a link to ../../../blobs/0123, which is not there; download"):
        list_weight_files(snapshot.parent, "transformer")


def test_an_absent_folder(tmp_path):
    with pytest.raises(CheckpointError, match=r"no folder .*nothing"):
        list_weight_files(tmp_path / "nothing", "vae")
    for name in ("transformer", "vae"):
        (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match=r"no folder 'transfomer'; it has transformer, vae; nearest: trans"):
        list_weight_files(tmp_path, "transfomer")


@pytest.mark.parametrize("component", ["../other", "/etc", "a/../../b"])
def test_a_component_outside(tmp_path, component):
    with pytest.raises(CheckpointError, match="leaves"):
        list_weight_files(tmp_path, component)


def test_an_empty_folder(tmp_path):
    with pytest.raises(
        CheckpointError,
        match=r"looked for diffusion_pytorch_model.safetensors, diffusion_pytorch_model.safetensors.index.json, "
        r"model.safetensors, model.safetensors.index.json; there is nothing at all",
    ):
        list_weight_files(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"there is config.json"):
        list_weight_files(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.PTH", "last.ckpt", "weights.pkl"])
def test_pickle_files_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UnsafeFormatError) as caught:
        list_weight_files(tmp_path)
    assert name in str(caught.value)
    assert "use a repository or folder with .safetensors files" in str(caught.value)
    with pytest.raises(UnsafeFormatError, match=name):
        read_weight_files("single", [tmp_path / name])


def test_pickle_files_beside_safetensors_do_not_matter(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert len(list_weight_files(tmp_path).paths) == 1


def test_other_formats_are_named(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"there is model.gguf, a format that is not read"):
        list_weight_files(tmp_path)


def test_a_missing_shard(tmp_path, write_shards):
    write_shards(tmp_path / "transformer", SHARDS)
    (tmp_path / "transformer/diffusion_pytorch_model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 2 shards in .* are missing from .*: .*00002-of-00002.safetensors"):
        list_weight_files(tmp_path, "transformer")


def test_a_cut_shard(tmp_path, write_shards):
    write_shards(tmp_path, SHARDS)
    os.truncate(tmp_path / "diffusion_pytorch_model-00001-of-00002.safetensors", 100)
    with pytest.raises(CheckpointError, match=r"00001-of-00002.safetensors is cut short"):
        list_weight_files(tmp_path)


def test_a_shard_of_another_checkpoint(tmp_path, write_shards):
    write_shards(tmp_path, SHARDS)
    save_file({"c": torch.ones(4), "d": torch.ones(1)}, tmp_path / "diffusion_pytorch_model-00002-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"the shards hold 1 names that .*index.json does not have: d") as caught:
        list_weight_files(tmp_path)
    assert caught.value.unexpected == ("d",)
    save_file({"d": torch.ones(1)}, tmp_path / "diffusion_pytorch_model-00002-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"on 1 names: 'c' should be in .*00002.*, it is in none") as caught:
        list_weight_files(tmp_path)
    assert caught.value.missing == ("c",)


def test_a_name_in_two_shards(tmp_path, write_shards):
    write_shards(tmp_path, SHARDS)
    first, second = (tmp_path / f"diffusion_pytorch_model-0000{n}-of-00002.safetensors" for n in (1, 2))
    shutil.copy(first, second)
    with pytest.raises(CheckpointError, match=f"'a' is in both {first.name} and {second.name}"):
        list_weight_files(tmp_path)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ("{", "not valid JSON"),
        ("[]", "has no weight_map"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": {"a": 1}}', "has no weight_map"),
        (json.dumps({"weight_map": {"a": "../../secret.safetensors"}}), "must lie beside their index"),
        (json.dumps({"weight_map": {"a": "/secret.safetensors"}}), "must lie beside their index"),
        (json.dumps({"weight_map": {"a": "pytorch_model.bin"}}), "shards .* are missing"),
    ],
)
def test_damaged_indexes(tmp_path, index, text):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=text):
        list_weight_files(tmp_path)


def test_an_index_of_pickle_files(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UnsafeFormatError, match=r"pytorch_model.bin"):
        list_weight_files(tmp_path)
