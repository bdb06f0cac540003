"""Rollouts of streams and the prediction that training makes of them, against plain lists of keys and values."""

from __future__ import annotations

import copy

import pytest
import torch

from fastvideo_core.cache.pools import CacheBudget
from fastvideo_core.errors import InputError
from fastvideo_core.loop.behavior import PredictQuery
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_core.runtime.estimate import estimate_request
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_wan.loops.chunk_record import predict
from fastvideo_wan.loops.chunk_state import CACHE
from fastvideo_wan.models.chunks import ChunkRule
from fastvideo_wan.models.past import ListedPast

NUM_CHUNKS = 6
"""More than the window holds."""


def rollout(engine, *, seed=3, **parameters):
    rule = ChunkRule(2, 6, first_frames=engine.card.loops["chunk_rollout"].options["first_frames"])
    num_frames = 4 * (rule.start(NUM_CHUNKS) - 1) + 1
    given = {"num_frames": num_frames, "seed": seed, **parameters}
    request = engine.make_request("a red circle", outputs=("latents",), parameters=given)
    outputs = request.outputs.model_copy(update={"capture_behavior": True})
    return request.model_copy(update={"outputs": outputs})


def open_engine(instance):
    budget = CacheBudget(64 * instance.card.caches[CACHE].block_bytes)
    return Engine(instance, options=RuntimeOptions(caches={CACHE: budget}))


@pytest.fixture(scope="module")
def captured(causal_instance):
    """Return a function that gives what a rollout of a model of a name captured, and its pool afterwards."""
    made = {}

    def get(name):
        if name not in made:
            with open_engine(causal_instance(name)) as engine:
                handles = [engine.submit(rollout(engine, seed=seed)) for seed in (3, 4)]
                made[name] = [handle.result() for handle in handles], engine.caches.slabs[CACHE].stats
        return made[name]

    return get


def queries_of(result):
    behavior = result.captured["rollout"]["behavior"]
    return [
        PredictQuery(
            step.sample_1CTHW,
            behavior.schedule.timestep_values[step.step_index],
            {"text": result.captured["text"]["embeds"]},
            step.guidance_scale if len(step.branches) > 1 else None,
            step.step_index,
            step.chunk,
            step.past,
        )
        for step in behavior.steps
    ]


def modules_of(instance):
    names = [name for name, one in instance.card.components.items() if one.kind == "dit"]
    return {name: instance.component(name) for name in names}


@pytest.mark.parametrize("name", ["plain", "sink", "guided", "experts", "euler"])
def test_the_prediction_of_training_is_that_of_the_rollout(causal_instance, captured, name):
    model = causal_instance(name)
    results, _ = captured(name)
    for result in results:
        behavior = result.captured["rollout"]["behavior"]
        num_levels = len(model.card.loops["chunk_rollout"].options["steps"])
        assert [(step.chunk, step.step_index) for step in behavior.steps] == [
            (chunk, level) for chunk in range(NUM_CHUNKS) for level in range(num_levels)
        ]
        for step, query in zip(behavior.steps, queries_of(result), strict=True):
            found = predict(model.card.loops["chunk_rollout"], modules_of(model), [query])
            torch.testing.assert_close(found, step.prediction_1CTHW, rtol=1e-4, atol=1e-5)


def test_chunks_of_all_places_share_a_call(causal_instance, captured):
    model = causal_instance("sink")
    queries = [query for result in captured("sink")[0] for query in queries_of(result)]
    steps = [step for result in captured("sink")[0] for step in result.captured["rollout"]["behavior"].steps]
    found = predict(model.card.loops["chunk_rollout"], modules_of(model), queries)
    recorded = torch.cat([step.prediction_1CTHW for step in steps])
    torch.testing.assert_close(found, recorded, rtol=1e-4, atol=1e-5)


def test_a_rollout_is_what_is_served_and_makes_no_frames_that_nobody_takes(causal_instance, captured):
    (result, _), _ = captured("plain")
    with open_engine(causal_instance("plain")) as engine:
        asked = rollout(engine)
        served = engine.submit(asked.model_copy(update={"outputs": asked.outputs.model_copy(
            update={"capture_behavior": False, "artifacts": ("latents", "video")})})).result()  # fmt: skip
    rolled = result.captured["rollout"]["latents"]
    assert torch.equal(rolled[0], torch.from_numpy(served.latents.latents))
    assert result.captured["rollout"]["frames"] == ()
    assert len(served.video.frames) == 4 * (rolled.shape[2] - 1) + 1
    behavior = result.captured["rollout"]["behavior"]
    last = [step for step in behavior.steps if step.step_index == 3]
    assert torch.equal(torch.cat([step.next_1CTHW for step in last], dim=2), rolled)


def test_no_slab_is_used_again_in_a_rollout_and_all_are_free_after_it(causal_instance, captured):
    _, stats = captured("plain")
    assert stats.peak_used == 2 * NUM_CHUNKS
    assert stats.num_free == stats.num_slabs
    model = causal_instance("plain")
    with open_engine(model) as engine:
        for num_chunks, expected in ((20, 20), (1, 6)):  # a window of two, and four for prompts that change
            request = rollout(engine, num_frames=4 * (2 * num_chunks - 1) + 1)
            needs = estimate_request(prepare_request(model.card, request), model.view, engine._pricing)
            assert needs.cache_blocks[CACHE] == expected


def test_fewer_levels_are_the_first_of_the_cards(causal_instance):
    model = causal_instance("plain")
    with open_engine(model) as engine:
        short, whole = (
            engine.submit(rollout(engine, **more)).result().captured["rollout"]
            for more in ({"num_inference_steps": 2}, {})
        )
        with pytest.raises(InputError, match=r"num_inference_steps=5.*nearest: 4"):
            prepare_request(engine.card, rollout(engine, num_inference_steps=5))
    one, other = ([step for step in outputs["behavior"].steps if step.chunk == 0] for outputs in (short, whole))
    assert [step.step_index for step in one] == [0, 1]
    assert torch.equal(one[1].sample_1CTHW, other[1].sample_1CTHW)
    sigma = whole["behavior"].schedule.sigma_values[1]
    clean = one[1].sample_1CTHW - sigma * one[1].prediction_1CTHW
    torch.testing.assert_close(short["latents"][:, :, :2], clean, rtol=0, atol=1e-5)


def test_gradients_are_those_of_plain_lists_and_none_reach_the_past(causal_instance, captured):
    model = causal_instance("plain")
    result = captured("plain")[0][0]
    behavior = result.captured["rollout"]["behavior"]
    spec = model.card.loops["chunk_rollout"]
    module = copy.deepcopy(model.component("transformer")).requires_grad_(True)
    queries = [query for query, step in zip(queries_of(result), behavior.steps, strict=True) if step.step_index == 2]
    predict(spec, {"transformer": module}, queries).square().sum().backward()
    found = {name: one.grad for name, one in module.named_parameters()}

    other = copy.deepcopy(model.component("transformer")).requires_grad_(True)
    text = result.captured["text"]["embeds"].rows["cond"]
    embeds = torch.nn.functional.pad(text.embeds_1LE, (0, 0, 0, text.length - text.embeds_1LE.shape[1]))
    context = other.prepare_context(embeds, num_tokens=None)
    past, latents = ListedPast(ChunkRule(2, 6)), result.captured["rollout"]["latents"]
    total = 0.0
    for chunk, query in enumerate(queries):
        turns = other.chunk_turns(query.sample_1CTHW, [2 * chunk])
        times = torch.tensor([query.timestep])
        total = total + other.forward_chunk(query.sample_1CTHW, times, context, past, turns=turns).square().sum()
        with torch.no_grad():
            clean = latents[:, :, 2 * chunk : 2 * chunk + 2]
            other.forward_chunk(clean, torch.tensor([0.0]), context, past, turns=turns)
        past.commit()
    total.backward()
    for name, one in other.named_parameters():
        scale = float(one.grad.abs().max()) if one.grad is not None else 0.0
        if one.grad is None:
            assert found[name] is None, name
        else:
            torch.testing.assert_close(found[name], one.grad, rtol=1e-3, atol=1e-4 * max(scale, 1e-3), msg=name)


def test_a_chunk_without_its_past_is_refused(causal_instance, captured):
    model = causal_instance("plain")
    query = queries_of(captured("plain")[0][0])[-1]
    bare = PredictQuery(query.sample_1CTHW, query.timestep, query.inputs, None, query.step_index, query.chunk)
    with pytest.raises(InputError, match="after what the rollout recorded"):
        predict(model.card.loops["chunk_rollout"], modules_of(model), [bare])


def test_experts_do_not_share_a_call(causal_instance, captured):
    model = causal_instance("experts")
    queries = queries_of(captured("experts")[0][0])
    with pytest.raises(InputError, match="one expert"):
        predict(model.card.loops["chunk_rollout"], modules_of(model), queries[:3])
