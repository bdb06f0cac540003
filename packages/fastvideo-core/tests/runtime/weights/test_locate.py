from __future__ import annotations

import sys

import pytest
import torch
from safetensors.torch import save_file

from fastvideo_core.errors import CheckpointError, DownloadError, UnsafeFormatError
from fastvideo_core.runtime.weights.hub import HubAccess
from fastvideo_core.runtime.weights.locate import Location, guess_kind, locate
from fastvideo_core.runtime.weights.selection import select_files
from fastvideo_testing.hub import HubServer


def test_a_folder(tmp_path, monkeypatch):
    assert locate("folder", str(tmp_path)) == Location("folder", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    assert locate("folder", "~/models").folder == tmp_path / "models"


def test_an_absent_folder(tmp_path):
    (tmp_path / "wan-small").mkdir()
    with pytest.raises(CheckpointError, match=r"no folder .*wan-smal; nearest: .*/wan-small$"):
        locate("folder", str(tmp_path / "wan-smal"))
    with pytest.raises(CheckpointError, match=r"no folder /none/of/this$"):
        locate("folder", "/none/of/this")


def test_a_file_in_place_of_a_folder(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"is a file; give the checkpoint's folder, for instance {tmp_path}"):
        locate("folder", str(path))


def test_a_folder_of_the_hub_cache(tmp_path):
    snapshot = tmp_path / "models--org--name/snapshots/abc"
    snapshot.mkdir(parents=True)
    with pytest.raises(CheckpointError, match=f"a folder of the hub's cache; the checkpoint is in {snapshot}$"):
        locate("folder", str(tmp_path / "models--org--name"))
    assert locate("folder", str(snapshot)).folder == snapshot


@pytest.fixture
def package(tmp_path, monkeypatch):
    place = tmp_path / "site/some_weights"
    (place / "data/small").mkdir(parents=True)
    (place / "__init__.py").write_text("raise RuntimeError('locating must not import')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return place


def test_data_in_a_package(package):
    assert locate("package", "some_weights:data/small") == Location("package", package / "data/small")
    assert "some_weights" not in sys.modules


def test_absent_packages(package):
    with pytest.raises(CheckpointError, match=r"package 'some_weights' has no folder 'data/large' .* install it again"):
        locate("package", "some_weights:data/large")
    for name in ("not_installed", "not_installed.sub", "", "json.decoder"):
        with pytest.raises(CheckpointError, match=f"no package '{name}' is installed, for the weights '{name}:data'"):
            locate("package", f"{name}:data")


def test_a_hub_repository(tmp_path):
    (tmp_path / "repo/vae").mkdir(parents=True)
    save_file({"w": torch.ones(1)}, tmp_path / "repo/vae/model.safetensors")
    with HubServer() as server:
        repository = server.add_folder("org/name", tmp_path / "repo")
        access = HubAccess(tmp_path / "cache", server.endpoint)
        found = locate("hub", "org/name", revision=repository.commit, components=("vae",), access=access)
    assert (found.kind, found.commit) == ("hub", repository.commit)
    assert (found.folder / "vae/model.safetensors").exists()
    with pytest.raises(DownloadError):
        locate("hub", "not a name")


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        ("org/name", "hub"),
        ("./org/name", "folder"),
        ("/org/name", "folder"),
        ("~/name", "folder"),
        ("name", "folder"),
        ("a/b/c", "folder"),
        ("..", "folder"),
        ("C:\\models\\wan", "folder"),
        ("some_package:data/x", "package"),
        ("some.package:data/x", "package"),
        ("there/already", "folder"),
    ],
)
def test_what_a_user_means(tmp_path, monkeypatch, location, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there/already").mkdir(parents=True)
    assert guess_kind(location) == kind


LISTING = [
    "README.md",
    "model_index.json",
    "transformer/config.json",
    "transformer/diffusion_pytorch_model.safetensors.index.json",
    "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
    "transformer/diffusion_pytorch_model-00002-of-00002.safetensors",
    "transformer/diffusion_pytorch_model.safetensors.index.fp16.json",
    "transformer/diffusion_pytorch_model-00001-of-00001.fp16.safetensors",
    "transformer/diffusion_pytorch_model.bf16-00001-of-00001.safetensors",
    "transformer/diffusion_pytorch_model.safetensors.index.bf16.json",
    "text_encoder/config.json",
    "text_encoder/model.safetensors",
    "text_encoder/model.safetensors.index.json",
    "text_encoder/model-00001-of-00001.safetensors",
    "text_encoder/pytorch_model.bin",
    "tokenizer/tokenizer.json",
    "tokenizer/spiece.model",
    "tokenizer/merges.txt",
    "tokenizer/extra.py",
    "tokenizer/more/tokenizer.json",
    "scheduler/scheduler_config.json",
    "old/pytorch_model.bin",
    "image_encoder/other.safetensors",
]


def test_one_form_of_the_weights_is_chosen():
    assert select_files(LISTING, ["transformer"]) == [
        "model_index.json",
        "transformer/config.json",
        "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
        "transformer/diffusion_pytorch_model-00002-of-00002.safetensors",
        "transformer/diffusion_pytorch_model.safetensors.index.json",
    ]
    assert select_files(LISTING, ["text_encoder"]) == [
        "model_index.json",
        "text_encoder/config.json",
        "text_encoder/model.safetensors",
    ]


@pytest.mark.parametrize(
    ("variant", "shard"), [("fp16", "model-00001-of-00001.fp16"), ("bf16", "model.bf16-00001-of-00001")]
)
def test_shards_of_a_variant(variant, shard):
    names = select_files(LISTING, ["transformer"], variant=variant)
    assert [name for name in names if name.endswith(".safetensors")] == [
        f"transformer/diffusion_pytorch_{shard}.safetensors"
    ]


def test_only_data_is_chosen():
    assert select_files(LISTING, ["tokenizer", "scheduler"]) == [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "tokenizer/merges.txt",
        "tokenizer/spiece.model",
        "tokenizer/tokenizer.json",
    ]


def test_what_a_repository_lacks():
    with pytest.raises(UnsafeFormatError, match=r"old: pytorch_model.bin: pickle formats"):
        select_files(LISTING, ["old"])
    with pytest.raises(CheckpointError, match=r"image_encoder: no plain weights among other.safetensors"):
        select_files(LISTING, ["image_encoder"])
    with pytest.raises(CheckpointError, match="text_encoder: no variant 'fp16' weights among"):
        select_files(LISTING, ["text_encoder"], variant="fp16")
    with pytest.raises(CheckpointError, match=r"no folder 'vae'; it has .*image_encoder"):
        select_files(LISTING, ["vae"])


def test_the_root_as_component():
    paths = ["model.safetensors", "config.json", "sub/model.safetensors", "other.txt"]
    assert select_files(paths, [""]) == ["config.json", "model.safetensors", "other.txt"]
