"""The sampler that a `scheduler_config.json` of a diffusers folder means.

Only what changes a flow model's samples is read. A setting that no sampler here has is refused: leaving it out would
give other videos than the folder's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastvideo_core.errors import CheckpointError
from fastvideo_core.loop.policies.flow_shift import check_shift

__all__ = ["SchedulerChoice", "read_scheduler_config"]

# What a setting must be, where it is there at all.
_REQUIRED: dict[str, dict[str, tuple[Any, ...]]] = {
    "UniPCMultistepScheduler": {
        "prediction_type": ("flow_prediction",),
        "use_flow_sigmas": (True,),
        "predict_x0": (True,),
        "solver_order": (1, 2, 3),
        "solver_p": (None,),
        "thresholding": (False,),
        "use_beta_sigmas": (False,),
        "use_dynamic_shifting": (False,),
        "use_exponential_sigmas": (False,),
        "shift_terminal": (None,),
    },
    "FlowMatchEulerDiscreteScheduler": {
        "invert_sigmas": (False,),
        "shift_terminal": (None,),
        "use_beta_sigmas": (False,),
        "use_dynamic_shifting": (False,),
        "use_exponential_sigmas": (False,),
        "use_karras_sigmas": (False,),
    },
    "DPMSolverMultistepScheduler": {
        "prediction_type": ("flow_prediction",),
        "use_flow_sigmas": (True,),
        "algorithm_type": ("dpmsolver++", "deis"),
        "final_sigmas_type": ("zero",),
        "solver_order": (1, 2),
        "solver_type": ("midpoint", "logrho", "bh1", "bh2"),
        "thresholding": (False,),
        "use_beta_sigmas": (False,),
        "use_dynamic_shifting": (False,),
        "use_exponential_sigmas": (False,),
        "use_karras_sigmas": (False,),
        "use_lu_lambdas": (False,),
    },
}
# Settings whose absence means another value than the one required above.
_NEEDED = ("prediction_type", "use_flow_sigmas")


@dataclass(frozen=True, slots=True)
class SchedulerChoice:
    """A sampler with its settings.

    Attributes:
        sampler: Its name.
        shift: The flow shift.
        num_train_timesteps: Length of the timestep scale.
        options: For `ScheduleSpec.options`.
    """

    sampler: str
    shift: float
    num_train_timesteps: int
    options: dict[str, Any] = field(default_factory=dict)


def read_scheduler_config(config: Mapping[str, Any]) -> SchedulerChoice:
    """Return the sampler that a scheduler configuration means.

    Raises:
        CheckpointError: The scheduler, or one of its settings, is not supported; names it.
        ParameterError: The shift is no positive number.
    """
    name = config.get("_class_name")
    if name not in _REQUIRED:
        raise CheckpointError(f"scheduler {name!r} is not supported; supported: {', '.join(_REQUIRED)}")
    for key, allowed in _REQUIRED[name].items():
        if (key in config or key in _NEEDED) and config.get(key) not in allowed:
            texts = ", ".join(map(repr, allowed))
            raise CheckpointError(f"{name} with {key}={config.get(key)!r} is not supported; supported: {texts}")
    return _READERS[name](config, int(config.get("num_train_timesteps", 1000)))


def _unipc(config: Mapping[str, Any], num_train_timesteps: int) -> SchedulerChoice:
    options: dict[str, Any] = {
        "order": config.get("solver_order", 2),
        # The reference takes solver types of other schedulers for bh2.
        "solver_type": "bh1" if config.get("solver_type") == "bh1" else "bh2",
        "lower_order_final": config.get("lower_order_final", True),
        "disable_corrector": tuple(config.get("disable_corrector") or ()),
        "final_sigma": config.get("final_sigmas_type", "zero"),
    }
    if config.get("use_karras_sigmas", False):
        options |= {"grid": "karras", "sigma_min": config.get("sigma_min"), "sigma_max": config.get("sigma_max")}
    return SchedulerChoice("unipc", check_shift(config.get("flow_shift", 1.0)), num_train_timesteps, options)


def _euler(config: Mapping[str, Any], num_train_timesteps: int) -> SchedulerChoice:
    sampler = "lcm" if config.get("stochastic_sampling", False) else "flow_euler"
    return SchedulerChoice(sampler, check_shift(config.get("shift", 1.0)), num_train_timesteps)


def _dpm(config: Mapping[str, Any], num_train_timesteps: int) -> SchedulerChoice:
    options = {"order": config.get("solver_order", 2)}
    return SchedulerChoice("dpmpp_2m", check_shift(config.get("flow_shift", 1.0)), num_train_timesteps, options)


_READERS: dict[str, Callable[[Mapping[str, Any], int], SchedulerChoice]] = {
    "UniPCMultistepScheduler": _unipc,
    "FlowMatchEulerDiscreteScheduler": _euler,
    "DPMSolverMultistepScheduler": _dpm,
}
