from __future__ import annotations

import sys
import types
from dataclasses import replace

import pytest

from fastvideo_core.card import ParameterSpec
from fastvideo_core.errors import ParameterError, PluginError
from fastvideo_core.extend import SamplerSpec
from fastvideo_core.extend.extensions import NO_EXTENSIONS
from fastvideo_core.loop.samplers import SAMPLERS
from fastvideo_core.request.parameters import resolve_parameters
from fastvideo_core.runtime.samplers import with_samplers
from fastvideo_testing.tiny import tiny_card

LEVEL = ParameterSpec(type="number", default=0.5, minimum=0, maximum=1)
OTHER = ParameterSpec(type="integer", default=2)


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("made_up_samplers")
    made.LEVELS, made.OTHERS, made.WRONG = {"level": LEVEL}, {"level": OTHER}, {"level": 3}
    monkeypatch.setitem(sys.modules, "made_up_samplers", made)


def extensions(**parameters):
    specs = {
        name: SamplerSpec(name=name, implementation="made_up_samplers:X", parameters=f"made_up_samplers:{ref}")
        for name, ref in parameters.items()
    }
    return replace(NO_EXTENSIONS, samplers=specs)


def test_samplers_bring_parameters_that_requests_may_set(module, tiny_folder):
    card = with_samplers(tiny_card(tiny_folder), extensions(noisy="LEVELS", noisier="LEVELS"))
    task = card.task("text_to_video")
    assert task.parameters["level"] == LEVEL
    assert {"noisy", "noisier"} <= set(task.parameters["sampler"].choices)
    assert resolve_parameters(task, {"sampler": "noisy"})["level"] == 0.5
    with pytest.raises(ParameterError, match=r"level=2.*nearest: 1"):
        resolve_parameters(task, {"level": 2})


def test_one_name_has_one_meaning(module, tiny_folder):
    with pytest.raises(PluginError, match="'level' is another sampler's"):
        with_samplers(tiny_card(tiny_folder), extensions(noisy="LEVELS", other="OTHERS"))
    with pytest.raises(PluginError, match="'level' is no ParameterSpec"):
        with_samplers(tiny_card(tiny_folder), extensions(noisy="WRONG"))


def test_a_requests_parameters_go_over_the_cards_options():
    sampler = replace(SAMPLERS["flow_euler"], parameters={"noise": "level"})
    assert sampler.options_of({"noise": 1, "kind": "x"}, {"level": 2, "seed": 3}) == {"noise": 2, "kind": "x"}
    assert sampler.options_of({"noise": 1}, {"seed": 3}) == {"noise": 1}
