"""The gate passes a family that keeps its promises, and catches each way to break them."""

from __future__ import annotations

import sys
import types
from dataclasses import replace

import numpy as np
import pytest
import torch

from fastvideo_core.card import ParitySpec
from fastvideo_core.loop.work import StepResult
from fastvideo_core.runtime.loading import load_instance
from fastvideo_testing.gate import MODES, GateError, Mode, make_plan, run_gate
from fastvideo_testing.gate.pool import Pool, run_alone
from fastvideo_testing.tiny import decode, denoise, text, write_tiny_checkpoint
from fastvideo_testing.tiny.model import TinyTransformer

MADE_UP = "fastvideo_made_up_for_the_gate"
INTERLEAVED = [mode for mode in MODES if mode.name == "interleaved"]
BATCHED = [mode for mode in MODES if mode.name == "batched"]


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def broken(card, monkeypatch):
    """Return the tiny family with one part replaced by what a test has made up."""
    module = types.ModuleType(MADE_UP)
    monkeypatch.setitem(sys.modules, MADE_UP, module)

    def change(loop_id, **parts):
        fields = {}
        for name, part in parts.items():
            if callable(part):
                part.__module__ = MADE_UP
                setattr(module, name, part)
                part = f"{MADE_UP}:{name}"
            fields[name] = part
        loop = card.loops[loop_id].model_copy(update=fields)
        return load_instance(card.model_copy(update={"loops": {**card.loops, loop_id: loop}}))

    change.module = module
    return change


def moved(result, latents):
    return replace(result, values=denoise.DenoiseValues(latents))


def test_the_tiny_family_passes_in_every_mode(card):
    report = run_gate(load_instance(card))
    assert report.card_id == "tiny"
    assert [one.mode for one in report.modes] == list(MODES)
    for one in report.modes:
        assert one.num_switches >= 10
        assert (one.max_batch > 1) == (one.mode.max_batch > 1)
        assert one.relative_error == 0.0 if one.mode.is_exact or one.mode.max_batch == 1 else one.relative_error <= 1e-5


@pytest.mark.parametrize("seed", [1, 2])
def test_a_task_with_an_image_passes_too(seed, card):
    run_gate(load_instance(card), task="image_to_video", seed=seed, num_survivors=3, modes=MODES[2:5])


@pytest.mark.parametrize("modes", [INTERLEAVED, BATCHED, MODES[-2:-1]])
def test_state_on_a_component_fails(modes, broken):
    def step(instance, plans, ctx):
        transformer = instance.component("transformer")
        results = []
        for plan, result in zip(plans, denoise.run_step(instance, plans, ctx), strict=True):
            latents = result.values.latents_1CTHW
            if plan.step_index:  # as a cache of the residual of the step before would
                latents = latents + 0.1 * transformer.kept
            transformer.kept = latents
            results.append(moved(result, latents))
        return results

    text = r"request r\d \(.*\) does not give what it gives alone: .*latents differs in \d+ of \d+ values.*"
    with pytest.raises(GateError, match=text + "kept outside of the state: .*component transformer: kept"):
        run_gate(broken("denoise", step=step), modes=modes)


def test_state_on_the_loop_object_fails(broken):
    class loop(denoise.DenoiseLoop):
        def init(self, request, ctx):
            self.shift = float(request.parameters["guidance_scale"])
            return super().init(request, ctx)

        def next(self, state):
            plan = super().next(state)
            return plan if not hasattr(plan, "payload") else replace(
                plan, payload=replace(plan.payload, guidance_scale=self.shift)
            )  # fmt: skip

    text = r"request r\d \(interleaved\) does not give what it gives alone: .*latents differs"
    with pytest.raises(GateError, match=text + ".*loop object of denoise: shift"):
        run_gate(broken("denoise", loop=loop), modes=INTERLEAVED)


def test_state_in_a_global_fails(broken):
    broken.module.KEPT = {}

    def step(instance, plans, ctx):
        kept, results = sys.modules[MADE_UP].KEPT, []
        for plan, result in zip(plans, denoise.run_step(instance, plans, ctx), strict=True):
            if plan.step_index == 0:
                kept["first"] = result.values.latents_1CTHW
            results.append(moved(result, result.values.latents_1CTHW + 0.01 * kept["first"]))
        return results

    text = r"request r\d \(interleaved\) does not give what it gives alone: .*latents differs"
    with pytest.raises(GateError, match=text + f".*module {MADE_UP}: KEPT"):
        run_gate(broken("denoise", step=step), modes=INTERLEAVED)


def in_place(instance, plans, ctx):
    results = []
    for plan, result in zip(plans, denoise.run_step(instance, plans, ctx), strict=True):
        results.append(moved(result, plan.payload.latents_1CTHW.copy_(result.values.latents_1CTHW)))
    return results


def test_writing_into_a_payload_fails_at_once(broken):
    text = r"request \S+: request:\S+/loop:denoise: step 1 of \d of denoise wrote into the state that it was given"
    with pytest.raises(GateError, match=text + ", before the step was committed: latents_1CTHW$"):
        run_gate(broken("denoise", step=in_place), modes=INTERLEAVED)


def test_writing_into_a_payload_fails_on_the_engine_when_the_step_runs_again(broken):
    """There nobody compares states; but the peers of a failed row have their step applied twice."""
    instance = broken("denoise", step=in_place)
    text = r"request r\d \(engine\) does not give what it gives alone: .*latents differs"
    plan = make_plan(instance.card, faults=("error",) * 3, num_cancelled=0)
    mode = Mode("engine", max_batch=8, runner="engine")
    with pytest.raises(GateError, match=text):
        _run_without_looking(instance, plan, mode)


def _run_without_looking(instance, plan, mode):
    """Run a gate whose requests alone are not looked at: on the engine, like the others."""
    from fastvideo_testing.gate import core

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "run_alone", lambda instance, requests: {
            name: one for request in requests
            for name, one in core.run_on_engine(instance, replace(plan, requests=[request])).items()
        })  # fmt: skip
        return run_gate(instance, plan, modes=[mode])


def test_a_draw_from_the_common_generator_fails(broken):
    def step(instance, plans, ctx):
        return [
            moved(result, result.values.latents_1CTHW + 0.01 * torch.rand(1))
            for result in denoise.run_step(instance, plans, ctx)
        ]

    with pytest.raises(GateError, match=r"request r\d, alone, once more after others: .*latents differs"):
        run_gate(broken("denoise", step=step), modes=INTERLEAVED)


def test_a_row_that_leaks_into_the_others_of_its_batch_fails(broken):
    def step(instance, plans, ctx):
        results = decode.run_step(instance, plans, ctx)
        frames = [result.values.frames_FYXP.float() for result in results]
        mean = sum(one.mean() for one in frames) / len(frames)
        values = [
            replace(one.values, frames_FYXP=(f + mean).to(torch.uint8)) for one, f in zip(results, frames, strict=True)
        ]
        return [replace(one, values=value) for one, value in zip(results, values, strict=True)]

    run_gate(broken("decode", step=step), modes=INTERLEAVED)
    with pytest.raises(GateError, match=r"request r\d \(batched\) does not give .*: video.frames differs"):
        run_gate(broken("decode", step=step), modes=BATCHED)


def test_a_state_that_forgets_a_field_fails(broken):
    class Loop(text.TextLoop):
        def init(self, request, ctx):
            state = super().init(request, ctx)
            hidden[state.scope] = state
            return state

        def finalize(self, state):
            assert hidden[state.scope] is state, "the state is not the one that it was"
            return super().finalize(state)

    hidden = {}
    run_gate(broken("text", loop=Loop), modes=INTERLEAVED)
    with pytest.raises(GateError, match=r"request r\d \(interleaved through bytes\) failed, and does not alone"):
        run_gate(broken("text", loop=Loop), modes=MODES[1:2])


def test_something_that_changes_from_request_to_request_fails_even_where_no_result_shows_it(broken):
    class loop(denoise.DenoiseLoop):
        def init(self, request, ctx):
            self.last_prompt = request.request_id
            return super().init(request, ctx)

    text = "^tiny keeps something of requests outside of their states: loop object of denoise: last_prompt$"
    with pytest.raises(GateError, match=text):
        run_gate(broken("denoise", loop=loop), modes=INTERLEAVED)


def test_a_bound_that_is_too_small_for_the_batch_fails(card):
    strict = card.model_copy(update={"parity": ParitySpec(batch_invariant=True)})
    text = (
        r"request r\d \(batched\) does not give what it gives alone: .*latents differs.*allowed: no other bit, got \d"
    )
    with pytest.raises(GateError, match=text):
        run_gate(load_instance(strict), modes=BATCHED)
    strict = card.model_copy(update={"parity": ParitySpec(batch_max_relative_error=1e-12)})
    with pytest.raises(GateError, match=r"allowed: 1e-12 relative"):
        run_gate(load_instance(strict), modes=BATCHED)


def test_a_request_that_fails_alone_shows_nothing(card):
    plan = make_plan(card, variations=[{}, {"num_frames": 9}])
    instance = load_instance(card)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TinyTransformer, "forward", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(GateError, match="request r0, alone, failed: .*ZeroDivisionError"):
            run_gate(instance, plan)


def test_a_gate_that_would_interleave_or_batch_nothing_says_so(card, broken):
    instance = load_instance(card)
    with pytest.raises(GateError, match="hardly any call was of another request"):
        run_gate(instance, modes=INTERLEAVED, num_survivors=1, num_cancelled=0, faults=())
    with pytest.raises(GateError, match="no call had several plans; give requests of one size, or declare max_batch=1"):
        run_gate(instance, modes=[Mode("batched", max_batch=2)], num_survivors=2, num_cancelled=0, faults=(),
                 variations=[{"height": 16}, {"height": 24}], parameters={"num_frames": 1})  # fmt: skip


def test_a_fault_that_a_loop_hides_is_told(broken):
    def step(instance, plans, ctx):
        return [StepResult(result.values) for result in denoise.run_step(instance, plans, ctx)]

    class loop(denoise.DenoiseLoop):
        def next(self, state):
            plan = super().next(state)
            return replace(plan, step_index=7) if hasattr(plan, "step_index") else plan

    with pytest.raises(
        GateError, match=r"request nan-0 \(interleaved\) was to end with NonFiniteError and ended with None"
    ):
        run_gate(broken("denoise", step=step, loop=loop), modes=INTERLEAVED)


def test_requests_differ_in_all_that_may_differ(card):
    plan = make_plan(card, parameters={"num_frames": 5}, seed=3)
    parameters = [one.parameters for one in plan.requests]
    for name in ("seed", "num_inference_steps", "guidance_scale"):
        assert len({one[name] for one in parameters}) >= 3
    assert {one["num_frames"] for one in parameters} == {5}
    assert [one.request.request_id for one in plan.survivors] == ["r0", "r1", "r2", "r3"]
    assert set(plan.cancelled) == {"cancelled-0"} and {one.kind for one in plan.faults.values()} == {
        "nan",
        "error",
        "memory",
    }
    assert all(one.request.exact for one in plan.as_exact().requests)
    again = make_plan(card, parameters={"num_frames": 5}, seed=3)
    assert [one.parameters.to_json() for one in again.requests] == [one.to_json() for one in parameters]


def test_a_pool_makes_the_same_calls_for_the_same_seed(card):
    instance, orders = load_instance(card), []
    plan = make_plan(card, faults=())
    for seed in (1, 1, 2):
        order = []

        def noted(instance, plans, ctx, order=order):
            order.append([plan.where() for plan in plans])
            return denoise.run_step(instance, plans, ctx)

        instance.steps["denoise"] = noted
        Pool(instance, seed=seed, max_batch=4).run(plan.requests)
        orders.append(order)
    assert orders[0] == orders[1] != orders[2]


def test_a_request_alone_gives_what_the_engine_gives(card):
    from fastvideo_core.runtime.engine import Engine

    instance = load_instance(card)
    request = make_plan(card).requests[0]
    with Engine(instance) as engine:
        expected = engine.submit_prepared(request).result(60)
    (outcome,) = run_alone(instance, [request]).values()
    assert np.array_equal(outcome.artifacts["latents"].latents, expected.latents.latents)
    assert np.array_equal(outcome.artifacts["video"].frames, expected.video.frames)
