"""The flow Euler method against diffusers' scheduler, to the bit."""

from __future__ import annotations

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.policies.flow_shift import FlowSigmas, ShiftedSigmas
from fastvideo_core.loop.samplers import ScheduleSpec, get_sampler

EULER = get_sampler("flow_euler")


@pytest.mark.parametrize("shift", [1.0, 3.0, 5.0, 8.0])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 8, 20, 50])
def test_trajectory_equals_the_reference(make_trajectory, make_reference, num_steps, shift):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(num_steps)
    schedule, ours = make_trajectory("flow_euler", ScheduleSpec(num_steps, shift=shift))
    assert torch.equal(schedule.sigmas, scheduler.sigmas)
    assert schedule.timesteps.dtype == torch.float32
    assert torch.equal(schedule.timesteps, scheduler.timesteps)
    reference = make_reference(scheduler)
    assert all(torch.equal(a, b) for a, b in zip(ours, reference, strict=True))


@pytest.mark.parametrize("num_steps", [7, 100, 333, 1000])
@pytest.mark.parametrize("shift", [1.0, 2.37, 12.0])
def test_schedule_equals_the_reference(num_steps, shift):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(num_steps)
    schedule = EULER.make_schedule(ScheduleSpec(num_steps, shift=shift))
    assert torch.equal(schedule.sigmas, scheduler.sigmas)
    assert torch.equal(schedule.timesteps, scheduler.timesteps)


def test_own_levels_are_rounded_before_the_shift(make_trajectory, make_reference):
    levels = [0.99, 0.77, 0.51, 0.123]
    scheduler = FlowMatchEulerDiscreteScheduler(shift=5.0)
    scheduler.set_timesteps(sigmas=levels)
    schedule, ours = make_trajectory("flow_euler", ScheduleSpec(4, shift=5.0, sigmas=FlowSigmas(levels)))
    assert torch.equal(schedule.sigmas, scheduler.sigmas)
    assert torch.equal(ours[-1], make_reference(scheduler)[-1])


def test_final_levels_are_not_shifted():
    schedule = EULER.make_schedule(ScheduleSpec(2, shift=5.0, sigmas=ShiftedSigmas([0.75, 0.25])))
    assert schedule.sigma_values == (0.75, 0.25, 0.0)
    assert schedule.timestep_values == (750.0, 250.0)
    assert schedule.shift == 1.0


def test_one_step_by_hand():
    schedule = EULER.make_schedule(ScheduleSpec(2, sigmas=ShiftedSigmas([0.75, 0.25])))
    sample, velocity = torch.tensor([1.0, -2.0]), torch.tensor([4.0, 8.0])
    following, state = EULER.step(schedule, EULER.init_state(schedule), velocity, sample, 0)
    assert following.tolist() == [-1.0, -6.0]
    assert state == EULER.init_state(schedule)


def test_latents_stay_float32_under_a_bfloat16_velocity():
    schedule = EULER.make_schedule(ScheduleSpec(2, sigmas=ShiftedSigmas([0.75, 0.25])))
    velocity = torch.tensor([0.1], dtype=torch.bfloat16)
    following, _ = EULER.step(schedule, EULER.init_state(schedule), velocity, torch.tensor([1.0]), 0)
    assert following.dtype == torch.float32
    assert following.item() == pytest.approx(1.0 - 0.5 * velocity.item(), abs=1e-7)


def test_needs_no_noise_and_has_no_options():
    schedule = EULER.make_schedule(ScheduleSpec(3))
    assert not any(EULER.needs_noise(schedule, i) for i in range(3))
    with pytest.raises(ParameterError, match="flow_euler has no such option; allowed: none"):
        EULER.make_schedule(ScheduleSpec(3, options={"order": 2}))


@pytest.mark.parametrize("shift", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_shifts_are_refused(shift):
    with pytest.raises(ParameterError, match=r"flow_shift=.*not a flow shift"):
        EULER.make_schedule(ScheduleSpec(3, shift=shift))
