"""A small Wan model, its engine with the stochastic samplers, and prompts."""

from __future__ import annotations

import pytest

from fastvideo_core.extend.extensions import Extensions
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_rl.program import TrainingProgram
from fastvideo_rl.rollout.roller import Roller
from fastvideo_rl.train.config import TrainConfig
from fastvideo_testing.wan_checkpoints import build_wan_checkpoint

SIZE = {"num_frames": 5, "height": 32, "width": 32, "num_inference_steps": 4, "guidance_scale": 1.0}
"""Parameters of small, quick samples."""


@pytest.fixture(scope="session")
def size():
    return dict(SIZE)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return build_wan_checkpoint(tmp_path_factory.mktemp("rl") / "t2v", "t2v")


@pytest.fixture(scope="session")
def extensions():
    return Extensions.load(
        {"method.fastvideo": {}, "reward.fastvideo": {}, "reward.shapes": {}, "sampler.sde": {}}, strict=True
    )


@pytest.fixture(scope="session")
def card(folder):
    return Catalog.installed().read_folder(folder)


def open_engine(card, extensions, **scheduler):
    config = SchedulerConfig(**{"max_running": 64, **scheduler})
    return Engine.open(card, extensions=extensions, options=RuntimeOptions(scheduler=config))


@pytest.fixture(scope="module")
def engine(card, extensions):
    with open_engine(card, extensions) as engine:
        yield engine


@pytest.fixture(scope="module")
def roller(engine):
    return Roller(engine, TrainingProgram.of(engine.card))


@pytest.fixture
def config(folder, tmp_path):
    """Return a function that makes a config of a small run."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a red circle\n\na blue square moving left\na green triangle at rest\n")

    def make(method="flow_grpo", options=None, output="run", *, checked=True, **more):
        base = {
            "card": str(folder),
            "output": str(tmp_path / output),
            "method": {"name": method, "options": options or {}},
            "prompts": str(prompts),
            "rollout": {"group_size": 3, "num_groups": 2, "parameters": {**SIZE, "num_inference_steps": 3}},
            "rewards": [{"name": "shapes-centre"}],
            "optimizer": {"learning_rate": 1e-3, "micro_batch": 4, "max_grad_norm": 10.0},
            "result": {"model_id": "small-trained"},
            "num_steps": 2,
            "device": "cpu",
        }
        return TrainConfig.model_validate({**base, **more}) if checked else {**base, **more}

    return make


@pytest.fixture
def varied_rewards(monkeypatch):
    """Let the reward tell the samples of a model that makes nothing recognizable apart: by their brightness."""

    def score(self, samples):
        return [float(sample.frames_FYX3.mean()) / 255 for sample in samples]

    monkeypatch.setattr("fastvideo_wan.shapes.reward.CentreReward.score", score)
