"""Interceptors on the shipped card, and on both experts of a small Wan 2.2."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from fastvideo_core.errors import PluginError
from fastvideo_core.extend import AttentionBackendSpec, SamplerSpec
from fastvideo_core.extend.extensions import NO_EXTENSIONS
from fastvideo_core.loop.hooks import BranchesOutcome
from fastvideo_core.loop.samplers import SAMPLERS
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_testing.samples import HOLD, RECORD, REUSE, ReuseInterceptor, extensions_of
from fastvideo_testing.wan_checkpoints import build_wan_checkpoint
from fastvideo_wan.loops.intercepted import select_rows

SMALL = {"num_frames": 5, "height": 64, "width": 64, "num_inference_steps": 4}


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    """A small Wan 2.2 with two experts."""
    return build_wan_checkpoint(tmp_path_factory.mktemp("a14b"), "a14b-t2v")


def latents(engine, prompt="a red circle", exact=False, plugins=None, **parameters):
    given = {**SMALL, "seed": 5, **parameters}
    request = engine.make_request(prompt, outputs=("latents",), exact=exact, parameters=given)
    return engine.submit(request.model_copy(update={"plugins": plugins or {}}))


def value(handle):
    return handle.result(60).latents.latents


def open_with(card, *specs, **options):
    return Engine.open(card, extensions=extensions_of(*specs, options=options or None))


@pytest.mark.parametrize("spec", [HOLD, REUSE], ids=lambda spec: spec.name)
def test_a_period_of_one_is_as_good_as_none(spec):
    plugins = {f"interceptor.{spec.name}": {"period": 1}}
    harmless = replace(spec, distribution_altering=False, declared_error=0.0)
    with open_with("wan-shapes", harmless) as engine, Engine.open("wan-shapes") as plain:
        exact, expected = (value(latents(one, exact=True, plugins=p)) for one, p in ((engine, plugins), (plain, None)))
        np.testing.assert_array_equal(exact, expected)
        fast, expected = (value(latents(one, plugins=p)) for one, p in ((engine, plugins), (plain, None)))
    np.testing.assert_allclose(fast, expected, rtol=0, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("spec", [HOLD, REUSE], ids=lambda spec: spec.name)
def test_four_requests_together_are_as_each_alone(spec, experts):
    plugin = f"interceptor.{spec.name}"
    asked = [(f"prompt {i}", {"seed": i, "num_inference_steps": 4 + i}, {plugin: {"period": 1 + i}}) for i in range(4)]
    options = RuntimeOptions(scheduler=SchedulerConfig(max_batch=1))
    with Engine.open(str(experts), options=options, extensions=extensions_of(spec)) as engine:
        alone = [value(latents(engine, prompt, plugins=p, **given)) for prompt, given, p in asked]
        handles = [latents(engine, prompt, plugins=p, **given) for prompt, given, p in asked]
        together = [value(handle) for handle in handles]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


def test_each_expert_has_states_of_its_own(experts):
    with open_with(str(experts), REUSE, RECORD) as engine:
        (record,) = (one.observer for one in engine.instance.hooks._observers.values())
        handle = latents(engine, num_inference_steps=8)
        value(handle)
    steps = [(steps[0].batch_key.component, results[0].is_computed)
             for steps, (results, _) in zip(record.started, record.finished, strict=True)
             if steps[0].batch_key.loop_kind.endswith(".step")]  # fmt: skip
    first = {component: next(done for one, done in steps if one == component) for component, _ in steps}
    assert first == {"transformer": True, "transformer_2": True}, "an expert begins with nothing to use again"
    assert not all(done for _, done in steps)


def test_a_step_cache_on_a_distilled_card_is_refused_before_its_weights():
    card = Catalog.installed().find("fastwan2.2-ti2v-5b")
    with pytest.raises(
        PluginError, match="needs 8 steps or more, and the weights of fastwan2.2-ti2v-5b were made for 3"
    ):
        Engine.open(card, extensions=extensions_of(replace(HOLD, needs_steps_at_least=8)))


def test_an_attention_backend_computes_the_fast_mode(monkeypatch):
    calls = []

    def attend(query, key, value):
        calls.append(tuple(query.shape))
        weights = (query.transpose(1, 2) @ key.permute(0, 2, 3, 1) / query.shape[-1] ** 0.5).softmax(dim=-1)
        return (weights @ value.transpose(1, 2)).transpose(1, 2)

    module = types.ModuleType("fastvideo_made_up_attention")
    module.attend = attend
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = AttentionBackendSpec("plain", f"{module.__name__}:attend")
    chosen = replace(NO_EXTENSIONS, attention_backends={"plain": spec}, attention="plain")
    with Engine.open("wan-shapes", extensions=chosen) as engine, Engine.open("wan-shapes") as plain:
        exact, expected = (value(latents(one, exact=True)) for one in (engine, plain))
        np.testing.assert_array_equal(exact, expected)
        assert calls == [], "the exact mode keeps the reference's own"
        fast, expected = (value(latents(one)) for one in (engine, plain))
    assert calls
    np.testing.assert_allclose(fast, expected, rtol=0, atol=2e-4 * np.abs(expected).max())


def test_a_plugins_sampler_makes_the_steps(monkeypatch):
    module = types.ModuleType("fastvideo_made_up_sampler")
    unipc, steps = SAMPLERS["unipc"], []

    def step(*arguments, **named):
        steps.append(arguments[0].sampler)
        return unipc.step(*arguments, **named)

    def make_schedule(spec):
        return replace(unipc.make_schedule(spec), sampler="twin")

    module.TWIN = replace(unipc, name="twin", step=step, make_schedule=make_schedule)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    extensions = replace(NO_EXTENSIONS, samplers={"twin": SamplerSpec("twin", f"{module.__name__}:TWIN")})
    with Engine.open("wan-shapes", extensions=extensions) as engine:
        twin, expected = (value(latents(engine, exact=True, sampler=name)) for name in ("twin", "unipc"))
    assert steps == ["twin"] * 4
    np.testing.assert_array_equal(twin, expected)


class TogetherInterceptor(ReuseInterceptor):
    """Runs all blocks for all branches at once, those after the first for the branches one by one if told so."""

    calls: ClassVar = []
    is_split = False

    def run_branches(self, calls, states, blocks, hidden, select, *inputs):
        self.calls.append(
            (calls[0].index, calls[0].num_predictions, tuple(call.branch for call in calls), hidden.shape[0])
        )
        hidden = blocks[0](hidden, *inputs)
        for block in blocks[1:]:
            parts = (
                [block(hidden[row : row + 1], *select([row])) for row in range(len(hidden))] if self.is_split else None
            )
            hidden = block(hidden, *inputs) if parts is None else torch.cat(parts)
        return BranchesOutcome(hidden, [None] * len(calls))


@pytest.fixture
def together(monkeypatch):
    """A harmless interceptor that takes all branches at once, and its class."""
    made = type("Together", (TogetherInterceptor,), {"calls": []})
    module = types.ModuleType("fastvideo_made_up_together")
    module.Together = made
    monkeypatch.setitem(sys.modules, module.__name__, module)
    harmless = {"distribution_altering": False, "declared_error": 0.0}
    return replace(REUSE, implementation=f"{module.__name__}:Together", **harmless), made


def test_branches_that_run_together_have_the_bits_that_they_have_without(together):
    spec, made = together
    always = {"interceptor.reuse": {"period": 1}}
    with open_with("wan-shapes", spec, **always) as engine, Engine.open("wan-shapes") as plain:
        np.testing.assert_array_equal(value(latents(engine)), value(latents(plain)))
        assert made.calls == [(index, 4, ("cond", "uncond"), 1) for index in range(4)]
        made.calls.clear()
        np.testing.assert_array_equal(value(latents(engine, exact=True)), value(latents(plain, exact=True)))
        assert made.calls == [], "exact branches are computed one by one"


@pytest.mark.parametrize("variant", ["t2v", "ti2v-5b"])
def test_rows_that_are_selected_are_the_rows_of_the_whole(variant, together, tmp_path, checkpoint):
    spec, made = together
    image = {"ti2v-5b": np.full((32, 32, 3), 80, np.uint8)}.get(variant)
    results = []
    for is_split in (False, True):
        made.is_split = is_split
        with open_with(str(checkpoint(variant)), spec) as engine:
            inputs = {} if image is None else {"image": image}
            results.append(engine.generate("x", outputs=("latents",), **inputs, **SMALL, seed=5).latents.latents)
    whole, split = results
    np.testing.assert_allclose(split, whole, rtol=0, atol=1e-4 * np.abs(whole).max())


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (lambda hidden: hidden, "gave a Tensor; allowed: BranchesOutcome"),
        (
            lambda hidden: BranchesOutcome(hidden, [None]),
            "gave 1 states; allowed: one for each of .*transformer/uncond",
        ),
        (lambda hidden: 1 / 0, "failed: ZeroDivisionError"),
    ],
)
def test_what_it_gives_for_all_branches_is_checked(outcome, why, together):
    spec, made = together
    made.run_branches = lambda self, calls, states, blocks, hidden, select, *inputs: outcome(hidden)
    with open_with("wan-shapes", spec) as engine, pytest.raises(PluginError, match=f"interceptor 'reuse' .*{why}"):
        value(latents(engine))


def test_all_rows_are_the_inputs_themselves():
    context = types.SimpleNamespace(num_rows=2)
    inputs = types.SimpleNamespace(context=context)
    assert select_rows(inputs, [0, 1]) is inputs
