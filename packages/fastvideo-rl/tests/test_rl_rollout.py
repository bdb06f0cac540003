from __future__ import annotations

import math

import pytest
import torch

from fastvideo_core.errors import ConfigError, ParameterError, PromptError
from fastvideo_core.loop.state import decode_state, encode_state
from fastvideo_core.loop.work import WorkKind
from fastvideo_rl.program import TrainingProgram
from fastvideo_rl.rollout.roller import GroupPlan

SDE = {"sampler": "sde", "sde_noise_level": 0.5}


def plan(size, prompt="a", seeds=(1, 2, 3), **more):
    return GroupPlan(prompt, tuple(seeds), {**size, **more})


@pytest.fixture
def calls(engine):
    """What ran: kind and size of each call."""
    seen, bodies = [], dict(engine.instance.steps)

    def watch(body):
        def run(instance, plans, ctx):
            seen.append((plans[0].loop_id, plans[0].kind, len(plans)))
            return body(instance, plans, ctx)

        return run

    engine.instance.steps.update({name: watch(body) for name, body in bodies.items()})
    yield seen
    engine.instance.steps.update(bodies)


def test_a_group_shares_one_encoded_prompt_and_one_batch(roller, size, calls):
    (group,) = roller.run([plan(size, "a prompt that nobody has had", range(5))])
    assert group.reason is None
    encodes = [one for one in calls if one[0] == "text_encode"]
    assert encodes == [("text_encode", WorkKind.ENCODER_CHUNK, 1)]
    steps = [number for _, kind, number in calls if kind is WorkKind.DIFFUSION_STEP]
    assert steps == [5] * size["num_inference_steps"]
    assert len({id(record.inputs["text"].rows["cond"].embeds_1LE) for record in group.records}) == 1


@pytest.mark.parametrize("sampler", ["flow_euler", "sde", "dance_sde", "cps"])
def test_a_record_holds_how_the_sample_came_about(roller, size, sampler):
    (group,) = roller.run([plan(size, sampler=sampler, sde_first_step=1, sde_num_steps=2)])
    for record in group.records:
        assert [step.step_index for step in record.steps] == [0, 1, 2, 3]
        for one, after in zip(record.steps, record.steps[1:], strict=False):
            assert one.next_1CTHW is after.sample_1CTHW
        assert record.steps[-1].next_1CTHW is record.latents_1CTHW
        assert set(record.log_probs) == (set() if sampler == "flow_euler" else {1, 2})
        assert all(math.isfinite(value) for value in record.log_probs.values())
        assert record.schedule.sigma_values[0] == pytest.approx(1.0, abs=1e-3)
        assert record.weights_version == roller.engine.instance.weights_version
        assert record.parameters["sampler"] == sampler
        assert record.guidance_scale is None
        noise = torch.randn(record.latents_1CTHW.shape, generator=torch.Generator().manual_seed(record.seed))
        assert torch.equal(record.steps[0].sample_1CTHW, noise)
    assert group.records[0].facts.precision == "float32"
    assert group.records[0].facts.model_id == roller.engine.card.model_id


def test_the_guided_prediction_is_what_is_recorded(roller, size):
    (group,) = roller.run([plan(size, seeds=(1,), guidance_scale=4.0, sampler="flow_euler")])
    record = group.records[0]
    assert record.guidance_scale == 4.0
    step = record.steps[1]
    dt = record.schedule.sigma_values[2] - record.schedule.sigma_values[1]
    torch.testing.assert_close(step.next_1CTHW, step.sample_1CTHW + dt * step.prediction_1CTHW)


def test_a_rollout_is_to_the_bit_what_is_served(roller, size, engine):
    (group,) = roller.run([plan(size, seeds=(7,), **SDE)])
    request = engine.make_request("a", parameters={**size, **SDE, "seed": 7}, outputs=("latents",))
    served = engine.submit(request).result()
    assert not served.captured
    assert torch.equal(group.records[0].latents_1CTHW[0], torch.from_numpy(served.latents.latents))


def test_what_is_recorded_survives_a_checkpoint(roller, size, engine):
    states = []
    loop = engine.instance.loops["diffusion_denoise"]
    advance = type(loop).advance

    class Watching(type(loop)):
        def advance(self, state, result):
            states.append(advance(self, state, result))
            return states[-1]

    engine.instance.loops["diffusion_denoise"].__class__ = Watching
    try:
        roller.run([plan(size, seeds=(1,), **SDE)])
    finally:
        engine.instance.loops["diffusion_denoise"].__class__ = Watching.__mro__[1]
    state = states[-1]
    again = decode_state(encode_state(state), type(state))
    assert len(again.behavior) == 4
    for one, other in zip(state.behavior, again.behavior, strict=True):
        assert one.log_prob == other.log_prob
        assert torch.equal(one.prediction_1CTHW, other.prediction_1CTHW)


def test_a_sample_that_fails_ends_its_group_and_no_other(roller, size, engine, monkeypatch):
    body = engine.instance.steps["diffusion_denoise"]

    def break_one(instance, plans, ctx):
        if any("bad" in plan.cancel_scope.path() for plan in plans):
            raise RuntimeError("this one")
        return body(instance, plans, ctx)

    monkeypatch.setitem(engine.instance.steps, "diffusion_denoise", break_one)
    names = iter([*(f"good{i}" for i in range(3)), *(f"bad{i}" for i in range(2))])
    monkeypatch.setattr("fastvideo_rl.rollout.roller.new_request_id", lambda: next(names))
    good, bad = roller.run([plan(size, "a"), plan(size, "b", (1, 2))])
    assert good.reason is None
    assert len(good.records) == 3
    assert bad.records == []
    assert bad.reason.startswith("2 of 2 samples failed:")
    assert "this one" in bad.reason


def test_prompts_are_encoded_without_drawing_a_sample(roller, size, calls):
    inputs = roller.encode(["one", "two"], size)
    assert {loop for loop, _, _ in calls} == {"text_encode"}
    (group,) = roller.run([plan(size, "one", (1,))])
    assert torch.equal(
        inputs[0]["text"].rows["cond"].embeds_1LE, group.records[0].inputs["text"].rows["cond"].embeds_1LE
    )


def test_bad_plans_are_refused_before_anything_runs(roller, size, calls):
    with pytest.raises(ParameterError, match="seeds"):
        roller.submit([plan(size, seeds=(1, 1))])
    with pytest.raises(PromptError):
        roller.submit([plan(size), plan(size, " ")])
    with pytest.raises(ParameterError, match="sde_noise_level"):
        roller.submit([plan(size, sampler="sde", sde_noise_level=2.0)])
    assert calls == []


def test_a_card_whose_loop_cannot_be_trained_is_refused(card):
    loop = card.loops["diffusion_denoise"].model_copy(update={"predict": None})
    other = card.model_copy(update={"loops": {**card.loops, "diffusion_denoise": loop}})
    with pytest.raises(ConfigError, match="cannot be trained"):
        TrainingProgram.of(other)


def test_the_samplers_parameters_are_there_only_where_their_plugin_is_on(card, engine):
    assert "sde_noise_level" not in card.task("text_to_video").parameters
    assert "sde_noise_level" in engine.card.task("text_to_video").parameters
