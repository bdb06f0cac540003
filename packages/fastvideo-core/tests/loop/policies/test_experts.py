"""Routing of steps to experts."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.policies.experts import Expert, SingleExpert, StepIndexExperts, resolve_experts
from fastvideo_core.loop.samplers import SAMPLERS, ScheduleSpec

HIGH, LOW = Expert("transformer", 3.5), Expert("transformer_2", 2.5)


def test_one_expert_takes_all_steps():
    policy = resolve_experts(5.0)
    assert isinstance(policy, SingleExpert)
    assert {policy.route(t, i) for i, t in enumerate((999.0, 500.0, 0.0))} == {Expert("transformer", 5.0)}
    assert policy.experts == (Expert("transformer", 5.0),)


@pytest.mark.parametrize(
    ("timestep", "component", "scale"),
    [
        (999.0, "transformer", 3.5),
        (875.0, "transformer", 3.5),
        (874.0, "transformer_2", 2.5),
        (0.0, "transformer_2", 2.5),
    ],
)
def test_wan_2_2_routes_by_timestep(timestep, component, scale):
    policy = resolve_experts(3.5, guidance_scale_2=2.5, boundary_ratio=0.875)
    assert policy.route(timestep, 0) == Expert(component, scale)
    assert policy.experts == (HIGH, LOW)


def test_second_scale_repeats_the_first_by_default():
    policy = resolve_experts(3.5, boundary_ratio=0.9)
    assert [expert.guidance_scale for expert in policy.experts] == [3.5, 3.5]


@settings(max_examples=60)
@given(
    ratio=st.integers(0, 1000).map(lambda n: n / 1000),
    name=st.sampled_from(["unipc", "flow_euler"]),
    num_steps=st.integers(1, 30),
    shift=st.sampled_from([3.0, 5.0, 12.0]),
)
def test_route_is_the_tensor_comparison_of_the_reference(ratio, name, num_steps, shift):
    """The reference compares a timestep tensor, int64 or float32, with `boundary_ratio * num_train_timesteps`."""
    schedule = SAMPLERS[name].make_schedule(ScheduleSpec(num_steps, shift=shift))
    policy = resolve_experts(3.5, boundary_ratio=ratio)
    for i, timestep in enumerate(schedule.timesteps):
        expected = "transformer" if bool(timestep >= ratio * 1000) else "transformer_2"
        assert policy.route(schedule.timestep_values[i], i).component == expected


def test_boundary_at_a_timestep_is_inclusive_after_rounding():
    """A boundary of 559.000000001 includes the timestep 559, as it does for the reference's tensors."""
    ratio = 0.559 + 1e-12
    assert ratio * 1000 > 559
    assert bool(torch.tensor(559) >= ratio * 1000)
    assert resolve_experts(1.0, boundary_ratio=ratio).route(559.0, 0).component == "transformer"


def test_routing_by_step_index():
    policy = StepIndexExperts(starts=(10,), experts=(HIGH, LOW))
    assert [policy.route(0.0, i).component for i in (0, 9, 10, 19)] == ["transformer"] * 2 + ["transformer_2"] * 2
    three = StepIndexExperts(starts=(2, 5), experts=(HIGH, LOW, Expert("refiner", 1.0)))
    assert [three.route(0.0, i).component for i in (0, 2, 4, 5)] == [
        "transformer",
        "transformer_2",
        "transformer_2",
        "refiner",
    ]


@pytest.mark.parametrize("starts", [(5, 5), (5, 2), (-1, 3)])
def test_starts_must_ascend(starts):
    with pytest.raises(ParameterError, match="first steps must ascend"):
        StepIndexExperts(starts, (HIGH, LOW, LOW))


def test_experts_and_starts_must_match():
    with pytest.raises(ParameterError, match=r"experts=2: .*allowed: 3, one more"):
        StepIndexExperts((1, 2), (HIGH, LOW))


def test_second_scale_without_second_expert_is_refused():
    with pytest.raises(ParameterError, match=r"guidance_scale_2=2.0: the model has one expert"):
        resolve_experts(3.5, guidance_scale_2=2.0)


@pytest.mark.parametrize(("ratio", "nearest"), [(1.5, 1.0), (-0.1, 0.0)])
def test_bad_boundary_is_refused(ratio, nearest):
    with pytest.raises(ParameterError, match="boundary_ratio") as caught:
        resolve_experts(3.5, boundary_ratio=ratio)
    assert caught.value.nearest == nearest
