"""Samplers against step-by-step references in double precision, written from the formulas."""

from __future__ import annotations

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
@pytest.mark.parametrize(
    ("scheduler", "steps", "shift"),
    [
        ("simple", 30, 8.0),
        ("simple", 4, 5.0),
        ("karras", 12, 3.0),
        ("normal", 3, 8.0),
        ("beta", 9, 5.0),
        ("simple", 2, 8.0),
    ],
)
def test_whole_runs_are_those_of_the_formulas(comfy_references, name, scheduler, steps, shift):
    got, start, noises = run(name, scheduler, steps, shift)
    levels = sampler_levels(scheduler, steps, shift, drops_last_but_one=name.startswith("uni_pc"))
    expected = comfy_references[name](start, levels, noises, denoise)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(got, expected, atol=2e-6)


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_the_fast_form_of_a_step_is_the_same(name):
    slow, _, _ = run(name, "simple", 10, 5.0)
    fast, _, _ = run(name, "simple", 10, 5.0, is_linear=True)
    np.testing.assert_allclose(fast, slow, atol=1e-9)


def test_custom_sampler_nodes_keep_all_levels(comfy_references):
    got, start, noises = run("uni_pc", "simple", 10, 5.0, is_custom=True)
    levels = sampler_levels("simple", 10, 5.0, drops_last_but_one=False)
    np.testing.assert_allclose(got, comfy_references["uni_pc"](start, levels, noises, denoise), atol=2e-6)
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
