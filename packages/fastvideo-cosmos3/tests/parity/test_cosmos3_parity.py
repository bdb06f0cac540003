"""What the card declares runs from the command line, and notices a model that is not the reference's.

The whole ladder is run by the contract suite.
"""

from __future__ import annotations

import json

import pytest
import torch

from fastvideo_core.cli.main import main
from fastvideo_core.parity import run_ladder
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.loading import load_instance
from fastvideo_cosmos3.testing import write_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def only(card, *names):
    tests = tuple(one for one in card.parity.tests if one.test_id in names)
    return card.model_copy(update={"parity": card.parity.model_copy(update={"tests": tests})})


def test_every_task_is_declared_against_a_reference(folder):
    tests = {one.test_id: one for one in Catalog.installed().read_folder(folder).parity.tests}
    assert {one.reference for one in tests.values()} == {"diffusers", "transformers"}
    assert {name for name, one in tests.items() if one.level.value == "C1"} == {"tasks", "answers", "omni"}
    assert all(one.max_relative_error == 1e-5 for one in tests.values())
    assert tests["tasks"].exact_bits


def test_answers_are_measured_by_the_command(folder, capsys):
    assert main(["parity", str(folder), "--reference", "transformers", "--seed", "5", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is True
    measured = {one["name"]: one for check in report["checks"] for one in check["measurements"]}
    for shown in ("text", "image", "video"):
        assert measured[f"about {shown}: tokens"]["is_equal"]
        assert measured[f"about {shown}: logits"]["max_relative"] <= 1e-5


def test_sizes_are_for_the_tasks_that_have_them(folder, capsys):
    assert main(["parity", str(folder), "--height", "40", "--reference", "diffusers"]) == 2
    assert "height=40: not a valid value; allowed: integer of the form 16k" in capsys.readouterr().err


def test_a_flat_checkpoint_is_held_against_both(tmp_path):
    flat = write_checkpoint(tmp_path / "flat", layout="flat")
    card = only(Catalog.installed().read_folder(flat), "transformer", "reasoner", "vision")
    report = run_ladder(card, load_instance(card, device="cpu", precision="float32"), flat)
    assert [(one.spec.test_id, one.status, one.reason) for one in report.checks] == [
        ("transformer", "passed", ""), ("reasoner", "passed", ""), ("vision", "passed", ""),
    ]  # fmt: skip


def test_a_wrong_weight_is_noticed_where_it_is(folder):
    card = only(Catalog.installed().read_folder(folder), "transformer", "reasoner", "vae-decode", "sound-decode")
    instance = load_instance(card, device="cpu", precision="float32")
    with torch.no_grad():
        instance.component("transformer").proj_out.weight[0, 0] += 1e-2
        instance.component("sound_tokenizer").decoder.conv2.weight_g[0] += 1e-2
    status = {one.spec.test_id: one.status for one in run_ladder(card, instance, folder).checks}
    assert status == {"transformer": "failed", "reasoner": "passed", "vae-decode": "passed", "sound-decode": "failed"}
