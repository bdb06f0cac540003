"""What is said of a run's result: alone, beside another card, and against the config's bars."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fastvideo_core.errors import ConfigError, InputError
from fastvideo_rl.evaluation import Scores, compare, differences, evaluate, find_result, ship_run
from fastvideo_rl.train.assemble import make_plan
from fastvideo_rl.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("varied_rewards")


def test_cards_are_scored_alone_and_side_by_side(config, tmp_path):
    chosen = config(num_steps=1)
    plan = make_plan(chosen)
    assert find_result(plan) == chosen.card
    with Trainer(plan) as trainer:
        trainer.run()
        folder = ship_run(trainer)
    assert find_result(plan) == str(folder)
    scores = evaluate(plan, str(folder), 4, sheet=tmp_path / "sheet.png")
    assert scores.means["reward"] == pytest.approx(np.mean(scores.rows["reward"]))
    assert (tmp_path / "sheet.png").is_file()
    one, other, better = compare(plan, [chosen.card, str(folder)], 4)
    assert one.card != other.card
    assert other.rows == scores.rows
    assert better["reward"] == np.mean(np.array(other.rows["reward"]) > np.array(one.rows["reward"]))


def test_differences_say_what_was_gained_of_what_was_missing(config):
    bars = {"near": {"max_loss": 0.02}, "far": {"min_gain": 0.5}, "reward": {"max_loss": 0.0}}
    rewards = [
        {"name": "shapes-centre", "as_name": "near"}, {"name": "shapes-centre", "as_name": "far"},
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"evaluation.bars='reward': no such reward.*near, far"):
        make_plan(config(evaluation={"rewards": rewards, "bars": bars}))
    del bars["reward"]
    plan = make_plan(config(evaluation={"rewards": rewards, "bars": bars}))
    one = Scores("a", {"near": 0.9, "far": 0.2}, {}, {"near": [1.0, 0.8], "far": [0.0, 0.4]}, [])
    for after, gained, met in ((0.885, 0.625, [True, True]), (0.87, 0.375, [False, False])):
        far = 0.2 + gained * 0.8
        other = Scores(
            "b", {"near": after, "far": far}, {}, {"near": [after, after], "far": [far + 0.1, far - 0.1]}, []
        )
        found = differences(plan, one, other)
        assert [row.is_met for row in found] == met
        assert found[1].gained == pytest.approx(gained)
        assert found[1].error == pytest.approx(np.std([far + 0.1, far - 0.5]) / math.sqrt(2))
        assert found[0].bar == "not lower by more than 0.02" and found[1].bar == "gains 50% of what is missing"
    full = Scores("c", {"near": 1.0, "far": 1.0}, {}, {"near": [1.0], "far": [1.0]}, [])
    assert [(row.gained, row.is_met) for row in differences(plan, full, full)] == [(None, True)] * 2


def test_a_result_is_judged_on_prompts_and_by_rewards_of_its_own(config, tmp_path):
    held_out = tmp_path / "held-out.txt"
    held_out.write_text("a yellow box\n")
    chosen = config(evaluation={"prompts": str(held_out), "rewards": [{"name": "shapes-centre", "as_name": "near"}]})
    scores = evaluate(make_plan(chosen), chosen.card, 2)
    assert set(scores.means) == {"reward", "near"} and scores.num_samples == 2
    plan = make_plan(chosen)
    assert plan.fingerprint == make_plan(config()).fingerprint
    assert plan.judged_prompts.prompts == ("a yellow box",)
    held_out.unlink()
    with pytest.raises(ConfigError, match=r"evaluation.prompts=.*cannot be read"):
        make_plan(chosen)


def test_a_result_is_judged_on_samples_as_the_config_says(config, size):
    plain, wide = config(), config(evaluation={"parameters": {**size, "width": 48}})
    assert make_plan(plain).judged_parameters == plain.rollout.parameters
    assert make_plan(plain).fingerprint == make_plan(wide).fingerprint
    assert evaluate(make_plan(wide), wide.card, 1).clips_FYX3[0].shape == (5, 32, 48, 3)
    with pytest.raises(InputError, match=r"widht=48.*nearest: width"):
        make_plan(config(evaluation={"parameters": {"widht": 48}}))
