"""Trajectories of samplers here and of the reference's schedulers, on the same made-up velocity field."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fastvideo_core.loop.samplers import SamplerState, Schedule, ScheduleSpec, get_sampler

Field = Callable[[torch.Tensor, float], torch.Tensor]


@pytest.fixture
def velocity_field() -> Field:
    """A smooth, nonlinear velocity whose values depend on sample and timestep."""

    def velocity(sample: torch.Tensor, timestep: float) -> torch.Tensor:
        return torch.tanh(sample - 0.7 * sample.roll(1, -1) + timestep / 1000) - 0.5 * sample

    return velocity


@pytest.fixture
def start() -> torch.Tensor:
    """Noise of shape (1, 4, 3, 5, 7)."""
    return torch.randn(1, 4, 3, 5, 7, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def make_trajectory(velocity_field: Field, start: torch.Tensor):
    """Run a sampler here; returns its schedule and all samples."""

    def run(name: str, spec: ScheduleSpec, noises: list[torch.Tensor] | None = None):
        sampler = get_sampler(name)
        schedule: Schedule = sampler.make_schedule(spec)
        state: SamplerState = sampler.init_state(schedule)
        sample, samples = start.clone(), []
        for i in range(schedule.begin, schedule.num_steps):
            velocity = velocity_field(sample, schedule.timestep_values[i])
            noise = noises[i] if noises is not None and sampler.needs_noise(schedule, i) else None
            sample, state = sampler.step(schedule, state, velocity, sample, i, noise=noise)
            samples.append(sample)
        return schedule, samples

    return run


@pytest.fixture
def make_reference(velocity_field: Field, start: torch.Tensor):
    """Run a diffusers scheduler whose timesteps are set; returns all samples."""

    def run(scheduler, begin: int = 0, end: int | None = None, **step_arguments):
        scheduler.set_begin_index(begin)
        sample, samples = start.clone(), []
        for timestep in scheduler.timesteps[begin:end]:
            velocity = velocity_field(sample, float(timestep))
            sample = scheduler.step(velocity, timestep, sample, return_dict=False, **step_arguments)[0]
            samples.append(sample)
        return samples

    return run
