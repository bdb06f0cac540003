"""The stochastic samplers against their equations as the papers write them, in float64."""

from __future__ import annotations

import math

import pytest
import torch

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.samplers import ScheduleSpec, linear_step
from fastvideo_rl.sde.samplers import CPS, DANCE_SDE, SDE

SAMPLERS = {"sde": SDE, "dance_sde": DANCE_SDE, "cps": CPS}
LEVEL = 0.7


def moments(kind, x, v, sigma, sigma_next, second, a):
    """Return the mean and the standard deviation of a step, from the equations themselves."""
    dt, x0 = sigma_next - sigma, x - sigma * v
    eps = x + (1 - sigma) * v
    if kind == "sde":
        s = a * math.sqrt(sigma / (1 - (second if sigma == 1 else sigma)))
        mean = x * (1 + s**2 / (2 * sigma) * dt) + v * (1 + s**2 * (1 - sigma) / (2 * sigma)) * dt
        return mean, s * math.sqrt(-dt)
    if kind == "dance_sde":
        return x + v * dt + 0.5 * a**2 * (x - (1 - sigma) * x0) / sigma**2 * dt, a * math.sqrt(-dt)
    std = sigma_next * math.sin(a * math.pi / 2)
    return (1 - sigma_next) * x0 + eps * math.sqrt(sigma_next**2 - std**2), std


def density(kind, x_next, mean, std):
    squares = (x_next - mean) ** 2
    if kind == "cps":
        return -squares.mean(dim=(1, 2, 3))
    normal = torch.distributions.Normal(mean, torch.full_like(mean, std))
    return normal.log_prob(x_next).mean(dim=(1, 2, 3))


@pytest.mark.parametrize("kind", SAMPLERS)
def test_steps_and_densities_are_those_of_the_equations(kind):
    sampler = SAMPLERS[kind]
    schedule = sampler.make_schedule(ScheduleSpec(5, shift=3.0, options={"noise_level": LEVEL}))
    levels = [float(one) for one in schedule.sigmas.double()]
    generator = torch.Generator().manual_seed(1)
    for index in range(5):
        x, v, noise = (torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64) for _ in range(3))
        got, state = sampler.step(schedule, sampler.init_state(schedule), v, x, index, noise=noise)
        linear = linear_step(sampler.coefficients(schedule, index), state, v, x, noise=noise)[0]
        if index == 4:
            assert not sampler.needs_noise(schedule, index)
            assert sampler.log_prob(schedule, v, x, got, index) is None
            torch.testing.assert_close(got, x - levels[4] * v, rtol=1e-12, atol=1e-12)
            continue
        mean, std = moments(kind, x, v, levels[index], levels[index + 1], levels[1], LEVEL)
        torch.testing.assert_close(got, mean + std * noise, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(linear, got, rtol=1e-9, atol=1e-9)
        log_prob = sampler.log_prob(schedule, v, x, got, index)
        torch.testing.assert_close(log_prob, density(kind, got, mean, std), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_outside_the_window_a_step_follows_the_flow(kind):
    sampler = SAMPLERS[kind]
    schedule = sampler.make_schedule(ScheduleSpec(6, options={"first_step": 2, "num_steps": 2}))
    assert [sampler.needs_noise(schedule, index) for index in range(6)] == [False, False, True, True, False, False]
    x, v = torch.ones(1, 2), torch.full((1, 2), 0.5)
    for index in (0, 1, 4, 5):
        got, _ = sampler.step(schedule, sampler.init_state(schedule), v, x, index)
        dt = float(schedule.sigmas[index + 1] - schedule.sigmas[index])
        torch.testing.assert_close(got, x + dt * v)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_without_noise_it_is_the_flow_for_all_steps(kind):
    sampler = SAMPLERS[kind]
    schedule = sampler.make_schedule(ScheduleSpec(3, options={"noise_level": 0.0}))
    assert not any(sampler.needs_noise(schedule, index) for index in range(3))


@pytest.mark.parametrize("kind", ["sde", "dance_sde"])
def test_the_noise_keeps_the_marginals(kind):
    """With the exact velocity of data that are one point, samples of many small steps have the flow's spread."""
    sampler = SAMPLERS[kind]
    num_steps = 400
    schedule = sampler.make_schedule(ScheduleSpec(num_steps, options={"noise_level": 0.3}))
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 4000, generator=generator, dtype=torch.float64)
    state = sampler.init_state(schedule)
    for index in range(num_steps // 2):
        velocity = x / schedule.sigma_values[index]  # all data are zero
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        x, state = sampler.step(schedule, state, velocity, x, index, noise=noise)
    assert float(x.std()) == pytest.approx(schedule.sigma_values[num_steps // 2], rel=0.05)


def test_bad_options_are_refused():
    with pytest.raises(ParameterError, match="noise_level=1.5"):
        SDE.make_schedule(ScheduleSpec(3, options={"noise_level": 1.5}))
    with pytest.raises(ParameterError, match="the window lies behind the last step"):
        SDE.make_schedule(ScheduleSpec(3, options={"first_step": 3}))
    with pytest.raises(ParameterError, match="num_steps"):
        SDE.make_schedule(ScheduleSpec(3, options={"num_steps": 0}))
    with pytest.raises(ParameterError, match="draws noise"):
        SDE.step(SDE.make_schedule(ScheduleSpec(3)), SDE.init_state(None), torch.ones(1), torch.ones(1), 0)
