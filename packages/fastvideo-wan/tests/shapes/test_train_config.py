"""Settings are checked when they are read; schedules warm up, hold and fall to zero."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from fastvideo_core.errors import ParameterError
from fastvideo_wan.shapes.train.__main__ import main
from fastvideo_wan.shapes.train.config import Bucket, Schedule, TrainConfig, draw_bucket, read_config


def written(folder: Path, content: object) -> Path:
    path = folder / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_a_file_overrides_the_defaults(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, {"folder": "run", "dit": {"num_layers": 4}}))
    assert config.dit.num_layers == 4
    assert config.dit.num_heads == TrainConfig(folder=Path()).dit.num_heads


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({"folder": "run", "dit": {"num_layer": 4}}, "dit.num_layer"),
        ({"folder": "run", "vae": {"windows": [{"height": 20, "batch_size": 2}]}}, "vae.windows.0.height"),
        ({"folder": "run", "buckets": [{"batch_size": 3}]}, "buckets.0.batch_size"),
        ({"folder": "run", "buckets": [{"num_frames": 8, "batch_size": 2}]}, "num_frames=8"),
        ({"folder": "run", "buckets": [{"batch_size": 2}, {"batch_size": 4}]}, "17x64x64, 17x64x64"),
        ({"folder": "run", "vae": {"clip_frames": [5]}}, "clip_frames"),
        ({"folder": "run", "vae": {"min_scale": 2.0}}, "min_scale"),
        ({}, "folder"),
        ("{", "config"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, content: object, field: str) -> None:
    with pytest.raises(ParameterError, match=field.replace(".", r"\.")):
        read_config(written(tmp_path, content))


def test_the_command_ends_with_2_on_bad_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(tmp_path / "absent.json")]) == 2
    assert "absent.json" in capsys.readouterr().err


def test_the_rate_warms_up_holds_and_falls_to_zero() -> None:
    schedule = Schedule(num_steps=100, learning_rate=0.01, num_warmup_steps=10, decay_part=0.5)
    assert schedule.rate_at(0) == pytest.approx(0.001)
    assert schedule.rate_at(9) == schedule.rate_at(50) == pytest.approx(0.01)
    assert schedule.rate_at(75) == pytest.approx(0.005)
    assert schedule.rate_at(100) == 0


def test_buckets_are_drawn_by_their_shares() -> None:
    buckets = [Bucket(batch_size=1, share=3), Bucket(num_frames=1, batch_size=1, share=1)]
    rng = random.Random(0)
    drawn = [draw_bucket(buckets, rng) for _ in range(2000)]
    assert 0.21 < sum(drawn) / len(drawn) < 0.29
