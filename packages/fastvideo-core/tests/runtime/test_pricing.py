"""Prices of steps of which interceptors leave something out, by a cost model that is a plain formula."""

from __future__ import annotations

import pytest

from fastvideo_core.cost import computed_cost, intercepted_key
from fastvideo_core.loop.base import BranchEstimate, LoopEstimate, StepEstimate
from fastvideo_core.loop.hooks import RunHooks
from fastvideo_core.loop.work import (
    ANYWHERE,
    NO_CACHE,
    BatchKey,
    PluginWork,
    ResourceRequest,
    ShapeSignature,
    StepCost,
    StepResult,
    WorkKind,
    WorkPlan,
)
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.runtime import pricing as module
from fastvideo_core.runtime.estimate import plugin_bytes
from fastvideo_core.runtime.pricing import Pricing

KEY = BatchKey("m", "transformer", "denoise", ShapeSignature.of(tokens=8), "float32", variant="fast")
COST = StepCost(flops=80.0, weight_bytes=8.0, activation_bytes=16.0)


class Formula:
    """A call takes a second, and one for each operation of each plan."""

    def __init__(self):
        self.observed = []

    def predict(self, key, cost, num_plans=1):
        return 1 + num_plans * cost.flops

    def observe(self, key, cost, num_plans, seconds):
        self.observed.append((key, cost, num_plans, seconds))


def plan(step_index=0, signature="a", cost=COST, *, is_intercepted=True):
    return WorkPlan(
        loop_id="denoise",
        instance_id="m",
        kind=WorkKind.DIFFUSION_STEP,
        shape_sig=KEY.shape_sig,
        resources=ResourceRequest(cost),
        cache=NO_CACHE,
        placement=ANYWHERE,
        cancel_scope=CancelScope("request", "r"),
        emits=(),
        batch_key=KEY,
        payload=None,
        step_index=step_index,
        num_steps=4,
        plugins=PluginWork({"hold": None}, {}, signature) if is_intercepted else None,
    )


def gave(share):
    return StepResult(None, computed_share=share)


def hooks(signature="a", **kept):
    return RunHooks({"hold": None}, signature=signature, num_kept=kept)


@pytest.fixture
def costs():
    return Formula()


@pytest.fixture
def pricing(costs):
    return Pricing(costs)


def test_a_plan_without_interceptors_is_the_cost_models(pricing, costs):
    assert pricing.plan_s(plan(is_intercepted=False), 3) == 241
    pricing.learn([plan(is_intercepted=False)] * 2, [gave(1.0)] * 2, 5.0)
    assert costs.observed == [(KEY, COST, 2, 5.0)]


def test_what_was_left_out_is_observed_as_what_it_was(pricing, costs):
    pricing.learn([plan()], [gave(0.0)], 0.25)
    pricing.learn([plan()], [gave(0.125)], 0.5)
    pricing.learn([plan()], [gave(1.0)], 2.0)
    part, whole = KEY._replace(variant="fast+hold/part"), KEY._replace(variant="fast+hold")
    assert costs.observed == [
        (part, StepCost(0.0, 0.0, 0.0), 1, 0.25),
        (part, StepCost(10.0, 1.0, 2.0), 1, 0.5),
        (whole, COST, 1, 2.0),
    ]


def test_plans_of_one_call_are_observed_by_the_mean_of_what_was_computed(pricing, costs):
    pricing.learn([plan(0), plan(1)], [gave(1.0), gave(0.0)], 3.0)
    # Half of the operations a plan, and the weights once, since one of the two has read them.
    assert costs.observed == [(KEY._replace(variant="fast+hold"), StepCost(40.0, 8.0, 8.0), 2, 3.0)]


def test_each_position_is_priced_by_what_was_seen_there(pricing):
    assert pricing.plan_s(plan(0)) == pricing.plan_s(plan(1)) == 81, "nothing is known: all is taken to be computed"
    for _ in range(3):
        pricing.learn([plan(0)], [gave(1.0)], 1.0)
        pricing.learn([plan(1)], [gave(0.0)], 1.0)
    assert pricing.plan_s(plan(0)) == 81
    assert pricing.plan_s(plan(1)) == 1
    assert pricing.plan_s(plan(1), 5) == 1
    assert pricing.plan_s(plan(1, "other options")) == 81
    assert pricing.plan_s(plan(2)) == 81


def test_a_position_that_varies_is_priced_by_the_mean_and_follows_changes(pricing):
    for share in (0.0, 1.0):
        pricing.learn([plan(1)], [gave(share)], 1.0)
    assert pricing.plan_s(plan(1)) == pytest.approx((1 + 81) / 2)
    for _ in range(40):
        pricing.learn([plan(1)], [gave(0.5)], 1.0)
    assert pricing.plan_s(plan(1)) == pytest.approx(41, rel=1e-3)


def test_a_whole_loop_is_priced_by_the_mean_over_its_positions(pricing):
    kind = StepEstimate(KEY, COST, 4)
    assert pricing.kind_s(kind, hooks()) == pricing.kind_s(kind, None) == 81
    for index, share in enumerate((1.0, 0.0, 0.0, 0.5)):
        pricing.learn([plan(index)], [gave(share)], 1.0)
    assert 4 * pricing.kind_s(kind, hooks()) == pytest.approx(81 + 1 + 1 + 41)
    assert pricing.kind_s(kind, hooks("other options")) == 81
    assert pricing.kind_s(kind, None) == 81
    prices = sum(pricing.plan_s(plan(index)) for index in range(4))
    assert 4 * pricing.kind_s(kind, hooks()) == pytest.approx(prices), "the steps add up to the loop"


def test_no_more_is_remembered_than_has_a_place(pricing, monkeypatch):
    monkeypatch.setattr(module, "_MAX_PLACES", 3)
    for number in range(10):
        pricing.learn([plan(0, f"options {number}")], [gave(0.0)], 1.0)
    assert len(pricing._seen) == 3
    assert pricing.plan_s(plan(0, "options 9")) == 1
    assert pricing.plan_s(plan(0, "options 1")) == 81


def test_interceptors_make_kinds_of_work_of_their_own():
    assert intercepted_key(KEY, (), is_whole=False) == KEY
    assert intercepted_key(KEY, ("a", "b"), is_whole=True).variant == "fast+a+b"
    assert computed_cost([COST, COST], [1.0, 1.0]) is COST


@pytest.mark.parametrize(
    ("branches", "kept", "expected"),
    [
        (BranchEstimate(2, 1, 100, 1000), {"step": 3.0}, 2 * (1 + 1) * 300),
        (BranchEstimate(2, 2, 100, 1000), {"block": 3.0}, 2 * (2 + 1) * 3000),
        (BranchEstimate(1, 1, 100, 1000), {"step": 0.5, "block": 1.0}, 2 * 1050),
        (BranchEstimate(1, 1, 100, 1000), {}, 0),
        (None, {"step": 3.0}, 0),
    ],
)
def test_a_loop_is_admitted_with_what_interceptors_keep(branches, kept, expected):
    """A state for each branch of each component, and those that a step makes beside the old ones."""
    assert plugin_bytes(LoopEstimate((), branches=branches), hooks(**kept)) == expected
    assert plugin_bytes(LoopEstimate((), branches=branches), None) == 0
