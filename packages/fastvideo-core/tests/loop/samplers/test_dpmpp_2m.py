"""DPM-Solver++ (2M) against diffusers' scheduler, to the bit."""

from __future__ import annotations

import math

import pytest
import torch
from diffusers import DPMSolverMultistepScheduler

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.policies.flow_shift import ShiftedSigmas
from fastvideo_core.loop.samplers import ScheduleSpec, get_sampler

DPM = get_sampler("dpmpp_2m")

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)  # the reference and numpy 2


def make_scheduler(num_steps: int, **settings) -> DPMSolverMultistepScheduler:
    scheduler = DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, **settings)
    scheduler.set_timesteps(num_steps)
    return scheduler


@pytest.mark.parametrize("shift", [1.0, 3.0, 5.0])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 8, 14, 15, 50])
@pytest.mark.parametrize("order", [1, 2])
def test_trajectory_equals_the_reference(make_trajectory, make_reference, order, num_steps, shift):
    scheduler = make_scheduler(num_steps, solver_order=order, flow_shift=shift)
    schedule, ours = make_trajectory("dpmpp_2m", ScheduleSpec(num_steps, shift=shift, options={"order": order}))
    assert torch.equal(schedule.sigmas, scheduler.sigmas)
    assert schedule.timesteps.dtype == torch.int64
    assert torch.equal(schedule.timesteps, scheduler.timesteps)
    reference = make_reference(scheduler)
    assert all(torch.equal(a, b) for a, b in zip(ours, reference, strict=True))


@pytest.mark.parametrize("begin", [1, 5])
def test_begin_in_the_middle(make_trajectory, make_reference, begin):
    scheduler = make_scheduler(8, flow_shift=3.0)
    _, ours = make_trajectory("dpmpp_2m", ScheduleSpec(8, shift=3.0, begin=begin))
    assert all(torch.equal(a, b) for a, b in zip(ours, make_reference(scheduler, begin=begin), strict=True))


def test_first_order_is_ddim_in_flow_form(start):
    """To order 1 the step keeps the predicted noise: x' = alpha' x0 + sigma' eps."""
    schedule = DPM.make_schedule(ScheduleSpec(3, sigmas=ShiftedSigmas([0.9, 0.6, 0.3]), options={"order": 1}))
    velocity = torch.cos(start)
    following, state = DPM.step(schedule, DPM.init_state(schedule), velocity, start, 0)
    x0, noise = start - 0.9 * velocity, start + 0.1 * velocity
    torch.testing.assert_close(following, 0.4 * x0 + 0.6 * noise, rtol=1e-5, atol=1e-6)
    assert state.outputs == ()


def test_second_order_against_the_paper_in_float64(start):
    schedule = DPM.make_schedule(ScheduleSpec(3, sigmas=ShiftedSigmas([0.9, 0.6, 0.3])))
    v0, v1 = torch.cos(start), torch.sin(start)
    x1, state = DPM.step(schedule, DPM.init_state(schedule), v0, start, 0)
    x2, _ = DPM.step(schedule, state, v1, x1, 1)

    lambdas = [math.log((1 - s) / s) for s in (0.9, 0.6, 0.3)]
    h0, h1 = lambdas[1] - lambdas[0], lambdas[2] - lambdas[1]
    m0, m1 = (start - 0.9 * v0).double(), (x1 - 0.6 * v1).double()
    r = h0 / h1
    blend = (1 + 1 / (2 * r)) * m1 - 1 / (2 * r) * m0
    expected = 0.3 / 0.6 * x1.double() - 0.7 * (math.exp(-h1) - 1) * blend
    torch.testing.assert_close(x2.double(), expected, rtol=1e-5, atol=1e-6)


def test_a_first_level_of_one_stays_finite(start):
    schedule = DPM.make_schedule(ScheduleSpec(3, sigmas=ShiftedSigmas([1.0, 0.6, 0.3])))
    sample, state = start, DPM.init_state(schedule)
    for i in range(3):
        sample, state = DPM.step(schedule, state, torch.cos(sample), sample, i)
    assert torch.isfinite(sample).all()


def test_bad_order_is_refused():
    with pytest.raises(ParameterError, match="order=3: not an order; allowed: 1 or 2"):
        DPM.make_schedule(ScheduleSpec(8, options={"order": 3}))
