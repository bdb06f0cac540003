"""What every plan of the Wan loops says, and what exact steps make of a batch; on the shipped model."""

from __future__ import annotations

import pytest
import torch

from fastvideo_core.loop.base import LoopContext, LoopRequest
from fastvideo_core.loop.work import Done
from fastvideo_core.request.build import build_request
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_core.runtime.run import make_generator

SMALL = {"num_frames": 5, "num_inference_steps": 2, "seed": 1}


class NoTaps:
    is_tapped = False
    blocks_runner = None

    def tap(self, name, value):
        """Drop it."""


@pytest.fixture(scope="module")
def model():
    return load_instance(Catalog.installed().find("wan-shapes"))


def start(model, loop_id, inputs, *, profile="serve", is_exact=False):
    request = build_request(model.card, "x", parameters=SMALL)
    parameters = prepare_request(model.card, request).parameters
    scope = CancelScope("request", "a").child("loop", loop_id)
    asked = LoopRequest("a", loop_id, loop_id, parameters, inputs, scope, profile=profile, is_exact=is_exact)
    loop = model.loop(loop_id)
    return loop, loop.init(asked, LoopContext(make_generator))


def plans_of(model, loop_id, inputs, **options):
    """Run a loop to its end; return its plans and what it hands on."""
    loop, state = start(model, loop_id, inputs, **options)
    plans = []
    while not isinstance(plan := loop.next(state), Done):
        plans.append(plan)
        with torch.no_grad():
            (result,) = model.steps[loop_id](model, [plan], NoTaps())
        state = loop.advance(state, result)
    return plans, loop.finalize(state).outputs


@pytest.mark.parametrize("profile", ["serve", "rollout", "train"])
def test_every_plan_names_profile_exactness_and_place(model, profile):
    options = {"profile": profile, "is_exact": profile == "train"}
    text, encoded = plans_of(model, "text_encode", {"prompt": "a red circle"}, **options)
    denoise, sample = plans_of(model, "diffusion_denoise", {"text": encoded["embeds"]}, **options)
    decode, _ = plans_of(model, "vae_decode", sample, **options)
    for plans in (text, denoise, decode):
        assert [plan.step_index for plan in plans] == list(range(len(plans)))
        for plan in plans:
            assert plan.num_steps == len(plans)
            assert (plan.profile, plan.batch_key.profile) == (profile, profile)
            assert plan.batch_key.variant == ("exact" if options["is_exact"] else "fast")
            assert plan.batch_key.weights_version == model.weights_version
            assert plan.resources.sinks == len(plan.emits)
    kinds = [plan.batch_key.loop_kind for plan in denoise]
    assert kinds == ["diffusion_denoise.context", "diffusion_denoise.step", "diffusion_denoise.step"]


def test_exact_prompts_of_a_batch_have_the_bits_that_they_have_alone(model):
    prompts = ["a red circle moving right", "a blue square", "x"]
    started = [start(model, "text_encode", {"prompt": prompt}, is_exact=True) for prompt in prompts]
    plans = [loop.next(state) for loop, state in started]
    assert len({plan.batch_key for plan in plans}) == 1
    step, sizes = model.steps["text_encode"], []
    handle = model.component("text_encoder").register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    try:
        with torch.no_grad():
            together = step(model, plans, NoTaps())
            assert sizes == [1, 1, 1]
            alone = [step(model, [plan], NoTaps())[0] for plan in plans]
    finally:
        handle.remove()
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one.values.row.embeds_1LE, other.values.row.embeds_1LE)


@pytest.mark.parametrize("is_invariant", [False, True])
def test_where_batches_must_not_change_bits_texts_of_other_lengths_stay_apart(model, monkeypatch, is_invariant):
    parity = model.card.parity.model_copy(update={"batch_invariant": is_invariant})
    monkeypatch.setattr(model.view, "card", model.card.model_copy(update={"parity": parity}))
    prompts = ["a red circle", "a large red circle moving slowly to the right on a black background"]
    keys = []
    for prompt in prompts:
        _, encoded = plans_of(model, "text_encode", {"prompt": prompt})
        plans, _ = plans_of(model, "diffusion_denoise", {"text": encoded["embeds"]})
        keys.append(plans[-1].batch_key)
    assert (keys[0] == keys[1]) is not is_invariant
