from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastvideo_core.card import LoopSpec, ParameterSpec, TaskSpec
from fastvideo_core.errors import LoopMismatchError, ParameterError
from fastvideo_core.request.parameters import ResolvedParameters, check_pinned, resolve_parameters

TASK = TaskSpec(
    program="a.b:C",
    inputs={},
    outputs={"video": "video"},
    parameters={
        "num_frames": ParameterSpec(type="integer", default=9, minimum=1, maximum=81, multiple_of=4, offset=1),
        "guidance_scale": ParameterSpec(type="number", default=5.0, minimum=0, maximum=20),
        "negative_prompt": ParameterSpec(type="string", default="blurry"),
        "seed": ParameterSpec(type="integer", minimum=0, is_nullable=True),
    },
)


def loop(**pinned):
    refs = dict.fromkeys(("loop", "step", "state_schema", "step_schema", "result_schema", "step_cost_model"), "a.b:C")
    return LoopSpec(loop_id="few_steps", pinned=pinned, **refs)


VALUES = {
    "num_frames": st.integers(0, 20).map(lambda k: 4 * k + 1),
    "guidance_scale": st.floats(0, 20),
    "negative_prompt": st.text(max_size=5),
    "seed": st.none() | st.integers(0, 2**63),
}
SETTINGS = st.fixed_dictionaries({}, optional=VALUES)


@given(SETTINGS, SETTINGS)
def test_the_request_comes_before_the_deployment_before_the_card(given_, deploy):
    resolved = resolve_parameters(TASK, given_, deploy=deploy)
    assert list(resolved) == list(TASK.parameters)
    for name, spec in TASK.parameters.items():
        source = "request" if name in given_ else "deploy" if name in deploy else "card"
        value = {"request": given_, "deploy": deploy, "card": {name: spec.default}}[source][name]
        assert (resolved[name], resolved.source(name)) == (value, source)
    again = ResolvedParameters.from_json(resolved.to_json())
    assert again == resolved
    assert again.to_json() == resolved.to_json()


def test_given_as_the_default_is_given():
    resolved = resolve_parameters(TASK, {"guidance_scale": 5}, deploy={"guidance_scale": 1.0})
    assert (resolved["guidance_scale"], resolved.source("guidance_scale")) == (5.0, "request")


def test_null_is_a_value_where_it_is_allowed_and_none_elsewhere():
    assert resolve_parameters(TASK, {"seed": None}, deploy={"seed": 3})["seed"] is None
    with pytest.raises(ParameterError, match="guidance_scale=None: a value is needed"):
        resolve_parameters(TASK, {"guidance_scale": None})


def test_values_are_brought_to_their_type():
    resolved = resolve_parameters(TASK, {"num_frames": 13.0, "guidance_scale": 2})
    assert (type(resolved["num_frames"]), type(resolved["guidance_scale"])) == (int, float)


@pytest.mark.parametrize(
    ("given_", "deploy", "field", "nearest"),
    [
        ({"guidance": 3}, None, "guidance", "guidance_scale"),
        ({"frames": 3}, None, "frames", "num_frames"),
        ({"numframes": 3}, None, "numframes", "num_frames"),
        ({}, {"num_frame": 3}, "num_frame", "num_frames"),
        ({"zzz": 3}, None, "zzz", None),
        ({"num_frames": 10}, None, "num_frames", 9),
        ({}, {"num_frames": 12}, "num_frames", 13),
    ],
)
def test_what_is_wrong_is_named_with_the_nearest(given_, deploy, field, nearest):
    with pytest.raises(ParameterError) as caught:
        resolve_parameters(TASK, given_, deploy=deploy)
    assert (caught.value.field, caught.value.nearest) == (field, nearest)
    if nearest is None:
        assert caught.value.allowed == "num_frames, guidance_scale, negative_prompt, seed"


def test_what_the_weights_were_trained_for_may_be_repeated_but_not_changed():
    loops = {"few_steps": loop(num_frames=9, guidance_scale=5, timesteps="1000,757")}
    assert resolve_parameters(TASK, {"num_frames": 9.0, "guidance_scale": 5.0}, loops=loops)["num_frames"] == 9
    with pytest.raises(LoopMismatchError) as caught:
        resolve_parameters(TASK, {"num_frames": 13}, loops=loops)
    assert (caught.value.field, caught.value.value, caught.value.nearest) == ("num_frames", 13, 9)
    assert "trained for the loop few_steps" in str(caught.value)
    with pytest.raises(LoopMismatchError, match="guidance_scale=1.0"):
        resolve_parameters(TASK, {}, deploy={"guidance_scale": 1.0}, loops=loops)


def test_a_pinned_null_holds():
    check_pinned(loop(seed=None), {"seed": None})
    with pytest.raises(LoopMismatchError, match="seed=3: .*allowed: None"):
        check_pinned(loop(seed=None), {"seed": 3})


def test_resolved_parameters_do_not_change():
    values = {"a": 1}
    first = ResolvedParameters(values, {"a": "card"})
    second = first.with_value("a", 2, "engine")
    values["a"] = 3
    assert (first["a"], first.source("a"), second["a"], second.source("a")) == (1, "card", 2, "engine")
    assert repr(first) == "ResolvedParameters({'a': 1})"
    with pytest.raises(TypeError):
        first["a"] = 4
