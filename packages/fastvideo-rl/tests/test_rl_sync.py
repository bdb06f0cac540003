from __future__ import annotations

import time

import pytest
import torch

from fastvideo_core.errors import CheckpointError, ConfigError
from fastvideo_core.extend.extensions import Extensions
from fastvideo_core.runtime import new_weights
from fastvideo_core.transport import LocalTransport
from fastvideo_rl.rollout.roller import GroupPlan
from fastvideo_rl.sync import WeightSyncPlan, open_transport, sync_weights

SDE = {"sampler": "sde"}


@pytest.fixture
def weights(engine):
    own = engine.instance.component("transformer").state_dict()
    kept = {name: tensor.clone() for name, tensor in own.items()}
    version = engine.instance.weights_versions["transformer"]
    yield {name: tensor * 1.1 for name, tensor in kept.items()}
    engine.update_weights(engine.stage_weights("transformer", kept, version=version))


def shapes_of(tensors):
    return {"student": {name: tuple(tensor.shape) for name, tensor in tensors.items()}}


@pytest.mark.parametrize("transport", [None, "local", "shm"])
def test_new_weights_make_the_next_rollouts_and_their_records_say_so(engine, roller, size, weights, transport):
    plan = WeightSyncPlan("student", "transformer", transport=transport or "direct")
    known = {"shm": object()}
    plan.validate(engine, shapes_of(weights), transports=known)
    before = roller.run([GroupPlan("x", (1, 2), {**size, **SDE})])[0]
    through = open_transport(
        transport or "direct", Extensions.load({"transport.shm": {}} if transport == "shm" else {})
    )
    report = sync_weights(plan, engine, weights, "student-1", transport=through)
    after = roller.run([GroupPlan("x", (1, 2), {**size, **SDE})])[0]
    assert report.num_bytes == sum(tensor.numel() * 4 for tensor in weights.values())
    assert report.pause_s > 0
    assert all(
        torch.equal(engine.instance.component("transformer").state_dict()[name], one) for name, one in weights.items()
    )
    assert "student-1" in after.records[0].weights_version
    assert "student-1" not in before.records[0].weights_version
    assert not torch.equal(before.records[0].latents_1CTHW, after.records[0].latents_1CTHW)


def test_served_requests_share_the_engine_and_are_not_mixed(engine, roller, size, weights):
    plan = WeightSyncPlan("student", "transformer")
    pending = roller.submit([GroupPlan("x", tuple(range(4)), {**size, **SDE, "num_inference_steps": 8})])
    served = engine.submit(engine.make_request("y", parameters={**size, "seed": 1}, outputs=("latents",)))
    sync_weights(plan, engine, weights, "student-2")
    late = roller.run([GroupPlan("x", (9,), {**size, **SDE})])[0]
    assert served.result(60).latents.latents.shape[0] == 16
    group = pending[0].result(60)
    versions = {step.weights_version for record in group.records for step in record.steps}
    assert len(versions) == 1
    assert "student-2" in late.records[0].weights_version


def test_a_crash_in_the_middle_leaves_the_previous_version_serving(engine, roller, size, weights, monkeypatch):
    def sample():
        return roller.run([GroupPlan("x", (1,), size)])[0].records[0]

    before, copied = sample(), new_weights._copy

    def fail(own, values):
        monkeypatch.setattr(new_weights, "_copy", copied)
        copied(own, dict(list(values.items())[:3]))
        raise RuntimeError("gone")

    monkeypatch.setattr(new_weights, "_copy", fail)
    with pytest.raises(Exception, match="gone"):
        sync_weights(WeightSyncPlan("student", "transformer"), engine, weights, "student-3")
    after = sample()
    assert torch.equal(before.latents_1CTHW, after.latents_1CTHW)
    assert before.weights_version == after.weights_version
    bad = {**weights, "proj_out.bias": weights["proj_out.bias"] * float("nan")}
    with pytest.raises(CheckpointError, match="NaN"):
        sync_weights(WeightSyncPlan("student", "transformer"), engine, bad, "student-4")
    assert torch.equal(before.latents_1CTHW, sample().latents_1CTHW)


def test_a_transport_that_fails_leaves_everything_as_it_is(engine, weights):
    class Broken(LocalTransport):
        def connect(self, address, *, timeout_s):
            channel = super().connect(address, timeout_s=timeout_s)
            channel.close()
            return channel

    version = engine.instance.weights_version
    with pytest.raises(Exception, match=r"."):
        sync_weights(WeightSyncPlan("student", "transformer"), engine, weights, "v", transport=Broken())
    assert engine.instance.weights_version == version


CASES = {
    "role": ({"role": "studnt"}, "sync.role='studnt': no such role.*nearest: student"),
    "component": ({"component_id": "unet"}, "sync.component_id='unet'"),
    "transport": ({"transport": "pigeon"}, "no such transport"),
    "mode": ({"mode": "now"}, "no such mode"),
    "source": ({"source_axes": {"fsdp": 2}}, "sync.source_axes.*a product of 1"),
    "target": ({"target_axes": {"tp": 2}}, "sync.target_axes"),
    "adapter": ({"adapter": lambda name: f"model.{name}"}, "the layouts do not fit"),
    "clash": ({"adapter": lambda name: "one"}, "two weights have one name"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_plan_is_checked_before_anything_moves(case, engine, weights):
    changes, message = CASES[case]
    plan = WeightSyncPlan(**{"role": "student", "component_id": "transformer", **changes})
    with pytest.raises(ConfigError, match=message):
        plan.validate(engine, shapes_of(weights))


def test_another_shape_is_found_and_several_processes_are_counted(engine, weights):
    shapes = shapes_of(weights)
    WeightSyncPlan("student", "transformer", {"fsdp": 2}).validate(engine, shapes, world_size=2)
    shapes["student"]["proj_out.bias"] = (3,)
    with pytest.raises(ConfigError, match=r"sync.proj_out.bias=\[3\]: another shape"):
        WeightSyncPlan("student", "transformer").validate(engine, shapes)


def test_an_adapter_renames(engine, weights):
    given = {f"student.{name}": tensor for name, tensor in weights.items()}
    plan = WeightSyncPlan("student", "transformer", adapter=lambda name: name.removeprefix("student."))
    plan.validate(engine, shapes_of(given))
    started_at = time.perf_counter()
    report = sync_weights(plan, engine, given, "renamed")
    assert report.pause_s < time.perf_counter() - started_at
    assert engine.instance.weights_versions["transformer"] == "renamed"


def test_unknown_transports_are_named():
    with pytest.raises(ConfigError, match="transport='smh'"):
        open_transport("smh", Extensions.load({}))
