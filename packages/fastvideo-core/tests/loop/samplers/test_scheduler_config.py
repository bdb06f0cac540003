"""Scheduler configurations of diffusers folders."""

from __future__ import annotations

import json

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)

from fastvideo_core.errors import CheckpointError
from fastvideo_core.loop.samplers import ScheduleSpec, get_sampler
from fastvideo_core.loop.samplers.scheduler_config import read_scheduler_config

FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
KARRAS = {"use_karras_sigmas": True, "sigma_min": 0.01, "sigma_max": 80.0}


def config_of(scheduler) -> dict:
    return json.loads(scheduler.to_json_string())


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # the reference and numpy 2
@pytest.mark.parametrize(
    ("scheduler", "sampler"),
    [
        (UniPCMultistepScheduler(**FLOW, flow_shift=3.0), "unipc"),
        (UniPCMultistepScheduler(**FLOW, flow_shift=5, solver_order=3, lower_order_final=True), "unipc"),
        (UniPCMultistepScheduler(**FLOW, disable_corrector=[0, 1], final_sigmas_type="sigma_min"), "unipc"),
        (UniPCMultistepScheduler(**FLOW, **KARRAS), "unipc"),
        (FlowMatchEulerDiscreteScheduler(shift=5.0), "flow_euler"),
        (DPMSolverMultistepScheduler(**FLOW, flow_shift=3.0), "dpmpp_2m"),
    ],
)
def test_saved_configuration_gives_the_same_trajectory(tmp_path, make_trajectory, make_reference, scheduler, sampler):
    scheduler.save_pretrained(tmp_path)
    choice = read_scheduler_config(json.loads((tmp_path / "scheduler_config.json").read_text()))
    assert choice.sampler == sampler

    spec = ScheduleSpec(7, shift=choice.shift, num_train_timesteps=choice.num_train_timesteps, options=choice.options)
    schedule, ours = make_trajectory(choice.sampler, spec)
    scheduler.set_timesteps(7)
    assert torch.equal(schedule.sigmas, scheduler.sigmas)
    assert all(torch.equal(a, b) for a, b in zip(ours, make_reference(scheduler), strict=True))


def test_stochastic_euler_is_the_consistency_sampler():
    scheduler = FlowMatchEulerDiscreteScheduler(shift=8.0, stochastic_sampling=True)
    choice = read_scheduler_config(config_of(scheduler))
    assert (choice.sampler, choice.shift) == ("lcm", 8.0)
    assert get_sampler(choice.sampler).needs_noise(get_sampler("lcm").make_schedule(ScheduleSpec(3)), 0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (config_of(DDIMScheduler()), "scheduler 'DDIMScheduler' is not supported; supported: UniPC"),
        ({}, "scheduler None is not supported"),
        ({"_class_name": "UniPCMultistepScheduler"}, "prediction_type=None is not supported; supported: 'flow_pred"),
        (config_of(UniPCMultistepScheduler()), "prediction_type='epsilon' is not supported"),
        (config_of(UniPCMultistepScheduler(prediction_type="flow_prediction")), "use_flow_sigmas=False"),
        (config_of(UniPCMultistepScheduler(**FLOW, thresholding=True)), "thresholding=True"),
        (config_of(UniPCMultistepScheduler(**FLOW, solver_order=4)), "solver_order=4 .*supported: 1, 2, 3"),
        (config_of(FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)), "use_dynamic_shifting=True"),
        (config_of(FlowMatchEulerDiscreteScheduler(shift_terminal=0.1)), "shift_terminal=0.1"),
        (config_of(DPMSolverMultistepScheduler(**FLOW, algorithm_type="sde-dpmsolver++")), "algorithm_type='sde-"),
        (config_of(DPMSolverMultistepScheduler(**FLOW, solver_type="heun")), "solver_type='heun'"),
    ],
)
def test_what_would_change_the_video_is_refused(config, message):
    with pytest.raises(CheckpointError, match=message):
        read_scheduler_config(config)
