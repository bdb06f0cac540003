"""Runs that begin with a finished model."""

from __future__ import annotations

import json

import pytest
import torch

from fastvideo_core.errors import ParameterError
from fastvideo_wan.models.vae import WanVAE
from fastvideo_wan.shapes.train.base import SHIPPED, first_model, read_base
from fastvideo_wan.shapes.train.checkpoint import load_average
from fastvideo_wan.shapes.train.config import TrainConfig
from fastvideo_wan.shapes.train.dit_stage import CHECKPOINT, train_dit
from fastvideo_wan.shapes.train.latents_stage import VAE_FOLDER, load_vae, write_latents
from fastvideo_wan.shapes.train.model import ShapesModel
from fastvideo_wan.shapes.train.ship_stage import write_components
from fastvideo_wan.shapes.train.vae_stage import CHECKPOINT as VAE_CHECKPOINT
from fastvideo_wan.shapes.train.vae_stage import train_vae, vae_config
from fastvideo_wan.shapes.train.workers import Worker


@pytest.fixture
def based(tiny: TrainConfig) -> TrainConfig:
    """A tiny run that begins with a model of random weights, on the wide world."""
    torch.manual_seed(3)
    folder = tiny.folder.parent / "base"
    model = ShapesModel(tiny.dit, tiny.vae.latent_channels)
    torch.nn.init.normal_(model.transformer.proj_out.weight)  # zero in a new model, which could be told from nothing
    write_components(model, WanVAE(vae_config(tiny.vae)), folder, flow_shift=5.0)
    settings = json.loads(tiny.model_dump_json(exclude={"folder"}))
    (folder / "recipe.json").write_text(json.dumps({"settings": settings}), encoding="utf-8")
    world = {"kinds": "wide", "pair_part": 0.5}
    return TrainConfig.model_validate({**tiny.model_dump(), "base": str(folder), "world": world})


def test_the_autoencoder_is_the_bases_to_the_bit(based: TrainConfig) -> None:
    train_vae(Worker(), based)
    assert not (based.folder / VAE_CHECKPOINT).exists()
    write_latents(Worker(), based)
    base = read_base(based)
    assert base is not None
    own, expected = load_vae(based.folder / VAE_FOLDER), base.load_vae()
    assert own.config == expected.config
    assert all(torch.equal(a, expected.state_dict()[name]) for name, a in own.state_dict().items())


def test_the_transformer_goes_on_from_the_bases_weights(based: TrainConfig) -> None:
    write_latents(Worker(), based)
    begun = first_model(based, based.vae.latent_channels)
    assert begun.transformer.proj_out.weight.abs().max() > 0.5
    slow = based.dit.schedule.model_copy(update={"learning_rate": 1e-7})
    train_dit(Worker(), based.model_copy(update={"dit": based.dit.model_copy(update={"schedule": slow})}))
    trained = load_average(based.folder / CHECKPOINT)
    for name, tensor in begun.state_dict().items():
        assert torch.allclose(trained[name], tensor, atol=1e-4), name
    assert first_model(based.model_copy(update={"base": None}), 4).transformer.proj_out.weight.abs().max() == 0


def test_the_packages_own_model_has_a_name(tiny: TrainConfig) -> None:
    recipe = json.loads((SHIPPED / "recipe.json").read_text(encoding="utf-8"))
    settings = {"folder": tiny.folder, "dit": recipe["settings"]["dit"], "base": "wan-shapes"}
    base = read_base(TrainConfig.model_validate(settings))
    assert base is not None
    assert base.folder == SHIPPED


def test_nets_of_other_shapes_than_the_bases_are_refused(based: TrainConfig) -> None:
    wider = based.model_copy(update={"dit": based.dit.model_copy(update={"ffn_dim": 48})})
    with pytest.raises(ParameterError, match="must be 32") as caught:
        first_model(wider, 4)
    assert "dit.ffn_dim" in str(caught.value)


def test_a_folder_without_a_model_is_refused(tiny: TrainConfig) -> None:
    with pytest.raises(ParameterError, match=r"recipe\.json"):
        read_base(tiny.model_copy(update={"base": str(tiny.folder / "none")}))
