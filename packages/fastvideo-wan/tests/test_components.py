"""What a checkpoint lacks is told, not made up, and a check of names reads no tensor."""

from __future__ import annotations

import shutil

import pytest
import torch

from fastvideo_core.errors import CheckpointError
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.instance import ComponentSource
from fastvideo_core.runtime.validate import checkpoint_problems
from fastvideo_wan import components

FACTORIES = {
    "transformer": components.build_transformer,
    "vae": components.build_vae,
    "text_encoder": components.build_text_encoder,
    "image_encoder": components.build_image_encoder,
}


def source_of(card, name, folder, *, is_check=False):
    spec = card.components[name]
    files = card.checkpoint.components[spec.load_id]
    return ComponentSource(spec, files, folder, torch.float32, torch.device("cpu"), is_check=is_check)


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("content", [None, "{"])
def test_a_configuration_that_is_not_there_is_an_error(checkpoint, tmp_path, name, content):
    folder = shutil.copytree(checkpoint("i2v-vision"), tmp_path / "copy")
    card = Catalog.installed().read_folder(folder)
    config = folder / name / "config.json"
    config.unlink()
    if content is not None:
        config.write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        FACTORIES[name](source_of(card, name, folder))


@pytest.mark.parametrize("name", FACTORIES)
def test_a_check_reads_headers_alone(checkpoint, name):
    folder = checkpoint("i2v-vision")
    card = Catalog.installed().read_folder(folder)
    part = FACTORIES[name](source_of(card, name, folder, is_check=True))
    assert part.num_bytes == 0
    assert all(parameter.is_meta for parameter in part.component.parameters())


@pytest.mark.parametrize("variant", ["t2v", "i2v-vision", "ti2v-5b", "a14b-t2v"])
def test_whole_checkpoints_have_no_problem(checkpoint, variant):
    assert list(checkpoint_problems(Catalog.installed().read_folder(checkpoint(variant)))) == []


def test_weights_of_another_size_are_a_problem(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("t2v"), tmp_path / "copy")
    other = checkpoint("ti2v-5b")
    shutil.copy(other / "vae" / "diffusion_pytorch_model.safetensors", folder / "vae")
    (problem,) = checkpoint_problems(Catalog.installed().read_folder(folder))
    assert problem.startswith("component vae: ")
