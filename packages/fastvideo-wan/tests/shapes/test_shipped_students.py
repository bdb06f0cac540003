"""The distilled weights in the package: small, whole, as good as their teacher, with its autoencoder."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from fastvideo_core.defaults import DEFAULT_CARD
from fastvideo_core.errors import LoopMismatchError
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.weights.locate import locate_components
from fastvideo_wan.shapes.evaluation import held_out_cases, summarise
from fastvideo_wan.shapes.judge import judge_clip
from fastvideo_wan.shapes.measure import make_and_judge

DATA = Path(str(files("fastvideo_wan").joinpath("data")))
STUDENTS = ("wan-shapes-4step", "wan-shapes-nft")
MAX_BYTES = 10 * 1000**2
MAX_LOSS = {"wan-shapes-4step": 0.05, "wan-shapes-nft": 0.02}
"""By how much less often than their teacher's all three attributes may be right."""
OTHER_SEED = 5_000
COLOURS = ("red", "blue", "green")
WAYS = [(COLOURS[i % 3], ("circle", "square")[i // 3 % 2], ("left", "right", "up", "down")[i % 4]) for i in range(12)]


@pytest.fixture(scope="module")
def teacher():
    return Catalog.installed().find("wan-shapes")


@pytest.fixture(params=STUDENTS)
def student(request):
    return Catalog.installed().find(request.param)


def test_everything_together_is_small(student):
    folder = DATA / student.model_id
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= MAX_BYTES


def test_weights_are_16_bits_and_finite(student):
    for name in ("transformer", "text_encoder"):
        (path,) = (DATA / student.model_id / name).glob("*.safetensors")
        with safe_open(path, framework="pt") as file:
            for key in file.keys():
                tensor = file.get_tensor(key)
                assert tensor.dtype == torch.float16 and tensor.isfinite().all(), key


def test_the_autoencoder_is_the_teachers_own(student, teacher):
    ours, theirs = locate_components(student.checkpoint), locate_components(teacher.checkpoint)
    assert ours["vae"] == theirs["vae"]
    assert ours["transformer"] != theirs["transformer"]


def test_the_card_says_what_it_was_made_of(student, teacher):
    assert student.recipe.parents == (teacher.model_id,)
    assert student.recipe.consistency_required.value == "C2"
    assert [test.test_id for test in student.parity.tests if test.level.value == "C2"] == ["behavior"]
    report = json.loads((DATA / student.model_id / "parity.json").read_text(encoding="utf-8"))
    assert report["level"] == "C2"
    assert report["distribution"]["is_same"]


def test_the_cards_figures_reach_the_bar(student, teacher):
    assert student.figures["num_prompts"] >= 300
    assert student.figures["all"] >= teacher.figures["all"] - MAX_LOSS[student.model_id]


def test_what_newcomers_see_is_right():
    """A look at forty prompts; the figures in the card are from three hundred."""
    with Engine.open() as engine:
        assert engine.card.model_id == DEFAULT_CARD == "wan-shapes-4step"
        table = summarise([item.scores for item in make_and_judge(engine, held_out_cases(40, OTHER_SEED), {})])
    assert table["all"]["right"] >= 36
    assert table["clean"]["right"] >= 36


def test_the_rewarded_card_has_gained_half_of_the_speed_that_was_missing():
    figures = Catalog.installed().find("wan-shapes-nft").figures
    assert figures["speed"] - figures["speed_of_parent"] >= 0.5 * (1 - figures["speed_of_parent"])


def test_the_rewarded_card_moves_things_faster_than_its_parent():
    """Ways over the clip in sides of the frame, on a dozen prompts; the figures in the card are from 256."""
    prompts = [f"a {colour} {shape} moving {way}" for colour, shape, way in WAYS]
    means = []
    for name in ("wan-shapes", "wan-shapes-nft"):
        with Engine.open(name) as engine:
            verdicts = [judge_clip(engine.generate(prompt, seed=3).video.frames) for prompt in prompts]
        assert [verdict.direction for verdict in verdicts] == [way for _, _, way in WAYS]
        means.append(sum(verdict.travel for verdict in verdicts) / len(verdicts))
    assert means[0] < 0.45
    assert means[1] > means[0] + 0.08


@pytest.mark.parametrize("given", [{"num_inference_steps": 16}, {"flow_shift": 3.0}])
def test_a_loop_that_the_weights_do_not_assume_is_refused(given):
    with Engine.open("wan-shapes-4step") as engine, pytest.raises(LoopMismatchError, match=next(iter(given))):
        engine.generate("a red circle", **given)
