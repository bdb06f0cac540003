"""Latents, transformer and shipping on a tiny model, one after the other."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from fastvideo_core.card import ModelCard
from fastvideo_wan.models.vae import WanVAE, mean_latents
from fastvideo_wan.shapes.captions import is_held_out, is_ordered
from fastvideo_wan.shapes.scenes import draw_scene
from fastvideo_wan.shapes.tokenizer import TEXT_LENGTH, UNKNOWN
from fastvideo_wan.shapes.train.checkpoint import load_average
from fastvideo_wan.shapes.train.config import TrainConfig
from fastvideo_wan.shapes.train.decoder_stage import cut_window, load_polished_vae, train_decoder
from fastvideo_wan.shapes.train.dit_stage import CHECKPOINT, draw_prompt, train_dit
from fastvideo_wan.shapes.train.latents_stage import (
    VAE_FOLDER,
    draw_pixels,
    draw_scenes,
    encode_scenes,
    latents_path,
    load_vae,
    read_latents,
    rotate_latents,
    wanted_files,
)
from fastvideo_wan.shapes.train.model import ShapesModel, new_tokenizer, tokenize
from fastvideo_wan.shapes.train.pool import LatentsPool
from fastvideo_wan.shapes.train.sampling import sample, shifted
from fastvideo_wan.shapes.train.ship_stage import ship
from fastvideo_wan.shapes.train.vae_stage import vae_config
from fastvideo_wan.shapes.train.workers import Worker


def with_steps(config: TrainConfig, num_steps: int) -> TrainConfig:
    schedule = config.dit.schedule.model_copy(update={"num_steps": num_steps, "decay_part": 0.0})
    return config.model_copy(update={"dit": config.dit.model_copy(update={"schedule": schedule})})


def test_rotated_latents_are_uncorrelated_and_decode_the_same(tiny: TrainConfig) -> None:
    torch.manual_seed(0)
    vae = WanVAE(vae_config(tiny.vae))
    scenes = draw_scenes(tiny, 2, tiny.buckets[0], name="test")
    bucket = tiny.buckets[0]
    latents = encode_scenes(vae, scenes, bucket)
    rotated = rotate_latents(vae, latents)
    new_latents = encode_scenes(rotated, scenes, bucket)
    flat = new_latents.transpose(0, 1).flatten(1).double()
    covariance = torch.cov(flat)
    assert (covariance - torch.diag(covariance.diagonal())).abs().max() < 1e-5
    assert covariance.diagonal().diff().max() < 1e-6
    assert torch.allclose(rotated.decode(new_latents), vae.decode(latents), atol=1e-4)
    assert torch.allclose(torch.tensor(rotated.config.latents_mean), flat.mean(1).float(), atol=1e-5)


@pytest.mark.parametrize(("number", "shape"), [(0, (2, 4, 5, 8, 8)), (1, (2, 4, 1, 6, 10))])
def test_files_hold_the_latents_of_the_scenes_that_they_name(
    with_latents: TrainConfig, number: int, shape: tuple[int, ...]
) -> None:
    bucket = with_latents.buckets[number]
    latents, scenes = read_latents(latents_path(with_latents, bucket, 0))
    assert latents.shape == shape
    drawn = draw_scenes(with_latents, 2, bucket, name=f"{bucket.name}/0")
    assert [asdict(scene) for scene in scenes] == [json.loads(json.dumps(asdict(scene))) for scene in drawn]
    vae = load_vae(with_latents.folder / VAE_FOLDER)
    expected = vae.normalize(encode_scenes(vae, drawn, bucket))
    assert torch.allclose(latents.float(), expected, atol=5e-3)


def test_files_are_written_in_the_order_in_which_steps_need_them(tiny: TrainConfig) -> None:
    names = [(bucket.name, index) for bucket, index in wanted_files(tiny)]
    assert names == [("17x64x64", 0), ("1x48x80", 0), ("17x64x64", 1)]


def test_a_step_uses_only_the_clips_that_it_may(with_latents: TrainConfig) -> None:
    pool, bucket = LatentsPool(with_latents), with_latents.buckets[0]
    pool.draw(random.Random(0), 0, bucket, 8)
    assert len(pool.scenes[bucket.name]) == 2
    latents, scenes = pool.draw(random.Random(0), 1, bucket, 8)
    assert len(pool.scenes[bucket.name]) == 4
    assert latents.shape == (8, 4, 5, 8, 8)
    assert len(scenes) == 8
    assert [pool.num_usable(step, with_latents.buckets[1]) for step in (0, 1, 9)] == [1, 2, 2]


def test_windows_hold_the_object(with_latents: TrainConfig) -> None:
    rng = random.Random(0)
    latents, scenes = read_latents(latents_path(with_latents, with_latents.buckets[0], 0))
    pixels = draw_pixels(scenes, with_latents.buckets[0])
    for _ in range(10):
        part, view = cut_window(rng, latents[0], pixels[0], 5)
        assert part.shape == (4, 5, 5, 5) and view.shape == (3, 17, 40, 40)
        assert (view != pixels[0][:, :1, :1, :1]).any()
    part, view = cut_window(rng, latents[0], pixels[0], 20)
    assert torch.equal(part, latents[0]) and torch.equal(view, pixels[0])


def test_prompts_are_dropped_and_disturbed_as_often_as_said(tiny: TrainConfig) -> None:
    rng = random.Random(0)
    scene = draw_scene(rng)
    prompts = [draw_prompt(scene, rng, tiny.dit) for _ in range(1000)]
    assert 0.07 < sum(p == "" for p in prompts) / 1000 < 0.13
    assert 0.06 < sum(UNKNOWN in p for p in prompts) / 1000 < 0.13
    assert not any(is_held_out(p) for p in prompts if p and UNKNOWN not in p)


def test_prompts_in_which_the_order_matters_are_drawn_as_often_as_said(tiny: TrainConfig) -> None:
    rng, stage = random.Random(0), tiny.dit.model_copy(update={"prompt_drop": 0.0, "unknown_part": 0.0})
    scenes = [draw_scene(rng) for _ in range(600)]
    for part in (0.0, 0.5, 1.0):
        chosen = stage.model_copy(update={"ordered_part": part})
        prompts = [draw_prompt(scene, rng, chosen) for scene in scenes]
        moving = [is_ordered(prompt) for prompt, scene in zip(prompts, scenes, strict=True) if scene.motion != "still"]
        assert sum(moving) / len(moving) == pytest.approx(part + (1 - part) / 5, abs=0.06)


def test_a_resumed_run_equals_an_unbroken_one(with_latents: TrainConfig, capsys: pytest.CaptureFixture[str]) -> None:
    path = with_latents.folder / CHECKPOINT
    train_dit(Worker(), with_steps(with_latents, 3))
    unbroken = load_average(path)
    path.unlink()
    train_dit(Worker(), with_steps(with_latents, 2))
    train_dit(Worker(), with_steps(with_latents, 3))
    resumed = load_average(path)
    assert all(torch.equal(unbroken[name], resumed[name]) for name in unbroken)
    losses = [line.split("loss ")[1].split()[0] for line in capsys.readouterr().out.splitlines() if "dit 3/3" in line]
    assert len(losses) == 2 and losses[0] == losses[1]
    assert (with_latents.folder / "sheets" / "000003-17x64x64.png").read_bytes().startswith(b"\x89PNG")


def test_padding_is_zero_and_unseen(tiny: TrainConfig) -> None:
    torch.manual_seed(0)
    model = ShapesModel(tiny.dit, 4)
    ids, mask = tokenize(new_tokenizer(), ["a red circle", "a red circle at rest on a black background"])
    text = model.encode_text(ids, mask)
    assert text.shape == (2, TEXT_LENGTH, 32)
    assert text[0, int(mask[0].sum()) :].abs().max() == 0
    other = ids.clone()
    other[0, int(mask[0].sum()) :] = 7
    assert torch.allclose(model.encode_text(other, mask)[0], text[0], atol=1e-6)


def test_the_sampler_follows_a_straight_flow_to_its_end(tiny: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, noise, target = ShapesModel(tiny.dit, 4), torch.randn(2, 4, 5, 8, 8), torch.randn(2, 4, 5, 8, 8)

    def towards_target(latents: torch.Tensor, times: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        level = times.view(-1, 1, 1, 1, 1)
        # Pure noise is where the sampler starts; the velocity noise - target is the same all the way.
        return (latents - torch.cat([target, target])) / level

    monkeypatch.setattr(model, "velocity", towards_target)
    text = torch.zeros(2, TEXT_LENGTH, 32)
    made = sample(model, noise, text, text, num_steps=6, guidance_scale=2.0, shift=5.0)
    assert torch.allclose(made, target, atol=2e-2)
    assert shifted(torch.tensor([0.5]), 3.0).item() == pytest.approx(0.75)


def test_a_polished_decoder_leaves_the_latents_alone(with_latents: TrainConfig) -> None:
    plain = load_vae(with_latents.folder / VAE_FOLDER)
    before = load_polished_vae(with_latents)
    assert all(torch.equal(tensor, before.state_dict()[name]) for name, tensor in plain.state_dict().items())
    train_decoder(Worker(), with_latents)
    polished = load_polished_vae(with_latents).state_dict()
    changed = {
        name.split(".")[0] for name, tensor in plain.state_dict().items() if not torch.equal(tensor, polished[name])
    }
    assert changed == {"decoder", "post_quant_conv"}


def test_the_written_folder_loads_in_diffusers_and_has_a_card(with_latents: TrainConfig, tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers")
    train_dit(Worker(), with_latents)
    folder = tmp_path / "model"
    recipe = ship(with_latents, folder, num_cases=2, notes="a test")
    assert json.loads((folder / "recipe.json").read_text(encoding="utf-8")) == recipe
    figures = recipe["figures"]
    assert figures["generated"]["colour"]["n"] == figures["generated_half_steps"]["colour"]["n"] == 2
    assert set(figures["generated_at_other_sizes"]) == set(figures["reconstructed"]["at_other_sizes"]) == {"1x48x80"}
    assert (with_latents.folder / "sheets" / "shipped-1x48x80.png").is_file()
    card = ModelCard.from_json((folder / "card.json").read_text(encoding="utf-8"), origin="test")
    assert card.figures["num_prompts"] == 2
    assert {"all_at_half_steps", "all_at_other_sizes", "all_at_worst_size"} <= set(card.figures)
    width = card.capabilities.tasks["text_to_video"].parameters["width"]
    assert (width.minimum, width.maximum, width.multiple_of) == (48, 96, 16)
    pipeline = diffusers.WanPipeline.from_pretrained(folder)
    latents = torch.randn(1, 4, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    moments = load_vae(folder / "vae").encode(torch.zeros(1, 3, 5, 64, 64))
    assert mean_latents(moments).shape == latents.shape
    video = pipeline(
        "a red circle", height=64, width=64, num_frames=5, num_inference_steps=2, max_sequence_length=TEXT_LENGTH,
        latents=latents, output_type="np",
    ).frames  # fmt: skip
    assert video.shape == (1, 5, 64, 64, 3)
