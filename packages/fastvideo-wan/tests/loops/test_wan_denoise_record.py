from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from fastvideo_core.errors import InputError
from fastvideo_core.loop.behavior import PredictQuery
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.estimate import estimate_request
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_wan.loops.denoise_record import predict

SMALL = {"num_frames": 5, "height": 32, "width": 32, "num_inference_steps": 3, "seed": 3}


def rollout(engine, **parameters):
    request = engine.make_request("a thing", outputs=("latents",), parameters={**SMALL, **parameters})
    outputs = request.outputs.model_copy(update={"capture_behavior": True})
    return request.model_copy(update={"outputs": outputs})


@pytest.fixture(scope="module")
def captured(instance):
    with Engine(instance("t2v")) as engine:
        return [engine.submit(rollout(engine, guidance_scale=scale)).result().captured for scale in (1.0, 5.0)]


def queries_of(captured, *, is_guided):
    behavior = captured["denoise"]["behavior"]
    return [
        PredictQuery(
            step.sample_1CTHW,
            behavior.schedule.timestep_values[step.step_index],
            {"text": captured["text"]["embeds"]},
            step.guidance_scale if is_guided else None,
        )
        for step in behavior.steps
    ]


@pytest.mark.parametrize("is_guided", [False, True])
def test_predictions_are_those_of_the_steps_alone_and_in_a_batch(instance, captured, is_guided):
    loaded = instance("t2v")
    spec, one = loaded.card.loops["diffusion_denoise"], captured[is_guided]
    modules = {"transformer": loaded.component("transformer")}
    queries = queries_of(one, is_guided=is_guided)
    recorded = torch.cat([step.prediction_1CTHW for step in one["denoise"]["behavior"].steps])
    together = predict(spec, modules, queries)
    alone = torch.cat([predict(spec, modules, [query]) for query in queries])
    for found in (together, alone):
        torch.testing.assert_close(found, recorded, rtol=1e-4, atol=1e-5)


def test_gradients_flow_to_all_weights_that_a_prediction_uses(instance, captured):
    module = copy.deepcopy(instance("t2v").component("transformer")).requires_grad_(True)
    spec = instance("t2v").card.loops["diffusion_denoise"]
    predict(spec, {"transformer": module}, queries_of(captured[1], is_guided=True)).square().mean().backward()
    without = [name for name, one in module.named_parameters() if one.grad is None or not one.grad.any()]
    assert without == []


def test_the_runner_of_blocks_is_asked(instance, captured):
    loaded, seen = instance("t2v"), []

    def runner(blocks, hidden, *inputs):
        for block in blocks:
            seen.append(block)
            hidden = block(hidden, *inputs)
        return hidden

    modules = {"transformer": loaded.component("transformer")}
    queries = queries_of(captured[0], is_guided=False)
    predict(loaded.card.loops["diffusion_denoise"], modules, queries, blocks_runner=runner)
    assert seen == list(loaded.component("transformer").blocks)


def test_what_cannot_be_predicted_is_refused(instance, captured):
    loaded = instance("t2v")
    (query, *_) = queries_of(captured[0], is_guided=False)
    with_image = dataclasses.replace(query, inputs={**query.inputs, "condition": object()})
    with pytest.raises(InputError, match="condition='?given'?: there is no prediction"):
        predict(loaded.card.loops["diffusion_denoise"], {}, [with_image])
    experts = instance("a14b-t2v").card.loops["diffusion_denoise"]
    late = dataclasses.replace(query, timestep=100.0)
    with pytest.raises(InputError, match="one call predicts with one expert"):
        predict(experts, {}, [dataclasses.replace(query, timestep=999.0), late])


def test_records_count_in_what_a_request_is_admitted_with(instance):
    loaded = instance("t2v")
    with Engine(loaded) as engine:
        rolled = prepare_request(engine.card, rollout(engine))
        served = prepare_request(engine.card, engine.make_request("a thing", outputs=("latents",), parameters=SMALL))
        needs = [estimate_request(one, loaded.view, engine._pricing).resident_bytes for one in (rolled, served)]
    sample_bytes = 4 * 16 * 2 * 4 * 4
    assert needs[0] - needs[1] == 2 * 3 * sample_bytes


def test_a_served_request_records_nothing(instance):
    with Engine(instance("t2v")) as engine:
        result = engine.generate("x", outputs=("latents",), **SMALL)
    assert result.captured == {}
