"""The commands, on the shipped model and the shipped recipes, for a step or two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastvideo_core.cli.main import main
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_rl.ship import make_card
from fastvideo_rl.train.assemble import make_plan
from fastvideo_rl.train.config import read_config

RECIPES = Path(__file__).parents[1] / "recipes"


@pytest.mark.parametrize("name", ["wan-shapes-4step", "wan-shapes-nft"])
def test_a_recipe_is_a_valid_run_that_ships_a_card_of_its_name(name):
    config = read_config(RECIPES / f"{name}.yaml")
    plan = make_plan(config)
    assert config.result.model_id == name
    assert plan.teacher.model_id == "wan-shapes"
    assert plan.required.value == "C2"
    assert len(plan.prompts.prompts) == 768
    if name == "wan-shapes-4step":
        task = plan.card.task("text_to_video")
        assert task.defaults()["num_inference_steps"] == 4
        assert "guidance_scale" not in task.parameters


@pytest.mark.parametrize("name", ["wan-shapes-4step", "wan-shapes-nft"])
def test_the_shipped_card_was_made_by_its_recipe(name, tmp_path):
    """All but the steps, of which a run may be cut short."""
    plan = make_plan(read_config(RECIPES / f"{name}.yaml"))
    shipped = Catalog.installed().find(name)
    expected = make_card(plan, tmp_path, num_steps=0, gate=None, figures={})
    assert shipped.title == expected.title
    assert shipped.loops == expected.loops
    assert shipped.recipe.model_copy(update={"settings": {}}) == expected.recipe.model_copy(update={"settings": {}})
    ours, theirs = (
        {key: value for key, value in card.recipe.settings.items() if key != "steps_done"}
        for card in (shipped, expected)
    )
    assert ours == theirs
    assert shipped.recipe.settings["steps_done"] <= plan.config.num_steps


@pytest.fixture
def run_file(tmp_path):
    (tmp_path / "prompts.txt").write_text("a red circle moving right\na blue square at rest\n")
    config = {
        "card": "wan-shapes",
        "output": "run",
        "method": {"name": "diffusion_nft", "options": {"timesteps_per_sample": 1}},
        "prompts": "prompts.txt",
        "rollout": {
            "group_size": 2,
            "parameters": {"num_frames": 13, "height": 48, "width": 48, "num_inference_steps": 2},
        },
        "rewards": [{"name": "shapes"}, {"name": "shapes-centre", "weight": 0.5}],
        "evaluation": {"bars": {"shapes": {"max_loss": 0.5}}},
        "result": {"model_id": "trained"},
        "num_steps": 1,
    }
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(config))
    return path


def test_train_resume_eval_and_compare(run_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fastvideo_rl.evaluation.NUM_FIGURES", 2)
    other = str(tmp_path / "other")
    assert main(["rl", "train", "--config", str(run_file)]) == 0
    said = capsys.readouterr()
    assert "step 1/1" in said.err
    assert "reward" in said.err
    assert "C2: rollout equals serving to the bit" in said.err
    card = said.out.split(":")[0].strip()
    assert Path(card, "card.json").is_file()

    document = json.loads(run_file.read_text())
    run_file.write_text(json.dumps({**document, "num_steps": 2}))
    assert main(["rl", "resume", "--config", str(run_file), "--quiet"]) == 0
    assert [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()] == [
        1,
        2,
    ]
    capsys.readouterr()

    assert main(["rl", "eval", "--config", str(run_file), "--num-samples", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["card"], found["beside"], found["num_samples"]) == ("trained", "wan-shapes", 2)
    for card_id in ("trained", "wan-shapes"):
        means = {name: row[card_id] for name, row in found["rewards"].items()}
        assert means["reward"] == pytest.approx(means["shapes"] + 0.5 * means["shapes-centre"])
    assert found["rewards"]["shapes"]["is_met"] is not None and found["rewards"]["reward"]["is_met"] is None

    sheet = tmp_path / "pair.png"
    arguments = ["wan-shapes", card, "--config", str(run_file), "--num-samples", "2", "-o", str(sheet)]
    assert main(["rl", "compare", *arguments]) == 0
    table = capsys.readouterr().out
    assert "wan-shapes" in table
    assert "second is better" in table
    assert sheet.read_bytes().startswith(b"\x89PNG")

    assert main(["rl", "resume", "--config", str(run_file), "--run-folder", other]) == 1
    assert "holds no checkpoint" in capsys.readouterr().err


def test_a_config_that_is_wrong_is_refused_in_one_line(run_file, capsys):
    document = json.loads(run_file.read_text())
    run_file.write_text(json.dumps({**document, "method": {"name": "diffusion-nft"}}))
    assert main(["rl", "train", "--config", str(run_file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no such method" in line
    assert "nearest: diffusion_nft" in line
    assert main(["rl", "eval", "--config", "nowhere.yaml"]) == 2


def test_what_cannot_be_had_is_said_before_samples_are_made(run_file, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("fastvideo_rl.evaluation.open_engine", lambda *_, **__: pytest.fail("samples are made"))
    taken = tmp_path / "taken.png"
    taken.touch()
    for command in (["eval", "--card", "wan-shapes-causal"], ["compare", "wan-shapes", "wan-shapes"]):
        assert main(["rl", *command, "--config", str(run_file), "-o", str(taken)]) == 2
        assert "nothing is written over" in capsys.readouterr().err
    assert main(["rl", "compare", "wan-shapes", "wan-shapez", "--config", str(run_file)]) == 2
    assert "nearest: wan-shapes" in capsys.readouterr().err
