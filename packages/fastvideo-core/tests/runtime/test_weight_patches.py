"""Changes of weights for a while: what runs meanwhile, the exact base afterwards, prices, and what cannot be."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from fastvideo_core.errors import CheckpointError, ParameterError
from fastvideo_core.loop.work import StepCost
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.patches import WeightPatch
from fastvideo_testing.tiny import tiny_card

COST = StepCost(flops=1e6, weight_bytes=1e6)


@pytest.fixture
def engine(tiny_folder):
    with Engine.open(tiny_card(tiny_folder)) as engine:
        yield engine


def component_of(engine):
    loop = engine.card.loops["denoise"]
    return next(name for name in loop.components if engine.instance.weights_versions.get(name))


def scaling(factor, version="scaled"):
    def put_on(module):
        base = [tensor.clone() for tensor in module.parameters()]
        for tensor in module.parameters():
            tensor.mul_(factor)

        def undo():
            for tensor, kept in zip(module.parameters(), base, strict=True):
                tensor.copy_(kept)

        return undo

    return WeightPatch(version, put_on, COST, COST)


def weights(engine):
    return {name: one.clone() for name, one in engine.instance.component(component_of(engine)).state_dict().items()}


def frames(engine, **parameters):
    return engine.generate("x", seed=1, **parameters).video.frames


def test_the_change_is_there_meanwhile_and_the_exact_base_afterwards(engine):
    name, base, before = component_of(engine), weights(engine), frames(engine)
    version = engine.instance.weights_version
    engine.patch_weights(name, scaling(1.5))
    assert engine.instance.weights_version == f"{version}+{name}~scaled"
    assert engine.instance.weights_versions[name] in version  # content versions are those of the base
    assert not np.array_equal(before, frames(engine))
    engine.unpatch_weights(name)
    assert engine.instance.weights_version == version
    assert all(torch.equal(one, base[key]) for key, one in weights(engine).items())
    assert np.array_equal(before, frames(engine))


def test_a_request_that_is_half_way_ends_on_the_weights_that_it_began_on(tiny_folder):
    versions, reached, go_on = {}, threading.Event(), threading.Event()

    def note(name, plan, value):
        if plan.loop_id == "denoise":
            versions.setdefault(plan.cancel_scope.parent.scope_id, set()).add(plan.batch_key.weights_version)
            reached.set()
            go_on.wait(30)

    with Engine.open(tiny_card(tiny_folder), tap=note) as engine:
        handle = engine.submit(engine.make_request("x", parameters={"seed": 1}))
        assert reached.wait(30)
        patching = threading.Thread(target=engine.patch_weights, args=(component_of(engine), scaling(1.5)))
        patching.start()
        go_on.set()
        handle.result(60)
        patching.join(60)
        engine.generate("y", seed=1)
    first, second = versions.values()
    assert len(first) == len(second) == 1
    assert second.pop().endswith("~scaled")
    assert not first.pop().endswith("~scaled")


def test_both_ways_are_priced_and_learned_from(engine):
    name = component_of(engine)
    there = [(engine.patch_weights(name, scaling(1.5)), engine.unpatch_weights(name)) for _ in range(3)]
    for on, off in there:
        assert on.predicted_s > 0
        assert off.predicted_s > 0
        assert on.seconds > 0
    # What was seen is what is predicted: the third price is about the mean of the first two.
    seen = [on.seconds for on, _ in there[:2]]
    assert min(seen) * 0.99 <= there[2][0].predicted_s <= max(seen) * 1.01


def test_what_fails_leaves_everything_as_it_was(engine):
    name, base, version = component_of(engine), weights(engine), engine.instance.weights_version

    def fail(module):
        raise CheckpointError("it does not fit")

    with pytest.raises(CheckpointError, match="does not fit"):
        engine.patch_weights(name, WeightPatch("bad", fail, COST, COST))
    assert engine.instance.weights_version == version
    with pytest.raises(ParameterError, match="no change is on it"):
        engine.unpatch_weights(name)
    engine.patch_weights(name, scaling(1.5))
    with pytest.raises(ParameterError, match="a change is on it already"):
        engine.patch_weights(name, scaling(2.0))
    with pytest.raises(ParameterError, match="changed for a while"):
        engine.sleep([name])
    with pytest.raises(ParameterError, match="changed for a while"):
        engine.update_weights(engine.stage_weights(name, base, version="v2"))
    engine.unpatch_weights(name)
    assert all(torch.equal(one, base[key]) for key, one in weights(engine).items())


def test_a_model_that_is_loaded_anew_has_the_change_again(engine):
    name, base = component_of(engine), weights(engine)
    engine.patch_weights(name, scaling(1.5))
    changed = weights(engine)
    rebuilt = engine._rebuild([])  # what the control plane calls once a device is lost
    assert rebuilt.instance.weights_version.endswith("~scaled")
    assert all(torch.equal(one, changed[key]) for key, one in weights(engine).items())
    engine.unpatch_weights(name)
    assert all(torch.equal(one, base[key]) for key, one in weights(engine).items())
