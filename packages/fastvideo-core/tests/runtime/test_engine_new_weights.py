from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from fastvideo_core.errors import CheckpointError, ExecutionError, ParameterError
from fastvideo_core.runtime import new_weights
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.new_weights import NewWeights, digest_version
from fastvideo_testing.tiny import tiny_card


@pytest.fixture
def engine(tiny_folder):
    with Engine.open(tiny_card(tiny_folder)) as engine:
        yield engine


def component_of(engine):
    loop = engine.card.loops["denoise"]
    return next(name for name in loop.components if engine.instance.weights_versions.get(name))


def changed(engine, factor=1.5):
    module = engine.instance.component(component_of(engine))
    return {name: tensor * factor for name, tensor in module.state_dict().items()}


def held(engine):
    return sum(cache.stats.used_bytes for cache in engine.caches.features.values())


def frames(engine, **parameters):
    return engine.generate("x", seed=1, **parameters).video.frames


def test_new_weights_are_those_of_an_engine_that_had_them_from_the_start(engine, tiny_folder):
    before = frames(engine)
    engine.update_weights(engine.stage_weights(component_of(engine), changed(engine), version="v2"))
    after = frames(engine)
    assert not np.array_equal(before, after)
    assert engine.instance.weights_versions[component_of(engine)] == "v2"
    assert "v2" in engine.instance.weights_version
    with Engine.open(tiny_card(tiny_folder)) as other:
        module = other.instance.component(component_of(other))
        with torch.no_grad():
            for tensor in module.parameters():
                tensor.mul_(1.5)
        assert np.array_equal(after, frames(other))


def test_features_of_the_old_weights_are_dropped(engine):
    name = next(one for one in engine.instance.weights_versions if "text" in one)
    engine.generate("x", seed=1)
    assert held(engine) > 0
    module = engine.instance.component(name)
    engine.update_weights(engine.stage_weights(name, dict(module.state_dict()), version="v2"))
    assert held(engine) == 0


@pytest.mark.parametrize("mode", ["drain", "restart"])
def test_no_request_runs_with_some_of_the_old_and_some_of_the_new(mode, tiny_folder):
    versions, reached, go_on = {}, threading.Event(), threading.Event()

    def note(name, plan, value):
        if plan.loop_id == "denoise":
            versions.setdefault(plan.cancel_scope.parent.scope_id, []).append(plan.batch_key.weights_version)
            if plan.step_index == 2 and not reached.is_set():
                reached.set()
                go_on.wait(30)

    with Engine.open(tiny_card(tiny_folder), tap=note) as engine:
        handle = engine.submit(engine.make_request("x", parameters={"seed": 1, "num_inference_steps": 4}))
        assert reached.wait(30)
        new = engine.stage_weights(component_of(engine), changed(engine), version="v2")
        update = threading.Thread(target=engine.update_weights, args=(new,), kwargs={"mode": mode})
        update.start()
        time.sleep(0.05)
        late = engine.submit(engine.make_request("y", parameters={"seed": 2, "num_inference_steps": 2}))
        go_on.set()
        first, second = handle.result(60), late.result(60)
        update.join(60)
        was, now = first.video.frames, second.video.frames
        assert np.array_equal(now, engine.generate("y", seed=2, num_inference_steps=2).video.frames)
        is_new = np.array_equal(was, engine.generate("x", seed=1, num_inference_steps=4).video.frames)
    assert is_new == (mode == "restart")
    mine = versions[handle.request_id]
    assert ("v2" in mine[-1]) == (mode == "restart")
    assert ["v2" in one for one in mine] == sorted("v2" in one for one in mine)
    assert all("v2" in one for one in versions[late.request_id])


def test_a_copy_that_fails_half_way_leaves_the_old_weights_serving(engine, monkeypatch):
    before, version = frames(engine), engine.instance.weights_version
    new = engine.stage_weights(component_of(engine), changed(engine), version="v2")
    copied = new_weights._copy

    def fail(own, values):
        names = list(values)
        copied(own, {name: values[name] for name in names[: len(names) // 2]})
        monkeypatch.setattr(new_weights, "_copy", copied)
        raise RuntimeError("the link broke")

    monkeypatch.setattr(new_weights, "_copy", fail)
    with pytest.raises(Exception, match="the link broke"):
        engine.update_weights(new)
    assert engine.instance.weights_version == version
    assert np.array_equal(before, frames(engine))


def test_weights_that_do_not_fit_are_refused_before_anything_stops(engine):
    name, good = component_of(engine), changed(engine)
    key = next(iter(good))
    with pytest.raises(CheckpointError, match=f"missing: {key}"):
        engine.stage_weights(name, {k: v for k, v in good.items() if k != key})
    with pytest.raises(CheckpointError, match="unknown: stranger"):
        engine.stage_weights(name, {**good, "stranger": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="has shape"):
        engine.stage_weights(name, {**good, key: torch.zeros(7, 7, 7)})
    with pytest.raises(CheckpointError, match="NaN or infinity"):
        engine.stage_weights(name, {**good, key: good[key] * float("nan")})
    with pytest.raises(CheckpointError, match="is not loaded"):
        engine.stage_weights("nothing", good)
    with pytest.raises(ParameterError, match="version"):
        engine.stage_weights(name, good, version="")


def test_an_engine_cannot_be_frozen_in_an_unknown_way_or_by_its_own_events(engine):
    with pytest.raises(ParameterError, match="mode='at once'"), engine.frozen("at once"):
        pass
    failures = []

    def freeze(event):
        try:
            with engine.frozen():
                pass
        except ExecutionError as error:
            failures.append(str(error))

    engine.generate("x", on_event=freeze)
    assert failures
    assert "freeze it elsewhere" in failures[0]


def test_versions_follow_from_values():
    one = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.float16)}
    assert digest_version(one) == digest_version({"b": one["b"].clone(), "a": one["a"].t().contiguous().t()})
    assert digest_version(one) != digest_version({**one, "b": one["b"] * 2})
    module = torch.nn.Linear(2, 2)
    staged = NewWeights.stage("x", module, {name: t + 1 for name, t in module.state_dict().items()}, "v")
    wanted = {name: t + 1 for name, t in module.state_dict().items()}
    staged.put(module)
    assert all(torch.equal(module.state_dict()[name], wanted[name]) for name in wanted)
