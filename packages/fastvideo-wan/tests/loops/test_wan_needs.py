"""What plans and estimates say of memory, against what torch's allocator sees during the steps themselves."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from fastvideo_core.card import resolve_ref
from fastvideo_core.loop.base import LoopContext, LoopRequest
from fastvideo_core.loop.work import Done
from fastvideo_core.program.base import ModelLoopNode
from fastvideo_core.request.build import build_request
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_core.runtime.run import make_generator
from fastvideo_wan.loops.vae_costs import decode_cost, encode_cost
from fastvideo_wan.models.vae_cache import FeatureCache

# Predictions are upper ends: never below what is measured, and at most so many times it.
FACTOR = 2.5
# Less than this is not worth a promise.
SMALL_BYTES = 200 << 10


class NoTaps:
    is_tapped = False
    blocks_runner = None

    def tap(self, name, value):
        """Drop it."""


def peak_of(call, folder):
    """Return a call's result and the most bytes that it had allocated at a time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = call()
    path = folder / "trace.json"
    seen.export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    live, peak, sizes = 0, 0, {}
    for event in sorted(events, key=lambda event: event["ts"]):
        num_bytes, address = event["args"]["Bytes"], event["args"]["Addr"]
        if num_bytes < 0 and sizes.pop(address, None) is None:
            continue
        if num_bytes > 0:
            sizes[address] = num_bytes
        live += num_bytes
        peak = max(peak, live)
    return result, peak


def nodes_of(model, task, parameters, *, exact):
    """Yield each loop of a request with its estimate, its plans and the peaks that were measured."""
    takes_image = "image" in model.card.task(task).inputs
    image = np.zeros((64, 64, 3), np.uint8) if takes_image else None
    known = {name: value for name, value in parameters.items() if name in model.card.task(task).parameters}
    request = build_request(model.card, "a red circle", task=task, image=image, exact=exact, parameters=known)
    prepared, results = prepare_request(model.card, request), {}
    for node in prepared.nodes:
        if isinstance(node, ModelLoopNode):
            inputs = {
                port: prepared.inputs.get(edge.name)
                if edge.kind == "input"
                else results[edge.node].outputs[edge.output]
                for port, edge in node.inputs.items()
            }
            yield node.loop, (prepared, node, inputs, results)


def measure(model, prepared, node, inputs, folder):
    scope = CancelScope("request", "a")
    asked = LoopRequest(
        "a", node.node_id, node.loop, prepared.parameters, inputs, scope, is_exact=prepared.request.exact
    )
    loop, step = model.loop(node.loop), model.steps[node.loop]
    state, measured = loop.init(asked, LoopContext(make_generator)), []
    while not isinstance(plan := loop.next(state), Done):
        with torch.no_grad():
            (result,), peak = peak_of(lambda plan=plan: step(model, [plan], NoTaps()), folder)
        measured.append((plan, peak))
        state = loop.advance(state, result)
    return measured, loop.finalize(state)


def check_needs(model, task, parameters, folder, *, exact):
    for loop_id, (prepared, node, inputs, results) in nodes_of(model, task, parameters, exact=exact):
        spec = model.card.loops[loop_id]
        estimate = resolve_ref(spec.estimate)(spec, model.view, prepared.parameters, prepared.inputs, exact=exact)
        measured, results[node.node_id] = measure(model, prepared, node, inputs, folder)
        for plan, peak in measured:
            said = plan.resources.peak_bytes
            assert said + SMALL_BYTES >= peak, (plan.where(), plan.shape_sig)
            assert said <= FACTOR * peak + SMALL_BYTES, (plan.where(), plan.shape_sig)
            assert said <= estimate.peak_bytes
        said = [(step.batch_key, step.cost) for step in estimate.steps for _ in range(step.num_steps)]
        assert len(said) == len(measured)
        if not loop_id.endswith("denoise"):  # whose prompts' tokens are not known beforehand
            assert sorted(map(str, said)) == sorted(str((p.batch_key, p.resources.cost)) for p, _ in measured)
        assert estimate.resident_bytes >= estimate.result_bytes


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("size", [{"num_frames": 17}, {"num_frames": 9, "height": 80, "width": 96}])
def test_the_shipped_model_says_what_it_needs(tmp_path, size, exact):
    model = load_instance(Catalog.installed().find("wan-shapes"))
    check_needs(model, "text_to_video", {**size, "num_inference_steps": 2, "seed": 1}, tmp_path, exact=exact)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("variant", ["i2v-vision", "ti2v-5b", "a14b-i2v", "dmd-5b"])
def test_every_make_says_what_it_needs(instance, tmp_path, variant, exact):
    model = instance(variant)
    size = {"num_frames": 9, "height": 64, "width": 96, "seed": 1}
    if not variant.startswith("dmd"):
        size["num_inference_steps"] = 3
    for task in model.card.capabilities.tasks:
        check_needs(model, task, size, tmp_path, exact=exact)


def test_a_vaes_operations_are_those_of_its_convolutions():
    from torch.utils.flop_counter import FlopCounterMode

    model = load_instance(Catalog.installed().find("wan-shapes"))
    vae, config = model.component("vae"), model.config("vae")
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        moments, _ = vae.encode_frames(torch.zeros(1, 3, 9, 64, 64), FeatureCache(), is_exact=True)
    said = encode_cost(config, {"frames": 9, "rows": 64, "columns": 64}).flops
    assert said == pytest.approx(counter.get_total_flops(), rel=0.2)
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        vae.decode_frames(moments.chunk(2, dim=1)[0], FeatureCache(), is_exact=True)
    said = decode_cost(config, {"frames": 3, "rows": 8, "columns": 8, "first": 1}).flops
    assert said == pytest.approx(counter.get_total_flops(), rel=0.2)
