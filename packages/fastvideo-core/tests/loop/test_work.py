from __future__ import annotations

import dataclasses

import pytest

from fastvideo_core.loop.work import (
    BatchKey,
    CachePlan,
    Done,
    PlacementHint,
    ResourceRequest,
    ShapeSignature,
    StepCost,
    StepResult,
    StreamChunk,
    Wait,
    WorkKind,
    WorkPlan,
)
from fastvideo_core.request.cancel import CancelScope

SIGNATURE = ShapeSignature.of(frames=3, rows=4)
KEY = BatchKey("m", "transformer", "denoise", SIGNATURE, "float32")
PLAN = WorkPlan(
    loop_id="denoise", instance_id="m", kind=WorkKind.DIFFUSION_STEP, shape_sig=SIGNATURE,
    resources=ResourceRequest(StepCost(1.0, 2.0)), cache=CachePlan(), placement=PlacementHint(),
    cancel_scope=CancelScope("request", "a").child("loop", "b"), emits=(), batch_key=KEY, payload=None,
    step_index=1, num_steps=4,
)  # fmt: skip


def test_the_parts_of_a_plan_cannot_be_changed():
    assert not hasattr(PLAN, "__dict__"), "a plan holds its fields and nothing else"
    for value in (PLAN.resources, PLAN.cache, PLAN.placement, StepResult(None), Wait("time", 1.0), Done()):
        field = next(iter(type(value).__dataclass_fields__), "x")
        with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
            setattr(value, field, None)
        assert not hasattr(value, "__dict__")


def test_defaults_are_shared_and_closed():
    blocks, scalars = ResourceRequest(StepCost(0, 0)).cache_blocks, StepResult(None).scalars
    for mapping in (blocks, scalars):
        with pytest.raises(TypeError):
            mapping["x"] = 1


def test_what_may_share_a_call_has_equal_keys():
    assert BatchKey("m", "transformer", "denoise", ShapeSignature.of(frames=3, rows=4), "float32") == KEY
    others = {
        KEY._replace(**{name: value})
        for name, value in {
            "instance_id": "n", "component": "transformer_2", "loop_kind": "other", "precision": "bfloat16",
            "shape_sig": ShapeSignature.of(frames=3, rows=5), "adapters": (("lora", "1"),), "weights_version": "2",
            "profile": "rollout", "parallel_plan": "tp2", "graph_key": "g", "variant": "exact",
        }.items()
    }  # fmt: skip
    assert len(others | {KEY}) == len(KEY._fields) + 1


def test_a_signature_keeps_its_order():
    assert SIGNATURE.dims == (("frames", 3), ("rows", 4))
    assert ShapeSignature.of(rows=4, frames=3) != SIGNATURE
    assert ShapeSignature.of().dims == ()


def test_a_step_tells_where_it_is():
    assert PLAN.where() == "request:a/loop:b: step 2 of 4 of denoise"
    assert dataclasses.replace(PLAN, num_steps=None).where() == "request:a/loop:b: step 2 of denoise"


def test_kinds_are_their_names():
    assert WorkKind.VAE_TILE == "vae_tile"
    assert len(WorkKind) == 13
    assert all(kind == kind.name.lower() for kind in WorkKind)


def test_a_chunk_has_its_place():
    chunk = StreamChunk("video", "media", 2, None, 0.5, 1.0, True)
    assert (chunk.stream, chunk.index, chunk.start_s, chunk.end_s, chunk.is_final) == ("video", 2, 0.5, 1.0, True)
