from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fastvideo_core.errors import InputError, ParameterError, PluginError
from fastvideo_core.loop.base import BranchEstimate, LoopEstimate
from fastvideo_core.loop.driver import LoopRun
from fastvideo_core.loop.hooks import state_key, supports_hooks
from fastvideo_core.loop.state import PluginState, decode_state, encode_state
from fastvideo_core.request.cancel import CancelScope, CancelState
from fastvideo_core.runtime.durable import CheckpointPolicy, StateStore
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.hooks import InstanceHooks
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_testing.samples import (
    HOLD,
    RECORD,
    REUSE,
    HoldInterceptor,
    HoldState,
    PeriodOptions,
    RecordObserver,
    ReuseInterceptor,
    extensions_of,
)
from fastvideo_testing.tiny import denoise, tiny_card
from fastvideo_testing.tiny.denoise import DenoiseState


@pytest.fixture
def card(tiny_folder):
    return tiny_card(tiny_folder)


@pytest.fixture
def open_with(card):
    """Open an engine with some things on."""
    return lambda *specs, options=None, card=card: Engine.open(card, extensions=extensions_of(*specs, options=options))


def latents(engine, prompt="x", plugins=None, **parameters):
    return submit(engine, prompt, plugins, **parameters).result(30).latents.latents


def submit(engine, prompt="x", plugins=None, request_id=None, **parameters):
    request = engine.make_request(prompt, outputs=("latents",), parameters={"seed": 5, **parameters})
    fields = {"plugins": plugins or {}} | ({} if request_id is None else {"request_id": request_id})
    return engine.submit(request.model_copy(update=fields))


def reference(card, held, prompt="x", num_steps=4):
    """Denoise step by step by hand; `held` says for which steps the last prediction is used again."""
    instance = load_instance(card)
    transformer, encoder = instance.component("transformer"), instance.component("text_encoder")
    with torch.no_grad():
        rows = []
        for text in (prompt, ""):
            ids = torch.tensor([list(text.encode()) or [0]])
            mask = torch.ones_like(ids, dtype=torch.float32) * bool(text)
            rows.append(encoder(ids, mask))
        sample = torch.randn((1, 4, 3, 4, 4), generator=torch.Generator().manual_seed(5))
        sigmas = [1 - index / num_steps for index in range(num_steps + 1)]
        for index in range(num_steps):
            if index not in held:
                stacked = torch.cat([sample, sample])
                cond, uncond = transformer(stacked, torch.tensor([sigmas[index]] * 2), torch.cat(rows)).split(1)
            velocity = uncond + 3.0 * (cond - uncond)
            sample = sample + (sigmas[index + 1] - sigmas[index]) * velocity
    return sample[0].numpy()


def test_without_hooks_a_step_body_is_what_the_card_names(card, tiny_folder):
    assert InstanceHooks.of(extensions_of(), card) is None
    assert load_instance(card).steps["denoise"] is denoise.run_step
    hooks = InstanceHooks.of(extensions_of(HOLD), card)
    steps = load_instance(card, hooks=hooks).steps
    assert steps["denoise"] is not denoise.run_step
    assert steps["decode"].__module__ == "fastvideo_testing.tiny.decode"


def test_a_step_interceptor_answers_from_what_it_has_kept(open_with, card):
    with open_with(HOLD) as engine:
        got = latents(engine)
    expected = reference(card, held={1, 3})
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(got - reference(card, held=())).max() > 1e-3


@pytest.mark.parametrize("spec", [HOLD, REUSE], ids=lambda spec: spec.name)
def test_a_period_of_one_changes_nothing(spec, open_with, card):
    with open_with(spec, options={f"interceptor.{spec.name}": {"period": 1}}) as engine, Engine.open(card) as plain:
        np.testing.assert_allclose(latents(engine), latents(plain), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", [HOLD, REUSE], ids=lambda spec: spec.name)
def test_requests_with_options_of_their_own_do_not_meet(spec, open_with):
    plugin = f"interceptor.{spec.name}"
    asked = [({}, 5), ({plugin: {"period": 1}}, 5), ({plugin: {"period": 3}}, 7), ({plugin: {"period": 100}}, 6)]
    with open_with(spec) as engine:
        alone = [latents(engine, f"p{i}", given, num_inference_steps=n) for i, (given, n) in enumerate(asked)]
        handles = [submit(engine, f"p{i}", given, num_inference_steps=n) for i, (given, n) in enumerate(asked)]
        together = [handle.result(30).latents.latents for handle in handles]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert np.abs(alone[0] - alone[3]).max() > 1e-3


@pytest.mark.parametrize("spec", [HOLD, REUSE], ids=lambda spec: spec.name)
def test_states_are_in_the_loops_state_and_survive_the_codec(spec, card):
    """Every state goes through bytes, and nothing of the interceptor is left from one step to the next."""

    def run(is_moved):
        extensions = extensions_of(spec)
        hooks = InstanceHooks.of(extensions, card)
        instance = load_instance(card, hooks=hooks)
        loop = instance.loop("denoise")
        state = start_state()
        options = extensions.check_request({}, exact=False, parameters={})
        run = LoopRun(loop, state, scope=state.scope, cancel=CancelState(), hooks=hooks.run_hooks("denoise", options))
        seen = []
        while state.step_index < 4:
            plan = run.plan()
            fresh = instance if not is_moved else load_instance(card, hooks=InstanceHooks.of(extensions, card))
            with torch.no_grad():
                (result,) = fresh.steps["denoise"](fresh, [plan], Untapped())
            assert run.state.plugin_state == (seen[-1] if seen else {}), "valid only when the step is committed"
            run.commit(plan, result)
            seen.append(dict(run.state.plugin_state))
            if is_moved:
                run.state = decode_state(encode_state(run.state), DenoiseState)
                seen[-1] = dict(run.state.plugin_state)
            state = run.state
        return state

    plain, moved = run(False), run(True)
    assert torch.equal(plain.latents_1CTHW, moved.latents_1CTHW)
    assert set(plain.plugin_state[spec.name]) == {state_key("transformer", "cond"), state_key("transformer", "uncond")}


class Untapped:
    is_tapped = False

    def tap(self, name, value):
        pass


def start_state():
    generator = torch.Generator().manual_seed(1)
    return DenoiseState(
        latents_1CTHW=torch.randn((1, 4, 2, 2, 2), generator=generator),
        embeds_1E=(torch.ones(1, 8), torch.zeros(1, 8)),
        sigmas=(1.0, 0.75, 0.5, 0.25, 0.0),
        guidance_scale=3.0,
        scope=CancelScope("request", "r"),
        is_exact=False,
        profile="serve",
        condition_1CHW=None,
    )


def test_a_block_interceptor_stays_alone_in_its_call(open_with):
    with open_with(REUSE, RECORD) as engine:
        (record,) = (one.observer for one in engine.instance.hooks._observers.values())
        handles = [submit(engine, num_inference_steps=3) for _ in range(3)]
        for handle in handles:
            handle.result(30)
    assert {len(steps) for steps in record.started if steps[0].loop_id == "denoise"} == {1}


def test_what_an_interceptor_answers_is_learned_from_and_priced_as_what_it_is(open_with):
    with open_with(HOLD) as engine:
        submit(engine, num_inference_steps=6).result(30)
        priced, seen = [], []
        predict, observe = engine.costs.predict, engine.costs.observe

        def price(key, cost, num_plans=1):
            if key.loop_kind == "denoise":
                priced.append((key.variant, cost.flops))
            return predict(key, cost, num_plans)

        def note(key, cost, num_plans, seconds):
            if key.loop_kind == "denoise":
                seen.append((key.variant, cost.flops))
            observe(key, cost, num_plans, seconds)

        engine.costs.predict, engine.costs.observe = price, note
        submit(engine, num_inference_steps=6).result(30)
    whole, part = seen[0], seen[1]
    assert seen == [whole, part] * 3
    assert whole[0].endswith("+hold") and whole[1] > 0 and part == (f"{whole[0]}/part", 0.0)
    # The second request's steps are priced as what the first one's were at their positions.
    assert list(dict.fromkeys(priced)) == [whole, part] and priced.count(whole) == priced.count(part)


def test_a_request_is_admitted_with_the_bytes_that_interceptors_keep(card, made_up, with_loop, open_with):
    def estimate(spec, model, parameters, inputs, *, exact):
        return LoopEstimate((), resident_bytes=1000, branches=BranchEstimate(2, 1, 300, 50))

    card = with_loop(card, "denoise", estimate=made_up("estimate", estimate))
    three = replace(HOLD, num_kept=made_up("three", lambda options: options.period))
    stateless = replace(HOLD, state=None, implementation=made_up("Stateless", Stateless))
    for specs, kept in [((), 0), ((HOLD,), 300), ((three,), 600), ((stateless,), 0), ((REUSE,), 50)]:
        with open_with(*specs, card=card) as engine:
            assert admitted_bytes(engine) == 1000 + 2 * 2 * kept


class Stateless(HoldInterceptor):
    def record(self, call, states, prediction, *, is_computed):
        return {}


def admitted_bytes(engine):
    """Return the bytes that a request was admitted with."""
    jobs, accept = [], engine._control.accept
    engine._control.accept = lambda active: (jobs.append(active.job), accept(active))
    submit(engine).result(30)
    return jobs[0].resident_bytes


@pytest.mark.parametrize("number", [-1, float("inf"), "many"])
def test_a_number_of_tensors_that_is_none_is_refused_before_any_work(number, open_with, made_up):
    why = "interceptor 'hold' of plugin .* says that a state keeps .* tensors"
    spec = replace(HOLD, num_kept=made_up("number", lambda options: number))
    with open_with(spec) as engine, pytest.raises(PluginError, match=why):
        submit(engine)


def test_a_share_of_blocks_that_is_none_ends_the_request(open_with, made_up):
    class Boastful(ReuseInterceptor):
        def run_blocks(self, *given):
            return replace(super().run_blocks(*given), computed_share=1.5)

    why = "says that a share of 1.5 of the blocks ran; allowed: 0 to 1"
    spec = replace(REUSE, implementation=made_up("Boastful", Boastful))
    with open_with(spec) as engine, pytest.raises(PluginError, match=why):
        latents(engine)


def test_an_observer_is_told_of_every_step_and_shown_tensors(open_with, card):
    with open_with(RECORD) as engine, Engine.open(card) as plain:
        (record,) = (one.observer for one in engine.instance.hooks._observers.values())
        got = submit(engine, request_id="watched").result(30).latents.latents
        np.testing.assert_array_equal(got, latents(plain))
        assert isinstance(record, RecordObserver)
        denoise = [steps[0] for steps in record.started if steps[0].loop_id == "denoise"]
        assert [step.step_index for step in denoise] == [0, 1, 2, 3]
        assert {step.request_id for step in denoise} == {"watched"}
        shown = [(name, request) for name, request, _ in record.tensors if name == "velocity"]
        assert shown == [("velocity", "watched")] * 4
        assert all(result.is_finite and result.is_computed for results, _ in record.finished for result in results)
        assert len(record.finished) == len(record.started)
    assert record.is_closed


def test_an_observer_sees_what_an_interceptor_skips(open_with):
    with open_with(HOLD, RECORD) as engine:
        (record,) = (one.observer for one in engine.instance.hooks._observers.values())
        latents(engine)
    computed = [
        results[0].is_computed
        for steps, (results, _) in zip(record.started, record.finished, strict=True)
        if steps[0].loop_id == "denoise"
    ]
    assert computed == [True, False, True, False]


class Vandal(RecordObserver):
    def tensor(self, name, step, value):
        value.zero_()


class Breaking(RecordObserver):
    def step_finished(self, steps, results, seconds):
        raise ValueError("out of ink")

    def close(self):
        raise OSError("disk gone")


@pytest.mark.parametrize(
    ("observer", "why"),
    [
        (Vandal, "observer 'record' of plugin observer.record changed 'embeds', which it only reads"),
        (Breaking, "observer 'record' of plugin observer.record failed: ValueError: out of ink"),
    ],
)
def test_an_observer_that_misbehaves_ends_the_request(observer, why, open_with, made_up):
    engine = open_with(replace(RECORD, implementation=made_up("Observer", observer)))
    with pytest.raises(PluginError, match=why):
        latents(engine)
    if observer is Breaking:
        with pytest.raises(PluginError, match="'record' of plugin observer.record could not close: OSError: disk gone"):
            engine.close()
    else:
        engine.close()


class Other(PluginState):
    pass


@pytest.mark.parametrize(
    ("method", "value", "why"),
    [
        ("answer", lambda *_: 1 / 0, "interceptor 'hold' of plugin interceptor.hold failed: ZeroDivisionError"),
        ("answer", lambda *_: torch.zeros(7, 4), r"answered with shape \(7, 4\)"),
        ("record", lambda *_, **__: {"cond": Other()}, "gave a state of class Other; allowed: HoldState"),
        ("record", lambda *_, **__: {"extra": HoldState(torch.zeros(1), 0)}, r"states of \['extra'\]; allowed: cond"),
    ],
)
def test_an_interceptor_that_misbehaves_ends_the_request(method, value, why, open_with, made_up):
    broken = made_up("Broken", type("Broken", (HoldInterceptor,), {method: lambda self, *a, **k: value(*a, **k)}))
    with open_with(replace(HOLD, implementation=broken)) as engine, pytest.raises(PluginError, match=why):
        latents(engine)


@pytest.mark.parametrize(
    ("specs", "options", "error", "why"),
    [
        ((HOLD, replace(REUSE, conflicts_with=("hold",))), {}, PluginError, "'hold' .* and 'reuse' .*: reuse declares"),
        ((HOLD, replace(REUSE, conflicts_with=("*",))), {}, PluginError, "switch one off"),
        ((REUSE, replace(REUSE, name="again")), {}, PluginError, "both run the blocks"),
        ((HOLD,), {"period": 0}, ParameterError, "plugins.interceptor.hold.period=0: .*greater than or equal to 1"),
        ((HOLD,), {"periode": 2}, ParameterError, "no such option; allowed: period; nearest: period"),
        (
            (replace(HOLD, options=None, request_options=()),),
            {"period": 2},
            ParameterError,
            "the plugin has no options",
        ),
        ((replace(HOLD, options="os:getcwd"),), {}, PluginError, "'os:getcwd', is no pydantic model"),
        ((replace(HOLD, options="os:nothing"),), {}, PluginError, "options of 'hold', 'os:nothing': AttributeError"),
    ],
)
def test_what_cannot_be_on_is_refused_without_a_card(specs, options, error, why):
    with pytest.raises(error, match=why):
        extensions_of(*specs, options={"interceptor.hold": options})


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (replace(HOLD, loops=("decode",)), "is for loop 'decode', whose steps of tiny take no such interceptor"),
        (replace(HOLD, loops=("elsewhere",)), "stands at each step, and no loop of tiny can carry it"),
        (replace(HOLD, implementation="os:nothing"), "implementation of 'hold', 'os:nothing': AttributeError"),
        (replace(HOLD, implementation="os:getcwd"), "'hold' cannot be made: TypeError"),
        (replace(HOLD, state="os:getcwd"), "'os:getcwd', is not derived of PluginState"),
    ],
)
def test_what_does_not_work_with_a_card_is_refused_before_its_weights(spec, why, tmp_path):
    missing = tiny_card(tmp_path / "no weights here")
    with pytest.raises(PluginError, match=why):
        Engine.open(missing, extensions=extensions_of(spec))


def test_a_step_cache_on_a_few_step_card_is_refused_before_its_weights(tmp_path, with_loop):
    card = with_loop(tiny_card(tmp_path / "none"), "denoise", pinned={"num_inference_steps": 4})
    with pytest.raises(PluginError, match="needs 8 steps or more, and the weights of tiny were made for 4"):
        Engine.open(card, extensions=extensions_of(replace(HOLD, needs_steps_at_least=8)))


@pytest.mark.parametrize(
    ("fields", "error", "why"),
    [
        ({"plugins": {"interceptor.hole": {}}}, ParameterError, "is not on here; allowed: interceptor.hold; nearest"),
        ({"plugins": {"observer.record": {}}}, ParameterError, "is on and takes no options of a request"),
        ({"plugins": {"interceptor.hold": {"perid": 3}}}, ParameterError, "cannot set this option.*nearest: period"),
        ({"plugins": {"interceptor.hold": {"period": "often"}}}, ParameterError, "period='often': .*valid integer"),
        ({"exact": True}, InputError, "exact=True: plugin interceptor.hold is on, whose interceptor hold alters"),
        ({"parameters": {"num_inference_steps": 1}}, ParameterError, "too few for the interceptor hold.*nearest: 2"),
    ],
)
def test_a_request_is_refused_before_any_work(fields, error, why, card, open_with):
    extensions = extensions_of(HOLD, RECORD)
    with open_with(HOLD, RECORD) as engine:
        request = engine.make_request("x").model_copy(update=fields)
        with pytest.raises(error, match=why):
            engine.submit(request)
    with pytest.raises(error, match=why):
        prepare_request(card, request, extensions=extensions)


def test_options_that_do_not_fit_the_parameters_are_refused_before_any_work(card, open_with, made_up):
    class Fitting(PeriodOptions):
        def check_parameters(self, parameters):
            if parameters["num_inference_steps"] % self.period:
                raise ParameterError("does not divide the steps", field="period", value=self.period, nearest=2)

    spec = replace(HOLD, options=made_up("Fitting", Fitting))
    why = "plugins.interceptor.hold.period=3: does not divide the steps; nearest: 2"
    with open_with(spec) as engine:
        latents(engine, plugins={"interceptor.hold": {"period": 3}}, num_inference_steps=6)
        with pytest.raises(ParameterError, match=why):
            submit(engine, plugins={"interceptor.hold": {"period": 3}}, num_inference_steps=4)


def test_options_of_plugins_are_refused_where_none_is_on(card):
    with Engine.open(card) as engine, pytest.raises(ParameterError, match="none: no plugin that a request could set"):
        submit(engine, plugins={"interceptor.hold": {"period": 3}})


def test_a_harmless_interceptor_leaves_exact_requests_alone(card, open_with):
    harmless = replace(HOLD, distribution_altering=False, declared_error=0.0)
    with open_with(harmless, options={"interceptor.hold": {"period": 1}}) as engine, Engine.open(card) as plain:
        got, expected = (one.generate("x", seed=3, exact=True, outputs=("latents",)) for one in (engine, plain))
    np.testing.assert_array_equal(got.latents.latents, expected.latents.latents)


@pytest.mark.parametrize("spec", [HOLD, REUSE], ids=lambda spec: spec.name)
def test_a_checkpoint_goes_on_with_the_interceptors_states(spec, tmp_path, card, open_with, made_up, with_loop):
    calls = []

    @supports_hooks("step", "block")
    def losing_step(instance, plans, ctx):
        store.flush()
        calls.append(plans[0].step_index)
        if len(calls) == 4:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return denoise.run_step(instance, plans, ctx)

    options = {f"interceptor.{spec.name}": {"period": 3}}
    with open_with(spec, options=options) as engine:
        expected = latents(engine, num_inference_steps=8)
    losing = with_loop(card, "denoise", step=made_up("step", losing_step))
    policy = CheckpointPolicy(max_share=1e9, min_at_risk_s=0.0)
    extensions = extensions_of(spec, options=options)
    with (
        StateStore(tmp_path / "state", policy=policy) as store,
        Engine.open(losing, extensions=extensions, store=store) as engine,
    ):
        np.testing.assert_array_equal(latents(engine, num_inference_steps=8), expected)
    assert 0 < calls[4] < 4, "it went on from a checkpoint"


def test_a_result_says_which_interceptors_made_it(open_with):
    with open_with(HOLD, REUSE, options={"interceptor.reuse": {"period": 1}}) as engine:
        made = submit(engine, plugins={"interceptor.hold": {"period": 3}}).result(30).latents.provenance.parameters
    assert (made["plugins.interceptor.hold"].value, made["plugins.interceptor.hold"].source) == ("hold", "deploy")
    hold, reuse = made["plugins.interceptor.hold.period"], made["plugins.interceptor.reuse.period"]
    assert (hold.value, hold.source, reuse.value, reuse.source) == (3, "request", 1, "deploy")
