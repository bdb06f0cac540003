"""Convergence of the samplers on a flow whose solution is known, and properties of every schedule.

Data that are Gaussian, x0 ~ N(m, s²), give a linear probability flow: with V(sigma) = (1 - sigma)² s² + sigma²,

    v(x, sigma) = -m + (V'(sigma) / 2 V(sigma)) (x - (1 - sigma) m),
    x(sigma) = (1 - sigma) m + sqrt(V(sigma) / V(sigma_0)) (x(sigma_0) - (1 - sigma_0) m).
"""

from __future__ import annotations

import math
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from fastvideo_core.loop.policies.flow_shift import ShiftedSigmas
from fastvideo_core.loop.samplers import SAMPLERS, ScheduleSpec, get_sampler

HIGH, LOW = 0.7, 0.3
means, deviations = st.floats(-1.0, 1.0), st.floats(0.3, 1.5)


def variance(sigma: float, s: float) -> float:
    return (1 - sigma) ** 2 * s**2 + sigma**2


def velocity(x: torch.Tensor, sigma: float, m: float, s: float) -> torch.Tensor:
    slope = -2 * (1 - sigma) * s**2 + 2 * sigma
    return -m + slope / (2 * variance(sigma, s)) * (x - (1 - sigma) * m)


def solution(x: torch.Tensor, sigma_0: float, sigma: float, m: float, s: float) -> torch.Tensor:
    scale = math.sqrt(variance(sigma, s) / variance(sigma_0, s))
    return (1 - sigma) * m + scale * (x - (1 - sigma_0) * m)


def error(name: str, num_steps: int, m: float, s: float, options: dict) -> float:
    """Return the largest error over a cloud of points, from HIGH to LOW."""
    sampler = get_sampler(name)
    levels = np.linspace(HIGH, LOW, num_steps + 1)
    if name == "unipc":
        spec = ScheduleSpec(num_steps, sigmas=ShiftedSigmas(levels), options={**options, "final_sigma": "given"})
    else:  # these end at zero: make one step less
        spec = ScheduleSpec(num_steps + 1, sigmas=ShiftedSigmas(levels), options=options)
    schedule = sampler.make_schedule(spec)
    state, x = sampler.init_state(schedule), torch.linspace(-2, 2, 9, dtype=torch.float64).view(1, 9)
    exact = solution(x, HIGH, LOW, m, s)
    for i in range(num_steps):
        x, state = sampler.step(schedule, state, velocity(x, schedule.sigma_values[i], m, s), x, i)
    return (x - exact).abs().max().item()


@pytest.mark.parametrize(
    ("name", "options", "order"),
    [
        ("flow_euler", {}, 1),
        ("dpmpp_2m", {"order": 1}, 1),
        ("dpmpp_2m", {}, 2),
        ("unipc", {"order": 1, "lower_order_final": False}, 2),
        ("unipc", {"order": 1, "lower_order_final": False, "disable_corrector": range(99)}, 1),
        ("unipc", {"order": 2, "lower_order_final": False, "solver_type": "bh1"}, 3),
        ("unipc", {"order": 2, "lower_order_final": False}, 3),
        ("unipc", {"order": 2, "lower_order_final": False, "disable_corrector": range(99)}, 2),
        ("unipc", {"order": 3, "lower_order_final": False}, 3),
    ],
)
def test_error_falls_with_the_declared_order(name, options, order):
    """Halving the step divides the error by about 2^order; the corrector raises the order of UniPC by one.

    At order 3 the first steps, of lower orders, limit it.
    """
    coarse, fine = error(name, 16, 0.5, 1.5, options), error(name, 32, 0.5, 1.5, options)
    assert math.log2(coarse / fine) == pytest.approx(order, abs=0.25)


@settings(max_examples=25)
@given(m=means, s=deviations, name=st.sampled_from(["flow_euler", "dpmpp_2m", "unipc"]))
def test_linear_flow_converges_to_its_solution(m, s, name):
    coarse, fine = error(name, 8, m, s, {}), error(name, 64, m, s, {})
    assert fine < 0.02
    assert fine < coarse / 3 + 1e-5


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(SAMPLERS)),
    num_steps=st.integers(1, 120),
    shift=st.floats(0.2, 15.0),
    num_train_timesteps=st.sampled_from([1000, 500]),
)
def test_every_schedule_falls_from_at_most_one_to_zero(name, num_steps, shift, num_train_timesteps):
    spec = ScheduleSpec(num_steps, shift=shift, num_train_timesteps=num_train_timesteps)
    schedule = SAMPLERS[name].make_schedule(spec)
    values = schedule.sigma_values
    assert schedule.num_steps == num_steps == len(values) - 1 == len(schedule.rows)
    assert schedule.sigmas.dtype == torch.float32
    assert all(a > b for a, b in pairwise(values))
    # The reference's float32 arithmetic may end one bit above 1.
    assert values[0] <= 1.0 + 2e-6 and values[-1] == 0.0
    assert all(0 <= t <= num_train_timesteps * (1 + 2e-6) for t in schedule.timestep_values)
    assert all(a >= b for a, b in pairwise(schedule.timestep_values))
    assert all(math.isfinite(value) for row in schedule.rows for stage in row for value in stage)
    assert torch.equal(schedule.sigmas, torch.tensor(values, dtype=torch.float32))
    assert schedule.timestep_values == tuple(schedule.timesteps.tolist())


@settings(max_examples=30)
@given(name=st.sampled_from(["flow_euler", "lcm", "unipc", "dpmpp_2m"]), num_steps=st.integers(2, 60))
def test_a_larger_shift_raises_every_inner_level(name, num_steps):
    low, high = (SAMPLERS[name].make_schedule(ScheduleSpec(num_steps, shift=s)).sigma_values for s in (2.0, 5.0))
    assert all(a < b for a, b in zip(low[1:-1], high[1:-1], strict=True))
