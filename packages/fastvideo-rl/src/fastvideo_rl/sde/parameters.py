"""What requests may say of the stochastic samplers."""

from __future__ import annotations

from collections.abc import Mapping

from fastvideo_core.card import ParameterSpec

__all__ = ["PARAMETERS"]

PARAMETERS: Mapping[str, ParameterSpec] = {
    "sde_noise_level": ParameterSpec(
        type="number", default=0.7, minimum=0.0, maximum=1.0,
        description="How much noise the stochastic samplers draw; 0 draws none.",
    ),
    "sde_first_step": ParameterSpec(
        type="integer", default=0, minimum=0, maximum=999,
        description="First step in which the stochastic samplers draw noise; those before it follow the flow.",
    ),
    "sde_num_steps": ParameterSpec(
        type="integer", default=None, minimum=1, maximum=1000, is_nullable=True,
        description="How many steps draw noise; null stands for all from the first on.",
    ),
}  # fmt: skip
