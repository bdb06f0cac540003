"""A run of the training with a model of a few thousand parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastvideo_wan.shapes.train.config import TrainConfig
from fastvideo_wan.shapes.train.dit_stage import train_dit
from fastvideo_wan.shapes.train.latents_stage import write_latents
from fastvideo_wan.shapes.train.vae_stage import train_vae
from fastvideo_wan.shapes.train.workers import Worker


@pytest.fixture
def tiny(tmp_path: Path) -> TrainConfig:
    """Settings of a run that takes a second."""
    schedule = {"num_steps": 2, "learning_rate": 0.001, "num_warmup_steps": 1, "save_every": 1, "report_every": 1}
    return TrainConfig.model_validate(
        {
            "folder": tmp_path / "run",
            "num_processes": 1,
            "vae": {
                "base_dim": 4,
                "latent_channels": 4,
                "num_res_blocks": 1,
                "windows": [{"num_frames": 5, "height": 16, "width": 16, "batch_size": 2}],
                "schedule": schedule,
            },
            "latents": {"clips_per_file": 2},
            "buckets": [
                {"num_frames": 17, "height": 64, "width": 64, "batch_size": 2, "num_clips": 4},
                {"num_frames": 1, "height": 48, "width": 80, "batch_size": 2, "num_clips": 2},
            ],
            "decoder": {"batch_size": 2, "whole_part": 0.5, "schedule": schedule},
            "dit": {
                "num_heads": 2,
                "head_dim": 12,
                "num_layers": 2,
                "ffn_dim": 32,
                "text_dim": 32,
                "text_layers": 1,
                "clips_at_start": 2,
                "clips_per_step": 2,
                "eval_every": 2,
                "eval_prompts": 2,
                "eval_side_prompts": 1,
                "eval_steps": 2,
                "schedule": schedule,
            },
        }
    )


@pytest.fixture
def with_latents(tiny: TrainConfig) -> TrainConfig:
    """The run with its autoencoder and the latents of its clips."""
    train_vae(Worker(), tiny)
    write_latents(Worker(), tiny)
    return tiny


@pytest.fixture
def with_transformer(with_latents: TrainConfig) -> TrainConfig:
    """The run with its transformer and text encoder too."""
    train_dit(Worker(), with_latents)
    return with_latents
