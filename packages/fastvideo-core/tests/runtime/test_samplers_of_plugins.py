from __future__ import annotations

from dataclasses import replace

import pytest

from fastvideo_core.errors import PluginError
from fastvideo_core.extend import SamplerSpec
from fastvideo_core.extend.extensions import NO_EXTENSIONS
from fastvideo_core.loop.samplers import SAMPLERS, get_sampler, samplers_of
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.samplers import load_samplers, with_samplers
from fastvideo_testing.tiny import tiny_card


@pytest.fixture
def heun(made_up):
    """Extensions with a sampler of another name than core's."""
    made_up("HEUN", replace(SAMPLERS["flow_euler"], name="heun"))
    return replace(NO_EXTENSIONS, samplers={"heun": SamplerSpec("heun", "fastvideo_made_up:HEUN")})


def test_without_plugins_there_are_cores(tiny_folder):
    card = tiny_card(tiny_folder)
    assert load_samplers(None) is load_samplers(NO_EXTENSIONS) is SAMPLERS
    assert with_samplers(card, NO_EXTENSIONS) is card
    assert samplers_of(object()) is SAMPLERS


def test_a_model_and_its_loops_know_the_plugins_samplers(heun, tiny_folder):
    instance = load_instance(tiny_card(tiny_folder), samplers=load_samplers(heun))
    for model in (instance, instance.view):
        assert get_sampler("heun", samplers_of(model)).name == "heun"


def test_a_card_takes_them_wherever_requests_choose(heun, tiny_folder, with_loop):
    card = tiny_card(tiny_folder)
    for task in with_samplers(card, heun).capabilities.tasks.values():
        assert task.parameters["sampler"].choices == ("euler", "heun")
    pinned = with_loop(card, "denoise", pinned={"sampler": "euler"})
    assert with_samplers(pinned, heun) is pinned


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("heun", "no sampler", "is no sampler of that name"),
        ("other", SAMPLERS["unipc"], "is no sampler of that name"),
        ("unipc", SAMPLERS["unipc"], "a sampler named 'unipc' exists already"),
    ],
)
def test_what_is_no_new_sampler_is_refused(name, value, why, made_up):
    spec = SamplerSpec(name, made_up("SAMPLER", value))
    with pytest.raises(PluginError, match=why):
        load_samplers(replace(NO_EXTENSIONS, samplers={name: spec}))
