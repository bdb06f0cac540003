"""Sampling for evaluations while training: the shipped card's sampler and guidance, all clips in one batch.

Shape letters: N clips, L text tokens, E text width, C latent channels, T latent frames, H rows, W columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastvideo_core.loop.samplers.base import ScheduleSpec
from fastvideo_core.loop.samplers.registry import get_sampler
from fastvideo_wan.shapes.train.model import ShapesModel

SAMPLER = "unipc"


def shifted(times: Tensor, shift: float) -> Tensor:
    """Move noise levels, 0 to 1, towards one: s t / (1 + (s - 1) t)."""
    return shift * times / (1 + (shift - 1) * times)


@torch.no_grad()
def sample(
    model: ShapesModel,
    noise_NCTHW: Tensor,
    text_NLE: Tensor,
    empty_NLE: Tensor,
    *,
    num_steps: int,
    guidance_scale: float,
    shift: float,
) -> Tensor:
    """Return normalised latents made from noise.

    Args:
        model: Gives velocities.
        noise_NCTHW: Standard normal.
        text_NLE: Encoded prompts.
        empty_NLE: The encoded empty prompt, as often.
        num_steps: At least 1.
        guidance_scale: 1 for none.
        shift: Flow shift of the noise levels.
    """
    sampler = get_sampler(SAMPLER)
    schedule = sampler.make_schedule(ScheduleSpec(num_steps, shift))
    latents, state, both = noise_NCTHW, sampler.init_state(schedule), torch.cat([text_NLE, empty_NLE])
    for index in range(num_steps):
        times = torch.full((len(both),), schedule.timestep_values[index] / 1000, device=latents.device)
        wanted, free = model.velocity(torch.cat([latents, latents]), times, both).chunk(2)
        velocity = free + guidance_scale * (wanted - free)
        latents, state = sampler.step(schedule, state, velocity, latents, index)
    return latents
