"""Samplers: pure functions on explicit state, in paper notation. No function here iterates over steps.

A sampler turns settings into a `Schedule` and then makes one step at a time:

    sampler = get_sampler("unipc")
    schedule = sampler.make_schedule(ScheduleSpec(num_steps=50, shift=3.0))
    state = sampler.init_state(schedule)
    sample, state = sampler.step(schedule, state, velocity, sample, step_index)
"""

from __future__ import annotations

from fastvideo_core.loop.samplers.base import (
    LogProb,
    Sampler,
    SamplerState,
    Schedule,
    ScheduleSpec,
    StepCoefficients,
)
from fastvideo_core.loop.samplers.linear import linear_step
from fastvideo_core.loop.samplers.registry import SAMPLERS, extend_samplers, get_sampler, samplers_of

__all__ = [
    "SAMPLERS",
    "LogProb",
    "Sampler",
    "SamplerState",
    "Schedule",
    "ScheduleSpec",
    "StepCoefficients",
    "extend_samplers",
    "get_sampler",
    "linear_step",
    "samplers_of",
]
