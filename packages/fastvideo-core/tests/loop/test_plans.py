from __future__ import annotations

from types import SimpleNamespace

import pytest

from fastvideo_core.loop.keys import batch_key
from fastvideo_core.loop.plans import ANY_SHAPE, make_plan
from fastvideo_core.loop.work import ANYWHERE, NO_CACHE, EmitSpec, ShapeSignature, StepCost, WorkKind
from fastvideo_core.request.cancel import CancelScope

CONTRACT = SimpleNamespace(cache_class="feature", component="dit", shareable=True, contract_version="1")
CARD = SimpleNamespace(model_id="a-card", caches={"features": CONTRACT})
MODEL = SimpleNamespace(instance_id="m", precision="float32", weights_version="w1", card=CARD)
SPEC = SimpleNamespace(loop_id="denoise")
COST = StepCost(flops=3.0)


def plan(*, is_exact=False, **fields):
    state = SimpleNamespace(scope=CancelScope("request", "r"), profile="rollout", is_exact=is_exact)
    kind = WorkKind.DIFFUSION_STEP
    return make_plan(
        SPEC, MODEL, state, "payload", component="dit", kind=kind, cost=COST, step_index=2, num_steps=5, **fields
    )


def test_a_plan_says_what_its_state_and_its_loop_say():
    made = plan()
    assert (made.loop_id, made.instance_id, made.profile) == ("denoise", "m", "rollout")
    assert made.where() == "request:r: step 3 of 5 of denoise"
    assert (made.payload, made.kind, made.shape_sig) == ("payload", WorkKind.DIFFUSION_STEP, ANY_SHAPE)
    assert (made.cache, made.placement, made.max_batch) == (NO_CACHE, ANYWHERE, None)
    expected = batch_key(
        MODEL, component="dit", loop_kind="denoise", shape=ANY_SHAPE, is_exact=False, profile="rollout"
    )
    assert made.batch_key is expected


def test_an_exact_step_is_alone():
    made = plan(is_exact=True)
    assert (made.max_batch, made.batch_key.variant) == (1, "exact")


def test_kinds_of_steps_and_shapes_do_not_mix():
    keys = {
        plan(**fields).batch_key for fields in ({}, {"loop_kind": "denoise.context"}, {"shape": ShapeSignature.of(n=1)})
    }
    assert len(keys) == 3


def test_it_asks_for_all_that_it_needs():
    sinks = (EmitSpec("video", "media"), EmitSpec("words", "text"))
    needs = plan(peak_bytes=7, resident_bytes=5, cache_blocks={"kv": 2}, emits=sinks).resources
    assert (needs.cost, needs.peak_bytes, needs.resident_bytes) == (COST, 7, 5)
    assert (dict(needs.cache_blocks), needs.sinks, needs.transfer_bytes) == ({"kv": 2}, 2, 0)


@pytest.mark.parametrize("text", ["a", "b"])
def test_steps_with_equal_inputs_share_a_result(text):
    made, again, other = (plan(shared_inputs={"ids": ids}).cache.result_key for ids in (text, text, text + "!"))
    assert made == again
    assert made != other
    assert made.loop_id == "denoise"
