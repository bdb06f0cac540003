from __future__ import annotations

import sys
import types

import pytest

from fastvideo_core.card.precision import PrecisionPolicy
from fastvideo_core.runtime import loading
from fastvideo_core.runtime.weights.needs import component_bytes, find_weights, key_map_of
from fastvideo_testing.tiny import tiny_card, write_tiny_checkpoint


@pytest.fixture
def card(tmp_path):
    write_tiny_checkpoint(tmp_path)
    return tiny_card(tmp_path)


def with_policy(card, name, policy, key_map=None):
    spec = card.components[name].model_copy(update={"precision_policy": policy})
    files = card.checkpoint.components[spec.load_id].model_copy(update={"key_map": key_map})
    manifest = card.checkpoint.model_copy(update={"components": {**card.checkpoint.components, spec.load_id: files}})
    return card.model_copy(update={"components": {**card.components, name: spec}, "checkpoint": manifest})


def test_a_component_goes_by_its_own_format_then_by_the_engines(card):
    files = find_weights(card).files["transformer"]
    described = card.checkpoint.components["transformer"]
    num_elements = sum(entry.num_elements for entry in files.tensors.values())

    def measured(policy, precision):
        spec = card.components["transformer"].model_copy(update={"precision_policy": policy})
        return component_bytes(spec, described, files, precision)

    assert measured(PrecisionPolicy(), "float32") == 4 * num_elements
    assert measured(PrecisionPolicy(), "bfloat16") == 2 * num_elements
    assert measured(PrecisionPolicy(compute="float32"), "bfloat16") == 4 * num_elements
    assert measured(PrecisionPolicy(keep_float32=("",)), "bfloat16") == 4 * num_elements


def test_what_stays_float32_is_said_in_the_modules_names(card, monkeypatch):
    made_up = types.ModuleType("made_up_key_map")
    made_up.rename = lambda name: f"module.{name}"
    monkeypatch.setitem(sys.modules, "made_up_key_map", made_up)
    files = find_weights(card).files["transformer"]
    name, entry = max(files.tensors.items())
    policy = PrecisionPolicy(keep_float32=(f"module.{name}",))

    def measured(key_map):
        renamed = with_policy(card, "transformer", policy, key_map)
        spec, described = renamed.components["transformer"], renamed.checkpoint.components["transformer"]
        return component_bytes(spec, described, files, "bfloat16")

    assert key_map_of(card.checkpoint.components["transformer"])(name) == name
    assert measured("made_up_key_map:rename") == measured(None) + 2 * entry.num_elements


def test_loading_asks_for_the_memory_that_the_doctor_tells(card, monkeypatch):
    card = with_policy(card, "vae", PrecisionPolicy(compute="float32"))
    asked = []
    monkeypatch.setattr(loading, "check_memory", lambda need_bytes, **_: asked.append(need_bytes))
    instance = loading.load_instance(card, device="cpu", precision="bfloat16")
    assert asked == [find_weights(card).memory_bytes(card, "bfloat16")] == [instance.num_bytes]
