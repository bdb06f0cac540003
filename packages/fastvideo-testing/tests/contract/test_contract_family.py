"""The suite passes the tiny family, and each of its checks catches a family that breaks that promise."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from fastvideo_core.card import ParitySpec, ParityTestSpec
from fastvideo_core.errors import ParityError
from fastvideo_core.loop.base import BranchEstimate, LoopEstimate
from fastvideo_core.loop.work import StepCost, StepResult
from fastvideo_testing.contract import ContractError, ModelFamilyContract, family, kept
from fastvideo_testing.tiny import denoise

SMALL = {"num_frames": 5, "height": 16, "width": 16}
LARGER = {"num_frames": 5, "height": 32, "width": 32}


class TestTiny(ModelFamilyContract):
    @pytest.fixture
    def card(self, tiny_card):
        return tiny_card


@pytest.fixture
def with_loop(tiny_card):
    """Return the tiny card with parts of one loop replaced."""

    def change(loop_id="denoise", **fields):
        loop = tiny_card.loops[loop_id].model_copy(update=fields)
        return tiny_card.model_copy(update={"loops": {**tiny_card.loops, loop_id: loop}})

    return change


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"state_schema": "os:getcwd"}, "is no dataclass derived from LoopState"),
        ({"step": "os:nothing"}, "card.loops.denoise.step names 'os:nothing'"),
    ],
)
def test_a_card_that_names_what_is_not_there_is_caught(fields, why, with_loop):
    with pytest.raises(ContractError, match=why):
        family.check_card(with_loop(**fields))


def test_a_card_that_json_does_not_give_back_is_caught(with_loop):
    with pytest.raises(ContractError, match="another one after its JSON is read"):
        family.check_card(with_loop(options={"sizes": (1, 2)}))


@pytest.mark.parametrize(
    ("branches", "why"),
    [
        (None, "lets interceptors in, and its estimate does not say what its branches are like"),
        (BranchEstimate(1, 1, 384, 512), "its estimate says num_branches 1; 2 were met"),
        (BranchEstimate(2, 0, 384, 512), "its estimate says num_components 0; 1 were met"),
        (BranchEstimate(2, 1, 127, 512), "its estimate says prediction_bytes 127; 128 were met"),
        (BranchEstimate(2, 1, 384, 1), "its estimate says stream_bytes 1; [0-9]+ were met"),
        (BranchEstimate(2, 1, 384, 1 << 20), ""),
    ],
)
def test_an_estimate_that_says_too_little_of_branches_is_caught(branches, why, with_loop, made_up):
    card = with_loop(estimate=made_up("estimate", lambda *given, exact: LoopEstimate((), branches=branches)))
    with pytest.raises(ContractError, match=why) if why else nullcontext():
        kept.check_branches(card, SMALL)


class Launching(denoise.DenoiseLoop):
    def next(self, state):
        _ = state.latents_1CTHW + 1
        return super().next(state)


class Changing(denoise.DenoiseLoop):
    def next(self, state):
        plan = super().next(state)
        state.guidance_scale += 0.5
        return plan


class Counting(denoise.DenoiseLoop):
    count = 0

    def next(self, state):
        plan = super().next(state)
        Counting.count += 1
        return plan if not hasattr(plan, "step_index") else replace(plan, num_steps=Counting.count)


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        (Launching, "step 1 of 4 of denoise: next launches aten.add"),
        (Changing, "step 1 of 4 of denoise: next changes the state"),
        (Counting, "next says something else when it is asked again"),
    ],
)
def test_a_next_that_does_more_than_plan_is_caught(loop, why, made_up, with_loop):
    with pytest.raises(ContractError, match=why):
        family.check_next(with_loop(loop=made_up("Loop", loop)), SMALL)


def test_a_state_that_lacks_something_is_caught(tmp_path, with_loop, tmp_path_factory, monkeypatch):
    """A loop that keeps the number of its steps in a module starts anew where that is loaded anew."""
    folder = tmp_path_factory.mktemp("module")
    (folder / "contract_forgetful.py").write_text(
        "from fastvideo_testing.tiny import denoise\n"
        "kept = {}\n"
        "class Loop(denoise.DenoiseLoop):\n"
        "    def advance(self, state, result):\n"
        "        kept['scale'] = kept.get('scale', 1.0) * 1.01\n"
        "        state = super().advance(state, result)\n"
        "        if state.step_index == len(state.sigmas) - 1:\n"
        "            state.latents_1CTHW = state.latents_1CTHW * kept.pop('scale')\n"
        "        return state\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(ContractError, match="something that it needs is not in its state"):
        family.check_fresh_process(with_loop(loop="contract_forgetful:Loop"), SMALL, tmp_path)


def test_what_is_kept_outside_of_states_is_caught(made_up, with_loop):
    kept = {}

    def step(instance, plans, ctx):
        results = []
        for plan, result in zip(plans, denoise.run_step(instance, plans, ctx), strict=True):
            latents = result.values.latents_1CTHW
            if plan.step_index:
                latents = latents + 0.1 * kept["last"].mean()
            kept["last"] = latents
            results.append(StepResult(denoise.DenoiseValues(latents)))
        return results

    with pytest.raises(ContractError, match="request r"):
        family.check_gate(with_loop(step=made_up("step", step)), SMALL)


def test_tensors_that_are_kept_after_a_cancellation_are_caught(made_up, with_loop):
    kept = []

    def step(instance, plans, ctx):
        kept.extend(plan.payload.latents_1CTHW for plan in plans)
        return denoise.run_step(instance, plans, ctx)

    with pytest.raises(ContractError, match="tensors of a cancelled request's states are still there"):
        family.check_cancellation(with_loop(step=made_up("step", step)), SMALL)


class Priced(denoise.DenoiseLoop):
    def price(self, plan):
        return plan.resources.cost.flops

    def next(self, state):
        plan = super().next(state)
        if not hasattr(plan, "resources"):
            return plan
        return replace(plan, resources=replace(plan.resources, cost=StepCost(self.price(plan))))


class Flat(Priced):
    def price(self, plan):
        return 1e6


class Cheap(Priced):
    def price(self, plan):
        return plan.resources.cost.flops / 10


@pytest.mark.parametrize(("loop", "why"), [(Flat, "larger steps cost 4e"), (Cheap, "allowed: a factor of 2")])
def test_costs_that_make_no_sense_are_caught(loop, why, made_up, with_loop):
    family.check_costs(with_loop(), SMALL, LARGER)
    with pytest.raises(ContractError, match=why):
        family.check_costs(with_loop(loop=made_up("Loop", loop)), SMALL, LARGER)


def test_a_parity_declaration_that_does_not_hold_or_run_is_caught(made_up, tiny_card):
    def check(context):
        raise ParityError("the reference is not installed")

    spec = ParityTestSpec(
        test_id="loop", level="C1", subject="denoise", reference="none", check=made_up("check", check)
    )
    card = tiny_card.model_copy(update={"parity": ParitySpec(tests=(spec,))})
    with pytest.raises(ContractError, match="loop not_run: .*the reference is not installed"):
        family.check_parity(card)


def test_a_card_that_takes_anything_is_caught(tiny_card, monkeypatch):
    family.check_bad_inputs(tiny_card)
    good = family.prepare_request

    def lenient(card, request):
        return good(card, request.model_copy(update={"parameters": {}}))

    monkeypatch.setattr(family, "prepare_request", lenient)
    with pytest.raises(ContractError, match="takes a wrong 'no_such_parameter'"):
        family.check_bad_inputs(tiny_card)


def test_an_error_without_its_field_is_caught(tiny_card, monkeypatch):
    def vague(card, request):
        if request.parameters:
            raise KeyError("no")
        return np.zeros(1)

    monkeypatch.setattr(family, "prepare_request", vague)
    with pytest.raises(ContractError, match="raises KeyError, no InputError"):
        family.check_bad_inputs(tiny_card)


def test_views_are_no_launches(tiny_card):
    with family._CountCalls() as counted:
        _ = torch.zeros(4)[1:].view(3)
    assert [name for name in counted.names if "zeros" not in name] == []
