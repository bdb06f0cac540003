from __future__ import annotations

import copy

import pytest
import torch

from fastvideo_core.card import ParityLevel
from fastvideo_core.errors import ParameterError, ParityError
from fastvideo_rl.gate.c2 import BehaviorReport, check_behavior, require_behavior
from fastvideo_rl.gate.c3 import compare_distributions
from fastvideo_rl.rollout.roller import GroupPlan
from fastvideo_rl.train.roles import Role, Roles


@pytest.fixture(scope="module")
def roles(engine, roller):
    program = roller.program
    modules = {name: copy.deepcopy(engine.instance.component(name)).requires_grad_(True) for name in program.trained}
    return Roles(engine.card.loops[program.generator.loop], {"student": Role(modules, is_trained=True)})


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("sampler", ["flow_euler", "sde", "dance_sde", "cps"])
def test_training_agrees_with_the_rollout_and_the_rollout_with_serving(roller, roles, size, sampler, scale):
    parameters = {**size, "sampler": sampler, "guidance_scale": scale}
    report = check_behavior(roller, roles, "student", "a thing", parameters)
    assert report.is_served_sample
    assert report.num_steps == 8
    assert report.num_densities == (0 if sampler == "flow_euler" else 6)
    assert report.max_ratio_deviation <= 1e-6
    assert report.level is ParityLevel.C2
    require_behavior(report, ParityLevel.C2)


def test_other_weights_are_noticed_and_training_is_refused(roller, engine, size):
    program = roller.program
    modules = {name: copy.deepcopy(engine.instance.component(name)) for name in program.trained}
    with torch.no_grad():
        next(iter(modules.values())).proj_out.weight.mul_(1.01)
    other = Roles(engine.card.loops[program.generator.loop], {"student": Role(modules, is_trained=False)})
    report = check_behavior(roller, other, "student", "a thing", {**size, "sampler": "sde"})
    assert report.level is ParityLevel.C1
    assert report.max_ratio_deviation > 1e-6
    with pytest.raises(ParityError, match="training needs C2 .* and there is C1"):
        require_behavior(report, ParityLevel.C2)
    require_behavior(report, ParityLevel.C1)


def test_a_rollout_that_is_not_what_is_served_reaches_no_level():
    report = BehaviorReport(False, 4, 0, 0.0, 0.0)
    assert report.level is ParityLevel.C0
    with pytest.raises(ParityError, match="differs from serving"):
        require_behavior(report, ParityLevel.C1)
    require_behavior(report, ParityLevel.C0)


def test_batches_of_another_size_draw_from_the_same_distribution(roller, size):
    parameters = {**size, "sampler": "sde"}
    (together,) = roller.run([GroupPlan("x", tuple(range(16)), parameters)])
    alone = [roller.run([GroupPlan("x", (seed,), parameters)])[0].records[0] for seed in range(100, 116)]
    report = compare_distributions(
        [record.latents_1CTHW for record in together.records], [record.latents_1CTHW for record in alone]
    )
    assert report.is_same
    assert "threshold 0.01" in str(report)


def test_distributions_that_differ_are_told_apart_and_equal_ones_are_not():
    generator = torch.Generator().manual_seed(0)
    one, same, wider = (
        [scale * torch.randn(3, 4, generator=generator) for _ in range(40)] for scale in (1.0, 1.0, 1.6)
    )
    assert compare_distributions(one, same).is_same
    found = compare_distributions(one, wider)
    assert not found.is_same
    assert found.p_value == pytest.approx(1 / 200)
    assert compare_distributions(one, one).statistic == pytest.approx(0.0, abs=1e-6)


def test_the_statistic_is_that_of_its_definition():
    one, other = [torch.tensor([0.0]), torch.tensor([2.0])], [torch.tensor([1.0]), torch.tensor([5.0])]
    between = (1 + 5 + 1 + 3) / 4
    within = (0 + 2 + 2 + 0) / 4 + (0 + 4 + 4 + 0) / 4
    assert compare_distributions(one, other).statistic == pytest.approx(2 * between - within)


def test_tests_that_could_say_nothing_are_refused():
    few = [torch.zeros(1)]
    with pytest.raises(ParameterError, match="too few samples"):
        compare_distributions(few, few * 3)
    with pytest.raises(ParameterError, match="no p-value is that small"):
        compare_distributions(few * 3, few * 3, threshold=0.001)
