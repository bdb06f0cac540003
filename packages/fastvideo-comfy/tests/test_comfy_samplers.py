"""Samplers against step-by-step references in double precision, written from the formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fastvideo_comfy.names import SAMPLERS, sampler_name, split_sampler_name
from fastvideo_comfy.sampler_plugin import samplers
from fastvideo_comfy.samplers import comfy_sampler
from fastvideo_comfy.sigmas import SCHEDULERS, sampler_levels
from fastvideo_core.card import resolve_ref
from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.samplers import ScheduleSpec, linear_step

SHAPE = (1, 2, 3, 4, 5)


def denoise(x, sigma):
    """A smooth estimate of x0 that depends on x and sigma."""
    return 0.6 * np.tanh(x) + 0.3 * np.sin(3 * x + sigma) - 0.1 * sigma


def model(x, sigma):
    return torch.from_numpy((x.numpy() - denoise(x.numpy(), sigma)) / sigma)


def euler(x, levels, noises):
    for sigma, after in zip(levels[:-1], levels[1:], strict=True):
        x = x + (x - denoise(x, sigma)) / sigma * (after - sigma)
    return x


def lcm(x, levels, noises):
    for sigma, after, noise in zip(levels[:-1], levels[1:], noises, strict=True):
        x = denoise(x, sigma)
        x = after * noise + (1 - after) * x if after > 0 else x
    return x


def dpmpp_2m(x, levels, noises):
    old = None
    for i, (sigma, after) in enumerate(zip(levels[:-1], levels[1:], strict=True)):
        d = denoise(x, sigma)
        t, t_after = -math.log(sigma), math.inf if after == 0 else -math.log(after)
        h = t_after - t
        if old is None or after == 0:
            estimate = d
        else:
            r = (t + math.log(levels[i - 1])) / h
            estimate = (1 + 1 / (2 * r)) * d - old / (2 * r)
        x = after / sigma * x - math.expm1(-h) * estimate
        old = d
    return x


def res_multistep(x, levels, noises):
    old = None
    for i, (sigma, after) in enumerate(zip(levels[:-1], levels[1:], strict=True)):
        d = denoise(x, sigma)
        if old is None or after == 0:
            x = x + (x - d) / sigma * (after - sigma)
        else:
            h = math.log(sigma / after)
            c2 = -math.log(levels[i - 1] / sigma) / h
            phi1 = (math.exp(-h) - 1) / -h
            phi2 = (phi1 - 1) / -h
            x = math.exp(-h) * x + h * ((phi1 - phi2 / c2) * d + phi2 / c2 * old)
        old = d
    return x


def unipc(x, levels, solver):
    """UniPC in its variance-preserving form, as the published algorithm has it: predict, evaluate, correct."""
    levels = [*levels[:-1], levels[-1] or 0.001]
    order, last = min(3, len(levels) - 2), len(levels) - 1

    def alpha(s):
        return 1 / math.sqrt(1 + s * s)

    def evaluate(x, s):
        return denoise(x / alpha(s), s)

    x = x * alpha(levels[0])
    past = [(levels[0], evaluate(x, levels[0]))]
    for k in range(1, last + 1):
        p = k if k < order else min(order, last + 1 - k)
        s0, m0 = past[-1]
        s = levels[k]
        h = math.log(s0) - math.log(s)
        phi1 = math.expm1(-h)
        b_h = -h if solver == "bh1" else phi1
        r = [(math.log(s0) - math.log(past[-1 - i][0])) / h for i in range(1, p)]
        d = [(past[-1 - i][1] - m0) / r[i - 1] for i in range(1, p)]
        # The order conditions: sum_j rho_j r_j^(i-1) = i! phi_(i+1)(-h) (-h) / B(h), by the series of phi.
        phis = [sum((-h) ** q / math.factorial(q + i + 1) for q in range(40)) for i in range(1, p + 1)]
        b = [math.factorial(i) * phis[i - 1] * -h / b_h for i in range(1, p + 1)]
        nodes = np.array([*r, 1.0])
        matrix = np.array([nodes ** (i - 1) for i in range(1, p + 1)])
        rho_p = [0.5] if p == 2 else list(np.linalg.solve(matrix[:-1, :-1], b[:-1])) if p > 2 else []
        rho_c = [0.5] if p == 1 else list(np.linalg.solve(matrix, b))
        base = alpha(s) * s / (alpha(s0) * s0) * x - alpha(s) * phi1 * m0
        predicted = base - alpha(s) * b_h * sum(rho * one for rho, one in zip(rho_p, d, strict=True))
        if k == last:
            return predicted / alpha(s) / (1 - s)
        m = evaluate(predicted, s)
        past_part = sum(rho * one for rho, one in zip(rho_c[:-1], d, strict=True))
        x = base - alpha(s) * b_h * (past_part + rho_c[-1] * (m - m0))
        past.append((s, m))
    raise AssertionError("there is a last level")


REFERENCES = {
    "euler": euler,
    "ddim": euler,
    "lcm": lcm,
    "dpmpp_2m": dpmpp_2m,
    "res_multistep": res_multistep,
    "uni_pc": lambda x, levels, noises: unipc(x, levels, "bh1"),
    "uni_pc_bh2": lambda x, levels, noises: unipc(x, levels, "bh2"),
}


def run(name, scheduler, steps, shift, *, is_custom=False, is_linear=False):
    sampler = comfy_sampler(sampler_name(name, scheduler, is_custom=is_custom))
    schedule = sampler.make_schedule(ScheduleSpec(num_steps=steps, shift=shift))
    generator = torch.Generator().manual_seed(7)
    x = start = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
    noises = [torch.randn(SHAPE, generator=generator, dtype=torch.float64) for _ in range(schedule.num_steps)]
    state = sampler.init_state(schedule)
    for i in range(schedule.num_steps):
        assert schedule.timestep_values[i] == np.float32(np.float32(1000) * np.float32(schedule.sigma_values[i]))
        velocity = model(x, schedule.sigma_values[i])
        noise = noises[i] if sampler.needs_noise(schedule, i) else None
        if is_linear:
            x, state = linear_step(sampler.coefficients(schedule, i), state, velocity, x, noise=noise)
        else:
            x, state = sampler.step(schedule, state, velocity, x, i, noise=noise)
    return x.numpy(), start.numpy(), [noise.numpy() for noise in noises]


@pytest.mark.parametrize("name", sorted(SAMPLERS))
@pytest.mark.parametrize(("scheduler", "steps", "shift"), [
    ("simple", 30, 8.0), ("simple", 4, 5.0), ("karras", 12, 3.0), ("normal", 3, 8.0), ("beta", 9, 5.0), ("simple", 2, 8.0),
])  # fmt: skip
def test_whole_runs_are_those_of_the_formulas(name, scheduler, steps, shift):
    got, start, noises = run(name, scheduler, steps, shift)
    levels = sampler_levels(scheduler, steps, shift, drops_last_but_one=name.startswith("uni_pc"))
    expected = REFERENCES[name](start, levels, noises)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(got, expected, atol=2e-6)


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_the_fast_form_of_a_step_is_the_same(name):
    slow, _, _ = run(name, "simple", 10, 5.0)
    fast, _, _ = run(name, "simple", 10, 5.0, is_linear=True)
    np.testing.assert_allclose(fast, slow, atol=1e-9)


def test_custom_sampler_nodes_keep_all_levels():
    got, start, noises = run("uni_pc", "simple", 10, 5.0, is_custom=True)
    levels = sampler_levels("simple", 10, 5.0, drops_last_but_one=False)
    np.testing.assert_allclose(got, unipc(start, levels, "bh1"), atol=2e-6)
    dropped, _, _ = run("uni_pc", "simple", 10, 5.0)
    assert np.abs(got - dropped).max() > 1e-4


def test_the_first_draw_of_a_seed_is_comfyuis():
    generator = torch.Generator().manual_seed(923510416338945)
    torch.manual_seed(923510416338945)
    assert torch.equal(torch.randn(SHAPE, generator=generator), torch.randn(SHAPE))


def test_every_sampler_is_found_under_its_description():
    described = {spec.name: spec for spec in samplers()}
    assert len(described) == (len(SAMPLERS) + 2) * len(SCHEDULERS)
    for name, spec in described.items():
        sampler = resolve_ref(spec.implementation)
        assert sampler.name == name
        sampler_of, scheduler, drops = split_sampler_name(name)
        assert (sampler_of in SAMPLERS, scheduler in SCHEDULERS) == (True, True)
        assert drops == (sampler_of.startswith("uni_pc") and "-custom" not in name)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"num_steps": 4, "begin": 1}, "begin"),
        ({"num_steps": 4, "num_train_timesteps": 500}, "num_train_timesteps"),
        ({"num_steps": 4, "options": {"order": 2}}, "order"),
        ({"num_steps": 1}, "num_inference_steps"),
        ({"num_steps": 4, "shift": -1.0}, "shift"),
    ],
)
def test_settings_that_cannot_be_are_refused(spec, field):
    with pytest.raises(ParameterError) as caught:
        comfy_sampler("comfy.uni_pc.simple").make_schedule(ScheduleSpec(**spec))
    assert caught.value.field == field
