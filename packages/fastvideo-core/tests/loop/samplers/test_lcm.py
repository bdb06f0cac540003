"""Few-step sampling against the published formula in float64, written out here independently."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.policies.flow_shift import ShiftedSigmas
from fastvideo_core.loop.samplers import ScheduleSpec, get_sampler

LCM = get_sampler("lcm")
SELF_FORCING = (1000, 750, 500, 250)
FASTWAN = (1000, 757, 522)


def shifted(sigma: float, shift: float) -> float:
    return shift * sigma / (1 + (shift - 1) * sigma)


def make_noises(count: int, start: torch.Tensor) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(start.shape, generator=generator) for _ in range(count)]


def test_warped_times_of_self_forcing():
    schedule = LCM.make_schedule(ScheduleSpec(4, shift=5.0, options={"steps": SELF_FORCING}))
    assert schedule.timesteps.dtype == torch.float32
    assert schedule.timestep_values == pytest.approx((1000.0, 937.5, 2500 / 3, 625.0), rel=1e-6)
    assert schedule.sigma_values == pytest.approx((1.0, 0.9375, 5 / 6, 0.625, 0.0), rel=1e-6)


def test_eight_steps_with_shift_12():
    steps = (1000, 850, 700, 550, 350, 275, 200, 125)
    schedule = LCM.make_schedule(ScheduleSpec(8, shift=12.0, options={"steps": steps}))
    expected = [1000 * shifted(step / 1000, 12.0) for step in steps]
    assert schedule.timestep_values == pytest.approx(expected, rel=1e-6)


def test_unwarped_times_take_the_nearest_table_level():
    schedule = LCM.make_schedule(ScheduleSpec(3, shift=8.0, options={"steps": FASTWAN, "warp": False}))
    assert schedule.timestep_values == (1000.0, 757.0, 522.0)
    table = shifted(np.arange(1000, 0, -1) / 1000, 8.0)
    nearest = [table[np.abs(1000 * table - time).argmin()] for time in FASTWAN]
    assert schedule.sigma_values == pytest.approx((*nearest, 0.0), rel=1e-6)
    # The table has no entry at the time itself, so the level is close to it and not equal.
    assert schedule.sigma_values[1] == pytest.approx(0.757, abs=2e-3)
    assert abs(schedule.sigma_values[1] - 0.757) > 1e-5


@pytest.mark.parametrize(
    ("steps", "shift", "warp"), [(SELF_FORCING, 5.0, True), (FASTWAN, 8.0, False), ((1000, 850, 125), 12.0, True)]
)
def test_trajectory_equals_the_formula_in_float64(make_trajectory, velocity_field, start, steps, shift, warp):
    noises = make_noises(len(steps), start)
    spec = ScheduleSpec(len(steps), shift=shift, options={"steps": steps, "warp": warp})
    _, ours = make_trajectory("lcm", spec, noises)

    table = shifted(np.arange(1000, 0, -1) / 1000, shift)
    times = [1000 * table[1000 - step] for step in steps] if warp else list(steps)
    levels = [*(table[np.abs(1000 * table - time).argmin()] for time in times), 0.0]
    x = start.double()
    for i, time in enumerate(times):
        velocity = velocity_field(x.float(), time).double()
        x0 = x - levels[i] * velocity
        x = (1 - levels[i + 1]) * x0 + levels[i + 1] * noises[i].double()
        torch.testing.assert_close(ours[i].double(), x, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("num_steps", [1, 4, 9])
def test_default_levels_equal_the_stochastic_reference(velocity_field, start, num_steps):
    """Without steps it is diffusers' stochastic flow Euler; x0 is taken in float64 here, in float32 there."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0, stochastic_sampling=True)
    scheduler.set_timesteps(num_steps)
    scheduler.set_begin_index(0)
    schedule = LCM.make_schedule(ScheduleSpec(num_steps, shift=3.0))
    assert torch.equal(schedule.sigmas, scheduler.sigmas)
    assert torch.equal(schedule.timesteps, scheduler.timesteps)

    theirs, mine = torch.Generator().manual_seed(11), torch.Generator().manual_seed(11)
    reference = ours = start
    for i, timestep in enumerate(scheduler.timesteps):
        velocity = velocity_field(ours, float(timestep))
        reference = scheduler.step(velocity, timestep, reference, generator=theirs, return_dict=False)[0]
        noise = torch.randn(start.shape, generator=mine) if LCM.needs_noise(schedule, i) else None
        ours, _ = LCM.step(schedule, LCM.init_state(schedule), velocity, ours, i, noise=noise)
        torch.testing.assert_close(ours, reference, rtol=1e-6, atol=1e-6)


def test_noise_is_declared_and_must_be_given(start):
    schedule = LCM.make_schedule(ScheduleSpec(4, shift=5.0, options={"steps": SELF_FORCING}))
    assert [LCM.needs_noise(schedule, i) for i in range(4)] == [True, True, True, False]
    with pytest.raises(ParameterError, match="noise=None: the step mixes in fresh noise"):
        LCM.step(schedule, LCM.init_state(schedule), start, start, 0)


def test_last_step_returns_x0_of_float64(start):
    schedule = LCM.make_schedule(ScheduleSpec(1, sigmas=ShiftedSigmas([0.8])))
    velocity = torch.sin(start)
    x0, _ = LCM.step(schedule, LCM.init_state(schedule), velocity, start, 0)
    assert x0.dtype == torch.float32
    assert torch.equal(x0, (start.double() - np.float64(np.float32(0.8)) * velocity.double()).float())


def test_step_is_differentiable(start):
    schedule = LCM.make_schedule(ScheduleSpec(4, shift=5.0, options={"steps": SELF_FORCING}))
    scale = torch.tensor(0.5, requires_grad=True)
    sample, _ = LCM.step(schedule, LCM.init_state(schedule), scale * start, start, 1, noise=torch.zeros_like(start))
    sample.sum().backward()
    assert scale.grad is not None
    expected = -(1 - 5 / 6) * 0.9375 * start.double().sum()
    assert scale.grad.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("num_steps", "options", "message"),
    [
        (5, {"steps": SELF_FORCING}, r"num_inference_steps=5: .*allowed: 4: \[1000, 750, 500, 250\]; nearest: 4"),
        (2, {"steps": (500, 750)}, "falling integers, 1 to 1000"),
        (2, {"steps": (1000, 0)}, "falling integers, 1 to 1000"),
        (2, {"steps": (1001, 500)}, "falling integers, 1 to 1000"),
        (2, {"steps": (1000, 937.5)}, "falling integers, 1 to 1000"),
        (2, {"steps": (1000, 0.5), "warp": False}, "falling numbers, 1 to 1000"),
    ],
)
def test_bad_steps_are_refused(num_steps, options, message):
    with pytest.raises(ParameterError, match=message):
        LCM.make_schedule(ScheduleSpec(num_steps, shift=5.0, options=options))


def test_steps_and_levels_exclude_each_other():
    with pytest.raises(ParameterError, match="exclude each other"):
        LCM.make_schedule(ScheduleSpec(1, sigmas=ShiftedSigmas([0.5]), options={"steps": (500,)}))
