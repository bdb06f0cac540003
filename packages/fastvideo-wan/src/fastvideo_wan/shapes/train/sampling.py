"""The training's own plain sampler, for evaluations: Euler steps with guidance, all clips at once.

Shape letters: N clips, L text tokens, E text width, C latent channels, T latent frames, H rows, W columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastvideo_wan.shapes.train.model import ShapesModel


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
    """Return normalised latents made from noise with `num_steps` Euler steps.

    Args:
        model: Gives velocities.
        noise_NCTHW: Standard normal.
        text_NLE: Encoded prompts.
        empty_NLE: The encoded empty prompt, as often.
        num_steps: At least 1.
        guidance_scale: 1 for none.
        shift: Flow shift of the noise levels.
    """
    levels = shifted(torch.linspace(1, 0, num_steps + 1), shift).tolist()
    latents, both = noise_NCTHW, torch.cat([text_NLE, empty_NLE])
    for level, next_level in zip(levels, levels[1:], strict=False):
        times = torch.full((len(both),), level, device=latents.device)
        wanted, free = model.velocity(torch.cat([latents, latents]), times, both).chunk(2)
        latents = latents + (next_level - level) * (free + guidance_scale * (wanted - free))
    return latents
