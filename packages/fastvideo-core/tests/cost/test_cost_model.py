from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastvideo_core.cost import STATED_PRIOR, CostLine, CostModel, DeviceIdentity, GroupKey, mean_cost
from fastvideo_core.errors import ParameterError, StateError
from fastvideo_core.loop.work import BatchKey, ShapeSignature, StepCost

DEVICE = DeviceIdentity("cpu", "Test CPU", 2)
MACHINE = CostLine(call_s=3e-3, plan_s=2e-4, flop_s=1.5e-11, byte_s=2e-10)
WEIGHT_BYTES = 8e6


def key_of(tokens=960, *, component="transformer", loop_kind="denoise.step", **fields):
    shape = ShapeSignature.of(tokens=tokens)
    return BatchKey("model", component, loop_kind, shape, fields.pop("precision", "float32"), **fields)


def cost_of(tokens, rows=1):
    return StepCost(rows * (4e6 * tokens + 500.0 * tokens**2), WEIGHT_BYTES, rows * 4e4 * tokens)


def true_seconds(machine, cost, num_plans):
    moved = cost.weight_bytes + num_plans * cost.activation_bytes
    return (
        machine.call_s + machine.plan_s * num_plans + machine.flop_s * num_plans * cost.flops + machine.byte_s * moved
    )


def feed(model, machine, sizes, *, noise=0.0, seed=0, repeats=1, **fields):
    draw = random.Random(seed)
    for _ in range(repeats):
        for tokens, rows, num_plans in sizes:
            cost = cost_of(tokens, rows)
            seconds = true_seconds(machine, cost, num_plans) * math.exp(draw.gauss(0.0, noise))
            model.observe(key_of(tokens, **fields), cost, num_plans, seconds)


SIZES = [(tokens, rows, n) for tokens in (64, 240, 960, 1500) for rows in (1, 2) for n in (1, 2, 4, 8)]


def test_a_size_that_was_seen_is_predicted_from_its_own_calls():
    model = CostModel(DEVICE)
    cost = cost_of(960)
    for seconds in (0.2, 0.2, 0.2):
        model.observe(key_of(), cost, 3, seconds)
    assert model.predict(key_of(), cost, 3) == pytest.approx(0.2)
    # One guided and one plain plan of the same batch key are two sizes.
    assert model.predict(key_of(), cost_of(960, rows=2), 3) > model.predict(key_of(), cost, 3)


def test_unseen_shapes_and_batches_of_a_linear_machine_are_predicted_within_two_percent():
    model = CostModel(DEVICE)
    feed(model, MACHINE, SIZES)
    for tokens, rows, num_plans in [(100, 1, 3), (500, 2, 5), (1200, 1, 1), (1200, 2, 7), (3000, 1, 2)]:
        cost = cost_of(tokens, rows)
        truth = true_seconds(MACHINE, cost, num_plans)
        assert model.predict(key_of(tokens), cost, num_plans) == pytest.approx(truth, rel=0.02)


def test_a_single_measured_call_says_how_much_faster_than_the_prior_a_machine_is():
    model = CostModel(DEVICE, prior=MACHINE)
    cost = cost_of(960)
    model.observe(key_of(), cost, 1, true_seconds(MACHINE, cost, 1) / 10)
    larger = cost_of(3840)
    assert model.predict(key_of(3840), larger, 2) == pytest.approx(true_seconds(MACHINE, larger, 2) / 10, rel=1e-6)


def test_a_machine_that_is_not_linear_is_followed_by_the_curve():
    def seconds(num_plans):
        return 0.01 + 0.02 * num_plans**0.7

    model = CostModel(DEVICE)
    cost = cost_of(960)
    for num_plans in (1, 2, 4, 8, 16):
        for _ in range(4):
            model.observe(key_of(), cost, num_plans, seconds(num_plans))
    for num_plans in (3, 6, 12):
        assert model.predict(key_of(), cost, num_plans) == pytest.approx(seconds(num_plans), rel=0.05)


@settings(max_examples=40)
@given(
    st.tuples(*(st.floats(lowest, lowest * 1e3) for lowest in (1e-5, 1e-6, 1e-13, 1e-12))),
    st.integers(0, 2**16),
)
def test_it_converges_on_noisy_synthetic_machines(coefficients, seed):
    machine = CostLine(*coefficients)
    model = CostModel(DEVICE)
    feed(model, machine, SIZES, noise=0.1, seed=seed, repeats=12)
    for tokens, rows, num_plans in SIZES:
        cost = cost_of(tokens, rows)
        truth = true_seconds(machine, cost, num_plans)
        assert model.predict(key_of(tokens), cost, num_plans) == pytest.approx(truth, rel=0.15)
    unseen = cost_of(600, 2)
    assert model.predict(key_of(600), unseen, 3) == pytest.approx(true_seconds(machine, unseen, 3), rel=0.2)


def test_cold_first_calls_and_stalls_do_not_move_predictions():
    model = CostModel(DEVICE)
    draw = random.Random(3)
    for repeat in range(20):
        for tokens, rows, num_plans in SIZES:
            cost = cost_of(tokens, rows)
            seconds = true_seconds(MACHINE, cost, num_plans)
            slow = 8.0 if repeat == 0 else 20.0 if draw.random() < 0.1 else 1.0
            model.observe(key_of(tokens), cost, num_plans, seconds * slow)
    for tokens, rows, num_plans in [*SIZES, (600, 1, 3)]:
        cost = cost_of(tokens, rows)
        truth = true_seconds(MACHINE, cost, num_plans)
        assert model.predict(key_of(tokens), cost, num_plans) == pytest.approx(truth, rel=0.1)


def test_a_machine_that_becomes_slower_for_good_is_followed():
    model = CostModel(DEVICE)
    for seconds in [0.1] * 50 + [0.4] * 6:
        model.observe(key_of(), cost_of(960), 1, seconds)
    assert model.predict(key_of(), cost_of(960)) == pytest.approx(0.4, rel=0.05)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 4000), st.integers(1, 3), st.integers(1, 16), st.floats(1e-7, 1e4, allow_subnormal=False)
        ),
        max_size=40,
    ),
    st.integers(5000, 9000),
    st.lists(st.floats(0, 1e15), min_size=2, max_size=6),
    st.integers(1, 32),
)
def test_predictions_are_finite_nonnegative_and_rise_with_the_operations(calls, tokens, flops, num_plans):
    model = CostModel(DEVICE)
    for seen_tokens, rows, seen_plans, seconds in calls:
        model.observe(key_of(seen_tokens), cost_of(seen_tokens, rows), seen_plans, seconds)
    costs = [StepCost(value, WEIGHT_BYTES, 1e6) for value in sorted(flops)]
    predicted = [model.predict(key_of(tokens), cost, num_plans) for cost in costs]
    assert all(math.isfinite(value) and value >= 0 for value in predicted)
    assert all(b >= a * (1 - 1e-12) for a, b in pairwise(predicted))
    upper = [model.predict_conservative(key_of(tokens), cost, num_plans) for cost in costs]
    assert all(high >= mean for high, mean in zip(upper, predicted, strict=True))


@settings(max_examples=25)
@given(st.integers(0, 2**16), st.integers(0, 60))
def test_a_model_that_was_saved_predicts_the_same_after_a_restart(tmp_path_factory, seed, num_calls):
    path = tmp_path_factory.mktemp("cost") / "cost.json"
    draw = random.Random(seed)
    model = CostModel(DEVICE, prior=MACHINE, lines={GroupKey("model", "vae", "decode", "float32"): MACHINE})
    for _ in range(num_calls):
        tokens, rows, num_plans = draw.choice(SIZES)
        component = draw.choice(["transformer", "text_encoder"])
        model.observe(key_of(tokens, component=component), cost_of(tokens, rows), num_plans, draw.uniform(1e-4, 1.0))
    model.save(path)
    for again in (CostModel.load(path, device=DEVICE), CostModel.from_json(json.loads(json.dumps(model.to_json())))):
        for tokens, rows, num_plans in [*SIZES, (77, 1, 3), (5000, 3, 9)]:
            for component in ("transformer", "text_encoder", "vae"):
                arguments = (key_of(tokens, component=component), cost_of(tokens, rows), num_plans)
                assert again.predict(*arguments) == model.predict(*arguments)
                assert again.predict_conservative(*arguments) == model.predict_conservative(*arguments)
        assert again.report() == model.report()


def test_calibration_goes_on_after_a_restart(tmp_path):
    model = CostModel(DEVICE)
    feed(model, MACHINE, SIZES)
    model.save(tmp_path / "cost.json")
    again = CostModel.load(tmp_path / "cost.json")
    feed(again, MACHINE, SIZES)
    assert again.report().num_observations == 2 * len(SIZES)
    assert again.report().groups[0].num_sizes == len(SIZES)


def test_a_known_size_that_is_seen_again_after_a_restart_leaves_unknown_ones_to_the_line(tmp_path):
    model = CostModel(DEVICE)
    for _ in range(4):
        feed(model, MACHINE, SIZES)
    model.save(tmp_path / "cost.json")
    again = CostModel.load(tmp_path / "cost.json")
    tokens, rows, num_plans = SIZES[0]
    again.observe(
        key_of(tokens),
        cost_of(tokens, rows),
        num_plans,
        model.predict(key_of(tokens), cost_of(tokens, rows), num_plans),
    )
    unknown = (key_of(tokens), cost_of(tokens, rows), num_plans + 1)
    assert again.predict(*unknown) == pytest.approx(model.predict(*unknown), rel=0.2)


def test_new_weights_and_adapters_keep_calibration_and_precision_does_not():
    model = CostModel(DEVICE)
    model.observe(key_of(weights_version="w1"), cost_of(960), 1, 0.5)
    assert model.predict(key_of(weights_version="w2", adapters=(("a", "1"),)), cost_of(960)) == 0.5
    other = model.report().groups[0].key._replace(precision="bfloat16")
    assert other not in [group.key for group in model.report().groups]


def test_many_versions_of_weights_do_not_fill_the_memory():
    model = CostModel(DEVICE)
    cost = cost_of(960)
    model.observe(key_of(), cost, 1, 0.5)
    for version in range(10_000):
        assert model.predict(key_of(weights_version=f"w{version}"), cost) == 0.5
    assert len(model._by_key) <= 4096


def test_endless_new_sizes_do_not_fill_the_memory():
    model = CostModel(DEVICE)
    for length in range(3000):
        cost = StepCost(1e6 + length, 1e6, 0.0)
        model.observe(key_of(length % 7), cost, 1, true_seconds(MACHINE, cost, 1))
    (group,) = model.report().groups
    assert group.num_observations == 3000
    assert group.num_sizes <= 256
    assert sum(len(table.points) for table in model._groups[group.key].shapes.values()) == group.num_sizes


def test_unknown_work_is_priced_like_the_likest_known_work():
    model = CostModel(DEVICE)
    slow = CostLine(*(10 * value for value in MACHINE))
    feed(model, MACHINE, SIZES)
    feed(model, slow, SIZES, component="vae", loop_kind="decode")
    cost = cost_of(500)
    truth = true_seconds(MACHINE, cost, 2)
    # Exact numerics of the same step are likest the fast ones of the same step, not the VAE's.
    assert model.predict(key_of(500, variant="exact"), cost, 2) == pytest.approx(truth, rel=0.05)
    assert model.predict(key_of(500, component="vae", loop_kind="decode", precision="bfloat16"), cost, 2) == (
        pytest.approx(10 * truth, rel=0.05)
    )


def test_guesses_for_unknown_work_follow_the_first_measurements_of_other_work():
    model = CostModel(DEVICE)
    before = model.predict(key_of(500, variant="exact"), cost_of(500))
    feed(model, CostLine(*(1000 * value for value in MACHINE)), SIZES)
    assert model.predict(key_of(500, variant="exact"), cost_of(500)) > 10 * before


def test_given_lines_price_work_without_measurements_or_torch():
    key = GroupKey("model", "transformer", "denoise.step", "float32")
    model = CostModel(DeviceIdentity("cuda", "A simulated device"), lines={key: MACHINE})
    cost = cost_of(700)
    assert model.predict(key_of(700), cost, 4) == pytest.approx(true_seconds(MACHINE, cost, 4), rel=1e-12)
    again = CostModel.from_json(model.to_json())
    assert again.predict(key_of(700), cost, 4) == model.predict(key_of(700), cost, 4)


def test_the_upper_figure_is_stayed_under_by_nine_of_ten_calls():
    model = CostModel(DEVICE)
    draw = random.Random(5)
    num_under = 0
    for index in range(600):
        upper = model.predict_conservative(key_of(), cost_of(960), 2)
        seconds = 0.1 * math.exp(draw.gauss(0.0, 0.2))
        num_under += index >= 100 and seconds <= upper
        model.observe(key_of(), cost_of(960), 2, seconds)
    assert 0.84 <= num_under / 500 <= 0.96


def test_the_report_tells_errors_of_predictions_made_before_their_observations():
    model = CostModel(DEVICE, prior=MACHINE)
    cost = cost_of(960)
    truth = true_seconds(MACHINE, cost, 1)
    model.observe(key_of(), cost, 1, truth / 2)
    (group,) = model.report().groups
    assert group.errors.median == pytest.approx(1.0)
    assert list(group.by_level) == ["prior"]
    for _ in range(20):
        model.observe(key_of(), cost, 1, truth / 2)
    report = model.report()
    assert report.errors.median == pytest.approx(0.0, abs=1e-12)
    assert report.groups[0].by_level["seen"].num_predictions == 20
    assert json.loads(json.dumps(report.to_json()))["groups"][0]["key"]["loop_kind"] == "denoise.step"


def test_plans_of_unequal_cost_share_a_call_by_their_mean():
    plain, guided = cost_of(960, 1), cost_of(960, 2)
    mixed = mean_cost([plain, guided, guided])
    assert mixed.flops * 3 == pytest.approx(plain.flops + 2 * guided.flops)
    assert mixed.weight_bytes == WEIGHT_BYTES
    assert mean_cost([plain, plain]) is plain


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_times_that_no_call_takes_are_refused(seconds):
    with pytest.raises(ParameterError, match="seconds="):
        CostModel(DEVICE).observe(key_of(), cost_of(1), 1, seconds)


@pytest.mark.parametrize("cost", [StepCost(math.nan), StepCost(-1.0), StepCost(1.0, math.inf), StepCost(1.0, 0, -2)])
def test_costs_that_make_no_sense_are_refused(cost):
    with pytest.raises(ParameterError, match="cost\\."):
        CostModel(DEVICE).predict(key_of(), cost)
    with pytest.raises(ParameterError, match="cost\\."):
        CostModel(DEVICE).observe(key_of(), cost, 1, 1.0)


def test_a_call_without_plans_is_refused():
    with pytest.raises(ParameterError, match="num_plans=0"):
        CostModel(DEVICE).predict(key_of(), cost_of(1), 0)


def test_work_that_costs_nothing_is_priced_all_the_same():
    model = CostModel(DEVICE)
    nothing = StepCost(0.0)
    assert model.predict(key_of(), nothing) == pytest.approx(STATED_PRIOR.call_s + STATED_PRIOR.plan_s)
    model.observe(key_of(), nothing, 1, 0.25)
    assert model.predict(key_of(), nothing) == 0.25
    assert math.isfinite(model.predict(key_of(1), StepCost(1e9)))


def test_the_package_imports_no_torch():
    code = "import sys, fastvideo_core.cost; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_prior_is_measured_once_and_only_when_it_is_needed():
    calls = []

    def prior():
        calls.append(1)
        return MACHINE

    model = CostModel(DEVICE, prior=prior)
    assert not calls
    model.predict(key_of(), cost_of(960))
    model.predict(key_of(1), cost_of(1))
    assert len(calls) == 1


def test_known_sizes_are_looked_up_fast():
    model = CostModel(DEVICE)
    key, cost = key_of(), cost_of(960)
    model.observe(key, cost, 8, 0.1)
    predict = model.predict
    best_s = math.inf
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(500):
            predict(key, cost, 8)
        best_s = min(best_s, (time.perf_counter() - start) / 500)
    # Ten times what it takes, so that a busy machine passes and a refit in the hot path does not.
    assert best_s < 4e-6


def test_files_of_another_device_are_refused(tmp_path):
    model = CostModel(DEVICE)
    feed(model, MACHINE, SIZES)
    path = tmp_path / "cost.json"
    model.save(path)
    other = DEVICE._replace(num_threads=16)
    with pytest.raises(StateError, match=r"cost\.json has calibrations of Test CPU \(cpu, 2 threads\); this is .* 16"):
        CostModel.load(path, device=other)
    assert CostModel.load(path).device == DEVICE
