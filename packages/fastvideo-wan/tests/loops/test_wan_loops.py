"""The contract of the Wan loops: plans launch nothing, states can be stored after every step, nothing is hidden."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fastvideo_core.card import resolve_ref
from fastvideo_core.errors import ExecutionError, InputError, NonFiniteError, ParameterError, PromptError
from fastvideo_core.loop.base import LoopContext, LoopRequest
from fastvideo_core.loop.state import decode_state, encode_state
from fastvideo_core.loop.work import Done
from fastvideo_core.program.base import ModelLoopNode
from fastvideo_core.request.build import build_request
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_core.runtime.run import make_generator
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_wan.loops.denoise import ContextPayload

VARIANTS = ("t2v", "i2v-vision", "ti2v-5b", "a14b-t2v", "dmd")
SMALL = {"num_frames": 9, "height": 64, "width": 64, "num_inference_steps": 3, "seed": 3}


class CountOps(TorchDispatchMode):
    """Counts what is launched."""

    def __init__(self):
        super().__init__()
        self.num_ops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num_ops += 1
        return func(*args, **(kwargs or {}))


class NoTaps:
    is_tapped = False
    blocks_runner = None

    def tap(self, name, value):
        """Drop it."""


def parameters_for(card, task, extra=None):
    pinned = card.loops[card.recipe.assumes_loop].pinned
    known = card.task(task).parameters
    return {k: v for k, v in {**SMALL, **(extra or {})}.items() if k in known and k not in pinned}


def prepared_for(card, task, prompt="a red circle", extra=None, **kwargs):
    takes_image = "image" in card.task(task).inputs
    image = np.random.default_rng(0).integers(0, 255, (50, 70, 3), np.uint8) if takes_image else None
    parameters = parameters_for(card, task, extra)
    request = build_request(
        card, prompt, task=task, image=image, outputs=("video", "latents"), parameters=parameters, **kwargs
    )
    return prepare_request(card, request)


def step_through(instance, prepared, after_step=lambda loop, state: state):
    """Run a program's loops by hand and return the outputs of each node."""
    results = {}
    for node in prepared.nodes:
        if isinstance(node, ModelLoopNode):
            results[node.node_id] = run_node(instance, prepared, node, results, after_step)
    return results


def loop_request(prepared, node, inputs):
    request_id = prepared.request.request_id
    scope = CancelScope("request", request_id)
    return LoopRequest(
        request_id, node.node_id, node.loop, prepared.parameters, inputs, scope, is_exact=prepared.request.exact
    )


def run_node(instance, prepared, node, results, after_step):
    inputs = {
        port: prepared.inputs.get(edge.name) if edge.kind == "input" else results[edge.node].outputs[edge.output]
        for port, edge in node.inputs.items()
    }
    request = loop_request(prepared, node, inputs)
    loop, step = instance.loop(node.loop), instance.steps[node.loop]
    state = loop.init(request, LoopContext(make_generator))
    while not isinstance(plan := loop.next(state), Done):
        with torch.no_grad():
            (result,) = step(instance, [plan], NoTaps())
        state = after_step(loop, loop.advance(state, result))
    return loop.finalize(state)


@pytest.mark.parametrize("variant", VARIANTS)
def test_next_launches_nothing_and_is_repeatable(instance, variant):
    model = instance(variant)
    for task in model.card.capabilities.tasks:

        def check(loop, state):
            before = encode_state(state)
            with CountOps() as counter:
                first, second = loop.next(state), loop.next(state)
            assert counter.num_ops == 0
            assert type(first) is type(second)
            if not isinstance(first, Done):
                assert (first.batch_key, first.step_index, first.num_steps) == (
                    second.batch_key, second.step_index, second.num_steps,
                )  # fmt: skip
                assert first.resources.cost.flops > 0
            assert encode_state(state) == before
            return state

        step_through(model, prepared_for(model.card, task), check)


@pytest.mark.parametrize("variant", VARIANTS)
def test_state_survives_storage_after_every_step(instance, variant):
    model = instance(variant)
    for task in model.card.capabilities.tasks:
        prepared = prepared_for(model.card, task)
        straight = step_through(model, prepared)
        stored = step_through(model, prepared, lambda loop, state: decode_state(encode_state(state), type(state)))
        assert torch.equal(straight["denoise"].outputs["latents"], stored["denoise"].outputs["latents"])
        for a, b in zip(straight["decode"].outputs["frames"], stored["decode"].outputs["frames"], strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_hidden_state(instance, variant):
    model = instance(variant)
    names = ("transformer", "vae", "text_encoder")
    before = {name: _attributes(model.component(name)) for name in names}
    loops = {name: copy.copy(vars(loop)) for name, loop in model.loops.items()}
    for task in model.card.capabilities.tasks:
        step_through(model, prepared_for(model.card, task))
    assert {name: _attributes(model.component(name)) for name in names} == before
    assert {name: vars(loop) for name, loop in model.loops.items()} == loops


def _attributes(module):
    """Return the identity of everything that hangs on a module and its children."""
    return [
        (name, key, id(value))
        for name, child in module.named_modules()
        for key, value in sorted(vars(child).items())
        if not key.startswith("_") or key in ("_parameters", "_buffers")
    ]


def test_prompt_keys_and_values_are_computed_once(instance):
    model = instance("a14b-t2v")
    payloads = []

    def watch(loop, state):
        if not isinstance(plan := loop.next(state), Done):
            payloads.append(plan.payload)
        return state

    step_through(model, prepared_for(model.card, "text_to_video", extra={"num_inference_steps": 8}), watch)
    contexts = [payload.component for payload in payloads if isinstance(payload, ContextPayload)]
    assert contexts.count("transformer") <= 1
    assert contexts.count("transformer_2") == 1


def test_interleaved_requests_equal_the_same_alone(instance):
    model = instance("t2v")
    cases = [
        ("a red circle", {"seed": 1, "num_inference_steps": 3}),
        ("a blue square moving up", {"seed": 2, "num_inference_steps": 5, "guidance_scale": 1.0}),
        ("x", {"seed": 3, "num_inference_steps": 4, "num_frames": 5, "sampler": "flow_euler"}),
    ]
    make = {"height": 64, "width": 64, "num_frames": 9, "outputs": ("latents",)}
    with Engine(model, max_running=1) as engine:
        alone = [engine.generate(prompt, **{**make, **extra}) for prompt, extra in cases]
    # A step in a call of its own; what shares calls is equal within the card's bound only.
    with Engine(model, options=RuntimeOptions(SchedulerConfig(max_running=3, max_batch=1))) as engine:
        requests = [
            build_request(model.card, p, outputs=("latents",), parameters={**SMALL, **extra}) for p, extra in cases
        ]
        crowd = [handle.result() for handle in [engine.submit(request) for request in requests]]
    for one, other in zip(alone, crowd, strict=True):
        assert np.array_equal(one.latents.latents, other.latents.latents)


def run_together(step, model, plans):
    """Run plans in as few calls as their batch keys allow; return the results in order."""
    groups = {}
    for plan in plans:
        groups.setdefault(plan.batch_key, []).append(plan)
    results = {}
    for group in groups.values():
        with torch.no_grad():
            results |= {id(plan): result for plan, result in zip(group, step(model, group, NoTaps()), strict=True)}
    return [results[id(plan)] for plan in plans]


@pytest.mark.parametrize("variant", ["t2v", "ti2v-5b", "a14b-t2v", "dmd"])
def test_a_batch_keeps_the_bound_of_the_card(instance, variant):
    model = instance(variant)
    card = model.card
    bound = card.parity.batch_max_relative_error
    prompts = ["a red circle", "a large blue square moves slowly to the left", "x"]
    extras = [{"seed": 1}, {"seed": 2, "guidance_scale": 3.0}, {"seed": 4, "guidance_scale": 1.0}]
    prepared = [prepared_for(card, "text_to_video", p, e) for p, e in zip(prompts, extras, strict=True)]
    alone = [step_through(model, one)["denoise"].outputs["latents"] for one in prepared]

    loop, step = model.loop(card.recipe.assumes_loop), model.steps[card.recipe.assumes_loop]
    node = next(n for n in prepared[0].nodes if getattr(n, "loop", "") == card.recipe.assumes_loop)
    states = []
    for one in prepared:
        text = run_node(model, one, next(n for n in one.nodes if n.node_id == "text"), {}, lambda loop, state: state)
        inputs = {"text": text.outputs["embeds"]}
        states.append(loop.init(loop_request(one, node, inputs), LoopContext(make_generator)))
    while not isinstance(loop.next(states[0]), Done):
        plans = [loop.next(state) for state in states]
        results = run_together(step, model, plans)
        states = [loop.advance(state, result) for state, result in zip(states, results, strict=True)]
    assert len({plan.batch_key for plan in plans}) == 1
    for state, expected in zip(states, alone, strict=True):
        distance = (state.latents_1CTHW - expected).abs().max() / expected.abs().max()
        assert distance <= bound


@pytest.mark.parametrize(("component", "node"), [("transformer", "denoise"), ("vae", "decode")])
def test_nan_is_an_error_that_names_the_step(checkpoint, component, node):
    model = load_instance(Catalog.installed().read_folder(checkpoint("t2v")))
    parameter = next(p for n, p in model.component(component).named_parameters() if "decoder" in n or "proj_out" in n)
    with torch.no_grad():
        parameter.copy_(torch.full_like(parameter, float("nan")))
    with Engine(model) as engine, pytest.raises(NonFiniteError, match=f"loop:{node}.*step .* gave NaN"):
        engine.generate("a red circle", **SMALL)


def test_a_prompt_that_is_too_long(instance):
    with Engine(instance("t2v")) as engine, pytest.raises(PromptError, match="at most 512 tokens"):
        engine.generate("a" * 600, **SMALL)


def test_an_empty_prompt(instance):
    with Engine(instance("t2v")) as engine, pytest.raises(PromptError, match="the text is empty"):
        engine.generate("  \n ", **SMALL)


def test_off_grid_values_name_the_nearest(instance):
    card = instance("ti2v-5b").card
    with pytest.raises(ParameterError, match=r"height=720.*multiple|height=720.*32k.*nearest: 7(04|36)"):
        prepare_request(card, build_request(card, "x", parameters={"height": 720}))
    with pytest.raises(ParameterError, match=r"num_frames=80.*4k \+ 1.*nearest: 81"):
        prepare_request(card, build_request(card, "x", parameters={"num_frames": 80}))


def test_image_to_video_below_81_frames(instance):
    model = instance("i2v-vision")
    image = np.zeros((64, 64, 3), np.uint8)
    with Engine(model) as engine:
        result = engine.generate("a red circle", image=image, **{**SMALL, "num_frames": 5})
    assert result.video.frames.shape == (5, 64, 64, 3)


def test_an_image_for_a_card_that_takes_none(instance):
    with Engine(instance("t2v")) as engine, pytest.raises(InputError, match="takes no such input"):
        engine.generate("a red circle", image=np.zeros((8, 8, 3), np.uint8), **SMALL)


def test_guidance_without_a_negative_prompt_uses_the_cards(instance):
    with Engine(instance("t2v")) as engine:
        given = engine.generate("a red circle", guidance_scale=4.0, negative_prompt="", outputs=("latents",), **SMALL)
        absent = engine.generate("a red circle", guidance_scale=4.0, outputs=("latents",), **SMALL)
        null = engine.generate("a red circle", guidance_scale=4.0, negative_prompt=None, outputs=("latents",), **SMALL)
    assert np.array_equal(given.latents.latents, absent.latents.latents)
    assert np.array_equal(given.latents.latents, null.latents.latents)
    assert absent.parameters.source("negative_prompt") == "card"


def test_the_seed_draws_the_noise_that_torch_draws(instance):
    model = instance("t2v")
    prepared = prepared_for(model.card, "text_to_video", extra={"seed": 42})
    text = run_node(model, prepared, prepared.nodes[0], {}, lambda loop, state: state)
    node = next(node for node in prepared.nodes if node.node_id == "denoise")
    request = loop_request(prepared, node, {"text": text.outputs["embeds"]})
    loop = model.loop("diffusion_denoise")
    state = loop.init(request, LoopContext(make_generator))
    expected = torch.randn(1, 16, 3, 8, 8, generator=torch.Generator("cpu").manual_seed(42))
    assert torch.equal(state.latents_1CTHW, expected)


def test_schemas_named_by_the_cards_exist(instance):
    for variant in VARIANTS:
        for spec in instance(variant).card.loops.values():
            schemas = (spec.state_schema, spec.step_schema, spec.result_schema)
            assert all(resolve_ref(ref) for ref in (spec.loop, spec.step, spec.step_cost_model, *schemas))


def test_a_stored_state_goes_on_in_another_process(instance, checkpoint, tmp_path):
    model = instance("t2v")
    prepared = prepared_for(model.card, "text_to_video", exact=True)
    states, expected = [], None

    def keep(loop, state):
        states.append(encode_state(state))
        return state

    results = step_through(model, prepared, keep)
    expected = results["denoise"].outputs["latents"]
    # Before the first sampler step came two of text encoding and one for the prompts' keys and values.
    (tmp_path / "state").write_bytes(states[3])
    torch.save(expected, tmp_path / "expected.pt")
    script = f"""
import torch
from pathlib import Path
from fastvideo_core.loop.state import decode_state
from fastvideo_core.loop.work import Done
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.loading import load_instance
from fastvideo_wan.loops.denoise import DenoiseState

model = load_instance(Catalog.installed().read_folder(Path({str(checkpoint("t2v"))!r})))
state = decode_state(Path({str(tmp_path / "state")!r}).read_bytes(), DenoiseState)
loop, step = model.loop("diffusion_denoise"), model.steps["diffusion_denoise"]

class NoTaps:
    is_tapped = False
    blocks_runner = None
    def tap(self, name, value): pass

assert state.step_index == 1
while not isinstance(plan := loop.next(state), Done):
    with torch.no_grad():
        state = loop.advance(state, step(model, [plan], NoTaps())[0])
expected = torch.load({str(tmp_path / "expected.pt")!r}, weights_only=True)
assert torch.equal(state.latents_1CTHW, expected)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_a_failing_step_is_named(checkpoint):
    model = load_instance(Catalog.installed().read_folder(checkpoint("t2v")))
    model.component("vae").post_quant_conv = None
    with Engine(model) as engine, pytest.raises(ExecutionError, match="loop:decode: step 1 of .* failed: Attribute"):
        engine.generate("a red circle", **SMALL)
