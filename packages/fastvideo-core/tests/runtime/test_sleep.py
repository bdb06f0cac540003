from __future__ import annotations

import gc
import hashlib
import shutil
import weakref

import numpy as np
import pytest
import torch

from fastvideo_core.errors import CheckpointError, ComponentAsleepError, ParameterError, ResourceError
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.sleep import _move, choose_mode
from fastvideo_testing.tiny import tiny_card


def digest(instance, name):
    state = instance.component(name).state_dict()
    total = hashlib.sha256()
    for key in sorted(state):
        total.update(key.encode() + state[key].reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


@pytest.fixture
def instance(tiny_folder):
    return load_instance(tiny_card(tiny_folder), device="cpu")


@pytest.fixture
def parts(instance):
    return [name for name in instance.card.components if isinstance(instance.component(name), torch.nn.Module)]


def test_weights_that_were_dropped_come_back_to_the_bit(instance, parts):
    before = {name: digest(instance, name) for name in parts}
    all_bytes = instance.num_bytes
    freed = instance.sleep(parts)
    assert freed == all_bytes > 0
    assert instance.num_bytes == 0
    assert instance.asleep.keys() == set(parts)
    assert sum(instance.asleep.values()) == all_bytes
    assert instance.wake() == all_bytes
    assert instance.asleep == {}
    assert {name: digest(instance, name) for name in parts} == before


def test_memory_is_free_as_soon_as_a_component_sleeps(instance, parts):
    module = instance.component(parts[0])
    tensors = [weakref.ref(module), *(weakref.ref(tensor) for tensor in module.parameters())]
    del module
    gc.disable()
    try:
        instance.sleep(parts[:1])
        assert all(tensor() is None for tensor in tensors)
    finally:
        gc.enable()


def test_loops_and_steps_that_need_a_sleeper_are_refused_and_others_are_not(instance):
    needs = {name: set(spec.components) for name, spec in instance.card.loops.items()}
    sleeper = next(iter(needs["denoise"]))
    instance.sleep([sleeper])
    with pytest.raises(ComponentAsleepError, match=f"loop denoise of .* {sleeper} asleep; wake them first") as caught:
        instance.loop("denoise")
    assert caught.value.components == (sleeper,)
    with pytest.raises(ComponentAsleepError, match=f"{sleeper} asleep"):
        instance.component(sleeper)
    assert instance.config(sleeper) is not None
    for name, components in needs.items():
        if sleeper not in components:
            assert instance.loop(name) is instance.loops[name]
    instance.wake([sleeper])
    assert instance.loop("denoise") is instance.loops["denoise"]


def test_an_engine_refuses_a_request_whose_loop_sleeps_and_gives_the_same_after_waking(tiny_folder):
    card = tiny_card(tiny_folder)
    with Engine.open(card, device="cpu") as engine:
        first = engine.generate("a red circle", seed=3, outputs=("latents",))
        sleeper = engine.card.loops["denoise"].components[0]
        engine.instance.sleep([sleeper])
        with pytest.raises(ComponentAsleepError, match=sleeper):
            engine.generate("a red circle", seed=3, outputs=("latents",))
        engine.instance.wake()
        again = engine.generate("a red circle", seed=3, outputs=("latents",))
    assert np.array_equal(first.latents.latents, again.latents.latents)


def test_sleeping_or_waking_twice_changes_nothing(instance, parts):
    freed = instance.sleep(parts[:1])
    assert instance.sleep(parts[:1]) == 0
    assert instance.wake(parts) == freed
    assert instance.wake(parts) == 0


def test_what_cannot_sleep_is_refused_by_name(instance, parts):
    without = next(name for name in instance.card.components if name not in parts)
    with pytest.raises(ParameterError, match=f"components='{without}': has no weights"):
        instance.sleep([parts[0], without])
    assert instance.asleep == {}
    with pytest.raises(ParameterError, match="components='vaee': no such component is loaded"):
        instance.sleep(["vaee"])
    with pytest.raises(ParameterError, match="components='vaee'"):
        instance.wake(["vaee"])
    with pytest.raises(ParameterError, match="mode='host': the weights are in host memory"):
        instance.sleep(parts, "host")
    with pytest.raises(ParameterError, match="mode='disk'.*allowed: drop, host"):
        instance.sleep(parts, "disk")


def test_weights_that_were_not_read_from_a_checkpoint_are_not_dropped(instance, parts):
    held = {name: instance._components[name] for name in instance.card.components}
    made = ModelInstance(instance.card, "made", held, precision="float32", device=torch.device("cpu"))
    with pytest.raises(ParameterError, match="was not loaded from a checkpoint"):
        made.sleep(parts)


def test_a_checkpoint_that_has_changed_is_found_and_the_component_sleeps_on(tiny_folder, tmp_path, parts):
    folder = tmp_path / "copy"
    shutil.copytree(tiny_folder, folder)
    instance = load_instance(tiny_card(folder), device="cpu")
    instance.sleep(parts)
    files = instance.card.checkpoint.components[instance.card.components[parts[0]].load_id]
    path = next((folder / files.folder).glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"weights of {parts[0]} on disk are no longer those"):
        instance.wake()
    assert instance.asleep.keys() == set(parts)
    data[-1] ^= 1
    path.write_bytes(data)
    instance.wake()


def test_without_room_nothing_wakes(instance, parts, monkeypatch):
    instance.sleep(parts)
    monkeypatch.setattr("fastvideo_core.runtime.weights.memory.available_memory", lambda _="cpu": 10)
    with pytest.raises(ResourceError, match="not enough memory"):
        instance.wake()
    assert instance.asleep.keys() == set(parts)


def test_weights_that_move_stay_tied_and_the_same(instance):
    module = torch.nn.Linear(3, 3)
    module.again = module.weight
    before, keep = module.weight.detach().clone(), module.weight
    _move(module, lambda tensor: tensor.clone())
    assert module.again is module.weight is keep
    assert torch.equal(module.weight, before)


def test_weights_go_to_host_memory_unless_they_are_in_it():
    assert choose_mode(None, torch.device("cpu")) == "drop"
    assert choose_mode(None, torch.device("cuda")) == "host"
    assert choose_mode("drop", torch.device("cuda")) == "drop"


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["host", "drop"])
def test_an_accelerator_s_memory_is_given_back(tiny_folder, mode):
    instance = load_instance(tiny_card(tiny_folder), device="cuda")
    names = [name for name in instance.card.components if isinstance(instance.component(name), torch.nn.Module)]
    before = {name: instance.component(name).state_dict() for name in names}
    before = {name: {key: tensor.cpu() for key, tensor in state.items()} for name, state in before.items()}
    used = torch.cuda.memory_allocated()
    freed = instance.sleep(names, mode)
    assert torch.cuda.memory_allocated() <= used - freed
    instance.wake()
    for name in names:
        state = instance.component(name).state_dict()
        assert all(torch.equal(tensor.cpu(), before[name][key]) for key, tensor in state.items())
        assert all(tensor.is_cuda for tensor in state.values())
