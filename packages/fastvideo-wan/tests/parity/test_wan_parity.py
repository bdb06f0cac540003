"""Every declared comparison of every variant, against checkpoints that diffusers itself built and saved."""

from __future__ import annotations

import json

import pytest
import torch

from fastvideo_core.card import resolve_ref
from fastvideo_core.cli.main import main
from fastvideo_core.parity import run_ladder
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.weights.whole import whole_checkpoint
from fastvideo_testing.wan_checkpoints import VARIANTS, build_wan_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

WITH_IMAGE = {"i2v-vision", "a14b-i2v"}
WITH_BOTH = {"ti2v-5b", "dmd-5b"}


@pytest.fixture(scope="module")
def catalog():
    return Catalog.installed()


@pytest.mark.parametrize("variant", VARIANTS)
def test_parity_ladder(catalog, tmp_path, variant):
    folder = build_wan_checkpoint(tmp_path / variant, variant)
    card = catalog.read_folder(folder)
    expected = ["image_to_video"] if variant in WITH_IMAGE else ["text_to_video"]
    assert list(card.capabilities.tasks) == expected + (["image_to_video"] if variant in WITH_BOTH else [])

    report = run_ladder(card, load_instance(card), folder)

    assert [check.reason for check in report.checks if check.status != "passed"] == []
    assert {check.spec.level.value for check in report.checks} == {"C0", "C1"}
    assert all(check.measurements for check in report.checks)
    compared = {
        m.name.split(":")[0] for check in report.checks if check.spec.level.value == "C1" for m in check.measurements
    }
    assert compared == set(card.capabilities.tasks)


@pytest.mark.parametrize("variant", ["t2v", "ti2v-5b"])
def test_parity_on_the_smallest_grid(catalog, tmp_path, variant):
    # Matrices of few rows are where a library's bits depend most on how the work is cut.
    folder = build_wan_checkpoint(tmp_path / variant, variant)
    card = catalog.read_folder(folder)
    grid = card.task("text_to_video").parameters["height"].multiple_of
    report = run_ladder(card, load_instance(card), folder, parameters={"height": grid, "width": grid, "num_frames": 13})
    assert [check.reason for check in report.checks if check.status != "passed"] == []


def test_the_shipped_card_keeps_what_it_declares(catalog):
    card = catalog.find("wan-shapes")
    with whole_checkpoint(card.checkpoint) as folder:
        report = run_ladder(card, load_instance(card), folder)
    assert [check.reason for check in report.checks if check.status != "passed"] == []


def test_flow_shift_is_applied_once_for_every_task(catalog, tmp_path):
    # A shift that is applied twice, or not at all, gives other latents than the reference's: 7 is far from 1 and 49.
    folder = build_wan_checkpoint(tmp_path / "5b", "ti2v-5b")
    config = json.loads((folder / "scheduler/scheduler_config.json").read_text())
    (folder / "scheduler/scheduler_config.json").write_text(json.dumps({**config, "flow_shift": 7.0}))
    card = catalog.read_folder(folder)
    report = run_ladder(card, load_instance(card), folder, reference="diffusers")
    loop = next(check for check in report.checks if check.spec.test_id == "loop")
    assert loop.status == "passed"
    assert {m.name.split(":")[0] for m in loop.measurements} == {"text_to_video", "image_to_video"}


def test_a_wrong_weight_fails_the_ladder(catalog, tmp_path):
    folder = build_wan_checkpoint(tmp_path / "t2v", "t2v")
    card = catalog.read_folder(folder)
    instance = load_instance(card)
    with torch.no_grad():
        instance.component("transformer").proj_out.weight[0, 0] += 1e-2
    report = run_ladder(card, instance, folder)
    status = {check.spec.test_id: check.status for check in report.checks}
    assert status["transformer"] == status["loop"] == "failed"
    assert status["vae-decode"] == status["text-encoder"] == "passed"
    loop = next(check for check in report.checks if check.spec.test_id == "loop")
    assert "first parts at tap 0 (cond.velocity)" in loop.reason


def test_parity_command(tmp_path, capsys):
    folder = build_wan_checkpoint(tmp_path / "t2v", "t2v")
    assert main(["parity", str(folder), "--reference", "diffusers", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is True
    assert [check["test"] for check in report["checks"]][-1] == "loop"


def test_parity_command_with_an_unknown_reference(tmp_path, capsys):
    folder = build_wan_checkpoint(tmp_path / "t2v", "t2v")
    assert main(["parity", str(folder), "--reference", "original"]) == 2
    assert "declares no comparison with it; allowed: diffusers" in capsys.readouterr().err


def test_checks_can_be_imported(catalog):
    for card in catalog.cards.values():
        for spec in card.parity.tests:
            assert callable(resolve_ref(spec.check))
