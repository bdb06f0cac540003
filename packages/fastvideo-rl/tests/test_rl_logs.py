"""Logs to Weights & Biases, with a module in its place: the library is not needed for anything else."""

from __future__ import annotations

import importlib.machinery
import sys
import types

import numpy as np
import pytest

from fastvideo_core.errors import ConfigError
from fastvideo_rl.train.assemble import make_plan
from fastvideo_rl.train.logs import RunLog


class FakeWandb(types.ModuleType):
    """Stands in for the library; keeps what it was told."""

    def __init__(self, why=None):
        super().__init__("wandb")
        self.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
        self.why, self.inits, self.logged, self.finished = why, [], [], 0

    def init(self, **given):
        if self.why is not None:
            raise RuntimeError(self.why)
        self.inits.append(given)
        return self

    def log(self, numbers, step):
        self.logged.append((step, numbers))

    def finish(self):
        self.finished += 1

    def Image(self, picture):
        return picture.shape


def test_wandb_gets_the_same_numbers_and_goes_on_with_its_run(monkeypatch, tmp_path):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for first_step in (0, 1):
        log = RunLog(tmp_path, first_step=first_step, wandb_project="shapes", name="small")
        log.note(first_step + 1, {"reward": 0.5})
        log.show(first_step + 1, "samples", np.zeros((4, 6, 3), dtype=np.uint8))
        log.close()
    assert fake.finished == 2
    assert fake.logged == [
        (1, {"reward": 0.5}), (1, {"samples": (4, 6, 3)}), (2, {"reward": 0.5}), (2, {"samples": (4, 6, 3)}),
    ]  # fmt: skip
    assert fake.inits[0] == fake.inits[1]
    assert fake.inits[0]["project"] == "shapes" and fake.inits[0]["resume"] == "allow" and fake.inits[0]["id"]
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb("api_key not configured"))
    with pytest.raises(ConfigError, match=r"takes no run: .*api_key.*WANDB_MODE=offline"):
        RunLog(tmp_path / "other", wandb_project="shapes")


def test_wandb_that_is_not_installed_is_said_before_any_compute(config, monkeypatch):
    monkeypatch.setattr("fastvideo_rl.train.logs.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"wandb_project='x': Weights & Biases is not installed"):
        make_plan(config(wandb_project="x"))
