"""The autoencoder's stage: crops, loss, and a resumed run that equals an unbroken one."""

from __future__ import annotations

import random

import pytest
import torch

from fastvideo_wan.models.vae import WanVAE
from fastvideo_wan.shapes.scenes import draw_scene
from fastvideo_wan.shapes.train.checkpoint import load_average
from fastvideo_wan.shapes.train.config import Bucket, TrainConfig
from fastvideo_wan.shapes.train.vae_stage import (
    CHECKPOINT,
    _draw_corner,
    draw_window,
    psnr,
    train_vae,
    vae_config,
    vae_loss,
)
from fastvideo_wan.shapes.train.workers import Worker


def with_steps(config: TrainConfig, num_steps: int) -> TrainConfig:
    # Only the last step differs between the schedules, so that the rates of the first ones agree.
    schedule = config.vae.schedule.model_copy(update={"num_steps": num_steps, "decay_part": 0.0})
    return config.model_copy(update={"vae": config.vae.model_copy(update={"schedule": schedule})})


def test_most_windows_see_an_edge(tiny: TrainConfig) -> None:
    rng = random.Random(0)
    window = Bucket(num_frames=5, height=32, width=48, batch_size=1)
    clips = [draw_window(rng, tiny.vae, window) for _ in range(40)]
    assert all(clip.shape == (3, 5, 32, 48) and clip.abs().max() <= 1 for clip in clips)
    assert sum((clip - clip[:, :, :1, :1]).abs().max() > 0.1 for clip in clips) > 24


def test_windows_lie_in_the_frame_or_around_it(tiny: TrainConfig) -> None:
    rng = random.Random(0)
    scene = draw_scene(rng)
    for when in (None, 0.5):
        inside = [_draw_corner(rng, scene, 1.5, (32, 48), when) for _ in range(50)]
        assert all(0 <= x <= 64 and 0 <= y <= 48 for x, y in inside)
        around = [_draw_corner(rng, scene, 0.75, (64, 96), when) for _ in range(50)]
        assert all(-16 <= x <= 0 and -48 <= y <= 0 for x, y in around)


def test_the_loss_weighs_the_object_more(tiny: TrainConfig) -> None:
    torch.manual_seed(0)
    vae = WanVAE(vae_config(tiny.vae))
    pixels = torch.full((1, 3, 1, 16, 16), -0.5)
    pixels[..., 4:8, 4:8] = 0.5
    noise = torch.zeros(1, 4, 1, 2, 2)
    plain = vae_loss(vae, pixels, noise, tiny.vae.model_copy(update={"object_weight": 0.0}))
    weighted = vae_loss(vae, pixels, noise, tiny.vae)
    assert weighted.total > plain.total
    assert weighted.squared_error == pytest.approx(plain.squared_error)


def test_decibels() -> None:
    assert psnr(4e-3) == pytest.approx(30.0)


def test_a_resumed_run_equals_an_unbroken_one(tiny: TrainConfig) -> None:
    whole = with_steps(tiny, 3)
    train_vae(Worker(), whole)
    unbroken = load_average(whole.folder / CHECKPOINT)
    broken = whole.model_copy(update={"folder": whole.folder / "broken"})
    train_vae(Worker(), with_steps(broken, 2))
    train_vae(Worker(), broken)
    resumed = load_average(broken.folder / CHECKPOINT)
    assert unbroken.keys() == resumed.keys()
    assert all(torch.equal(unbroken[name], resumed[name]) for name in unbroken)
