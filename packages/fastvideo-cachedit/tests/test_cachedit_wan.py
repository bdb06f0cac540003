"""The caches in the engine: on the shipped model, on both experts of a small Wan 2.2, from a config, over a restart."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from fastvideo_cachedit.options import BlockOptions, StepOptions
from fastvideo_core.cache import tensors_in
from fastvideo_core.errors import InputError, ParameterError, PluginError
from fastvideo_core.extend.extensions import Extensions
from fastvideo_core.request.base import OutputSpec, Request, TextPart
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.durable import CheckpointPolicy, StateStore
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_core.runtime.hooks import InstanceHooks
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_testing.gate.pool import Pool
from fastvideo_testing.wan_checkpoints import build_wan_checkpoint

BLOCKS, STEPS = "interceptor.cachedit", "interceptor.cachedit-steps"
SMALL = {"num_frames": 5, "height": 48, "width": 48, "num_inference_steps": 10}
EAGER = {"threshold": 1.0, "warmup_steps": 2}
"""Options under which three of four steps are not computed, whatever the model."""


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    """A small Wan 2.2 with two experts."""
    return build_wan_checkpoint(tmp_path_factory.mktemp("a14b"), "a14b-t2v")


def open_with(card, plugin, options=None):
    alone = RuntimeOptions(scheduler=SchedulerConfig(max_batch=1))
    return Engine.open(card, options=alone, extensions=Extensions.load({plugin: options or {}}))


def submit(engine, prompt="a red circle", plugins=None, **parameters):
    given = {**SMALL, "seed": 5, **parameters}
    request = engine.make_request(prompt, outputs=("latents",), parameters=given)
    return engine.submit(request.model_copy(update={"plugins": plugins or {}}))


def latents(engine, *given, **named):
    return value(submit(engine, *given, **named))


def value(handle):
    return handle.result(100).latents.latents


def watch(engine):
    """Note of each denoise step its component, whether it was computed, and the states that it made."""
    seen, body = [], engine.instance.steps["diffusion_denoise"]

    def watched(instance, plans, ctx):
        results = body(instance, plans, ctx)
        for plan, result in zip(plans, results, strict=True):
            if plan.batch_key.loop_kind.endswith(".step"):
                seen.append((plan.batch_key.component, result.is_computed, result.plugin_states))
        return results

    engine.instance.steps["diffusion_denoise"] = watched
    return seen


def options_of(plugin):
    return StepOptions.model_fields if plugin == STEPS else BlockOptions.model_fields


REQUESTS = [
    ("a red circle", {"seed": 1}, {"threshold": 1.0}),
    ("a blue square moving left", {"seed": 2, "num_inference_steps": 13, "guidance_scale": 1.0}, {"mask": "fast"}),
    ("a large red circle", {"seed": 3, "num_frames": 9, "guidance_scale": 4.0}, {"forecast": "none", "threshold": 0.1}),
    (
        "a green triangle",
        {"seed": 4, "num_inference_steps": 16},
        {"forecast": "foca", "warmup_steps": 2, "threshold": 0.5},
    ),
]


@pytest.mark.parametrize("plugin", [BLOCKS, STEPS])
@pytest.mark.parametrize("name", ["wan-shapes", "experts"])
def test_four_requests_together_have_the_bits_of_each_alone(name, plugin, experts):
    known = options_of(plugin)
    asked = [
        (prompt, given, {key: part for key, part in options.items() if key in known})
        for prompt, given, options in REQUESTS
    ]
    with open_with(str(experts) if name == "experts" else name, plugin) as engine:
        seen = watch(engine)
        alone = [latents(engine, prompt, {plugin: options}, **given) for prompt, given, options in asked]
        assert {done for _, done, _ in seen} == {True, False}
        handles = [submit(engine, prompt, {plugin: options}, **given) for prompt, given, options in asked]
        together = [value(handle) for handle in handles]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("plugin", [BLOCKS, STEPS])
def test_each_expert_and_branch_has_a_context_of_its_own(plugin, experts):
    options = EAGER if plugin == BLOCKS else {"mask": [1, 0] * 8}
    with open_with(str(experts), plugin, options) as engine:
        seen = watch(engine)
        latents(engine, num_inference_steps=16)
    assert {component for component, _, _ in seen} == {"transformer", "transformer_2"}
    for component in ("transformer", "transformer_2"):
        own = [(done, states) for one, done, states in seen if one == component]
        assert own[0][0], "it begins with a step that is computed"
        assert not all(done for done, _ in own)
        name = plugin.removeprefix("interceptor.")
        assert {key for _, states in own for key in states[name]} == {f"{component}/cond", f"{component}/uncond"}


def test_off_it_is_as_if_it_were_not_installed():
    with Engine.open("wan-shapes") as plain, open_with("wan-shapes", BLOCKS, EAGER) as engine:
        before, with_it, after = latents(plain), latents(engine), latents(plain)
    np.testing.assert_array_equal(before, after)
    assert np.abs(with_it - before).max() > 0


def test_a_threshold_that_nothing_passes_has_the_bits_of_none():
    """All rows run together as they do without, so that only what is used again makes a difference."""
    with Engine.open("wan-shapes") as plain, open_with("wan-shapes", BLOCKS, {"threshold": 1e-9}) as engine:
        np.testing.assert_array_equal(latents(engine), latents(plain))


@pytest.mark.parametrize("plugin", [BLOCKS, STEPS])
def test_steps_teach_the_cost_model_what_they_took(plugin):
    """One block of all always runs for the block cache; the step cache leaves all out."""
    with open_with(
        "wan-shapes", plugin, EAGER if plugin == BLOCKS else {"mask": [1, 1, 0, 1, 0, 0, 1, 0, 0, 1]}
    ) as engine:
        watched, seen = watch(engine), []
        engine.costs.observe = lambda key, cost, count, seconds: seen.append((key, cost.flops))
        latents(engine)
        part = 1 / engine.instance.view.config("transformer").num_layers if plugin == BLOCKS else 0.0
    steps = [(key.variant, flops) for key, flops in seen if key.loop_kind == "diffusion_denoise.step"]
    whole = max(flops for _, flops in steps)
    name = plugin.removeprefix("interceptor.")
    assert {done for _, done, _ in watched} == {True, False}
    assert [flops for _, flops in steps] == pytest.approx(
        [whole if done else part * whole for _, done, _ in watched], rel=0.01
    )
    assert [variant.partition("+")[2] for variant, _ in steps] == [
        name if done else f"{name}/part" for _, done, _ in watched
    ]


@pytest.mark.parametrize(("plugin", "num_kept"), [(BLOCKS, 3), (STEPS, 2)])
def test_requests_are_admitted_with_the_bytes_of_their_states(plugin, num_kept, experts):
    def resident(engine):
        jobs, accept = [], engine._control.accept
        engine._control.accept = lambda active: (jobs.append(active.job), accept(active))
        latents(engine, num_inference_steps=16)
        return jobs[0].resident_bytes

    options = EAGER if plugin == BLOCKS else {"mask": [1, 0] * 8}
    with Engine.open(str(experts)) as plain, open_with(str(experts), plugin, options) as engine:
        seen = watch(engine)
        more = resident(engine) - resident(plain)
        config = engine.instance.view.config("transformer")
    tokens, channels = 2 * 6 * 6 // 4, config.out_channels
    size = tokens * config.inner_dim if plugin == BLOCKS else channels * 2 * 6 * 6
    # Two branches of both experts, and the new ones of the expert in turn.
    assert more == 2 * (2 + 1) * num_kept * 4 * size
    last = {}
    for _, _, states in seen:
        last |= states[plugin.removeprefix("interceptor.")]
    held = {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors_in(tuple(last.values()))
    }
    assert 0 < sum(held.values()) <= more


def test_exact_requests_and_distilled_cards_are_refused():
    with (
        open_with("wan-shapes", BLOCKS) as engine,
        pytest.raises(InputError, match="whose interceptor cachedit alters"),
    ):
        engine.submit(engine.make_request("x", exact=True, parameters=SMALL))
    card = Catalog.installed().find("fastwan2.2-ti2v-5b")
    for plugin in (BLOCKS, STEPS):
        with pytest.raises(PluginError, match="needs 8 steps or more, and the weights of fastwan2.2-ti2v-5b .* for 3"):
            open_with(card, plugin)


def test_more_blocks_than_the_model_has_end_the_request_by_name():
    with open_with("wan-shapes", BLOCKS) as engine:
        with pytest.raises(ParameterError, match="plugins.interceptor.cachedit.first_blocks=40: .*the model has"):
            latents(engine, plugins={BLOCKS: {"first_blocks": 40}})
        latents(engine)


def test_a_result_says_how_it_was_made():
    with open_with("wan-shapes", BLOCKS, {"threshold": 0.3}) as engine:
        made = submit(engine, plugins={BLOCKS: {"mask": "slow"}}).result(100).latents.provenance.parameters
    assert (made["plugins.interceptor.cachedit.mask"].value, made["plugins.interceptor.cachedit.mask"].source) == (
        "slow",
        "request",
    )
    assert made["plugins.interceptor.cachedit.threshold"].source == "deploy"


def test_nothing_of_a_request_is_left_when_it_has_ended():
    import gc
    import weakref

    with open_with("wan-shapes", BLOCKS, EAGER) as engine:
        seen = watch(engine)
        latents(engine)
        states = [state for _, _, one in seen for by_key in one.values() for state in by_key.values()]
        tensors = [weakref.ref(state.first_added) for state in states]
        assert tensors[-1]() is not None
        del states
        seen.clear()
        gc.collect()
        assert [one for one in tensors if one() is not None] == []


CHILD = """
import sys, numpy as np
from fastvideo_core.extend.extensions import Extensions
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.durable import StateStore
from fastvideo_core.runtime.hooks import InstanceHooks
from fastvideo_core.runtime.loading import load_instance
from fastvideo_testing.gate.pool import Pool

card_name, plugin, result, *stores = sys.argv[1:]
catalog = Catalog.installed()
card = catalog.find(card_name)
hooks = InstanceHooks.of(Extensions.load({plugin: {}}), card)
instance = load_instance(card, device="cpu", precision="float32", hooks=hooks)
found = []
for folder in stores:
    with StateStore(folder) as store:
        (saved,) = store.load(instance)
        outcome = Pool(instance).go_on(saved.prepared, saved.nodes)
        assert outcome.error is None, outcome.error
        found.append(outcome.artifacts["latents"].latents)
np.save(result, np.stack(found))
"""


class StoppingPool(Pool):
    """Saves a request after some of its steps, each time into a store of its own."""

    def __init__(self, instance, stores):
        super().__init__(instance)
        self.stores = stores

    def _between_steps(self, run):
        super()._between_steps(run)
        self.stores(run)


@pytest.mark.parametrize("plugin", [BLOCKS, STEPS])
def test_a_request_that_is_saved_after_any_step_goes_on_in_a_fresh_process(plugin, tmp_path):
    extensions = Extensions.load({plugin: {}})
    card = Catalog.installed().find("wan-shapes")
    instance = load_instance(card, device="cpu", precision="float32", hooks=InstanceHooks.of(extensions, card))
    options = {**EAGER, "taylor_order": 2} if plugin == BLOCKS else {"mask": "medium"}
    request = Request(
        request_id="r", task="text_to_video", inputs=(TextPart(name="prompt", text="a red circle"),),
        parameters={**SMALL, "seed": 5}, outputs=OutputSpec(artifacts=("latents",)), plugins={plugin: options},
    )  # fmt: skip
    prepared = prepare_request(card, request, extensions=extensions)
    policy = CheckpointPolicy(max_share=1e9, min_at_risk_s=0.0)
    folders = []

    def save(run):
        folder = tmp_path / f"store{len(folders)}"
        with StateStore(folder, policy=policy) as store:
            store.accept(prepared, instance)
            assert store.checkpoint(run.request_id, run.snapshot())
            store.flush()
        folders.append(folder)

    (outcome,) = StoppingPool(instance, save).run([prepared]).values()
    assert outcome.error is None
    assert len(folders) >= SMALL["num_inference_steps"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", CHILD, "wan-shapes", plugin, str(tmp_path / "result.npy"), *map(str, folders)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    for found in np.load(tmp_path / "result.npy"):
        np.testing.assert_array_equal(found, outcome.artifacts["latents"].latents)


def test_a_config_switches_it_on(tmp_path):
    config = tmp_path / "deploy.yaml"
    config.write_text("card: wan-shapes\nplugins:\n  interceptor.cachedit:\n    options: {mask: fast}\n")
    command = [sys.executable, "-m", "fastvideo_core.cli", "generate", "a red circle", "--config", str(config)]
    more = [
        "--num-inference-steps",
        "8",
        "--num-frames",
        "5",
        "--seed",
        "1",
        "--output",
        str(tmp_path / "v.mp4"),
    ]
    done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=110, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "v.json").read_text())["parameters"]
    assert made["plugins.interceptor.cachedit.mask"] == {"value": "fast", "source": "deploy"}
