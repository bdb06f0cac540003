"""Samplers by name, and their common settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastvideo_core.errors import ParameterError, PluginError
from fastvideo_core.loop.samplers import SAMPLERS, ScheduleSpec, extend_samplers, get_sampler


def test_names_are_keys():
    assert set(SAMPLERS) == {"unipc", "flow_euler", "dpmpp_2m", "lcm"}
    assert all(SAMPLERS[name].name == name for name in SAMPLERS)


@pytest.mark.parametrize(("name", "nearest"), [("unipcc", "unipc"), ("euler", "flow_euler"), ("DPM++ 2M", "dpmpp_2m")])
def test_unknown_name_gives_the_nearest(name, nearest):
    with pytest.raises(ParameterError, match=f"sampler=.*not a known sampler.*nearest: {nearest}") as caught:
        get_sampler(name)
    assert caught.value.nearest == nearest
    assert caught.value.field == "sampler"


def test_extension_gives_a_new_registry():
    mine = replace(SAMPLERS["flow_euler"], name="mine")
    extended = extend_samplers([mine])
    assert get_sampler("mine", extended) is mine
    assert "mine" not in SAMPLERS
    with pytest.raises(ParameterError):
        get_sampler("mine")


def test_a_taken_name_is_refused():
    with pytest.raises(PluginError, match="'unipc' exists already"):
        extend_samplers([SAMPLERS["unipc"]])


def test_registries_cannot_be_written_to():
    with pytest.raises(TypeError):
        SAMPLERS["x"] = SAMPLERS["unipc"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_steps": 0}, "num_inference_steps=0: too few steps; allowed: an integer of at least 1; nearest: 1"),
        ({"num_steps": 4, "begin": 4}, "begin=4: no such step; allowed: 0 to 3; nearest: 3"),
        ({"num_steps": 4, "begin": -1}, "begin=-1: no such step; allowed: 0 to 3; nearest: 0"),
    ],
)
def test_bad_common_settings_are_refused(arguments, message):
    with pytest.raises(ParameterError, match=message):
        ScheduleSpec(**arguments)
