"""The published few-step update, written from its formula, in float64: what FastWan's loop is measured against.

    x0 = x - sigma v        x' = (1 - sigma') x0 + sigma' eps        sigma(t) = s t / (1 + (s - 1) t)

Source: Yin et al. 2024, arXiv:2405.14867; sigma of a step is that of the nearest of 1,000 shifted training times.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch

from fastvideo_core.card import ModelCard
from fastvideo_core.loop.policies.conditioning import num_latent_frames, pad_text
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_core.runtime.run import make_generator

__all__ = ["few_step_reference"]


def few_step_reference(
    card: ModelCard, transformer: Any, text_1LE: torch.Tensor, parameters: ResolvedParameters
) -> torch.Tensor:
    """Return the latents of a few-step text-to-video request.

    Args:
        card: The card.
        transformer: The reference's transformer.
        text_1LE: Encoded prompt, without padding.
        parameters: Resolved parameters of the request.
    """
    options = card.loops["dmd_denoise"].options
    steps = options["sampler_options"]["lcm"]["steps"]
    sigmas = [_nearest_sigma(step, parameters["flow_shift"]) for step in steps]
    text = pad_text(text_1LE, [text_1LE.shape[1]], options["text_length"])
    spec = card.task("text_to_video").parameters
    scale = _spatial_factor(card)
    config = transformer.config
    shape = (
        1,
        config.in_channels,
        num_latent_frames(parameters["num_frames"], spec["num_frames"].multiple_of or 4),
        parameters["height"] // scale,
        parameters["width"] // scale,
    )
    generator = make_generator(parameters["seed"])
    noise = torch.randn(shape, generator=generator)
    fresh = [torch.randn(shape, generator=generator) for _ in steps[1:]]
    tokens = shape[2] * shape[3] * shape[4] // 4 if options["expand_timesteps"] else None

    def update(x: torch.Tensor, index: int) -> torch.Tensor:
        timestep = torch.tensor([float(steps[index])])
        timestep = timestep if tokens is None else timestep.expand(1, tokens)
        with torch.no_grad():
            velocity = transformer(x.float(), timestep, text, return_dict=False)[0]
        x0 = x.double() - sigmas[index] * velocity.double()
        if index + 1 == len(steps):
            return x0
        return (1 - sigmas[index + 1]) * x0 + sigmas[index + 1] * fresh[index].double()

    return reduce(update, range(len(steps)), noise).float()


def _nearest_sigma(step: float, shift: float) -> float:
    times = torch.linspace(1.0, 0.0, 1001, dtype=torch.float64)[:-1]
    sigmas = shift * times / (1 + (shift - 1) * times)
    return float(sigmas[(sigmas * 1000 - step).abs().argmin()])


def _spatial_factor(card: ModelCard) -> int:
    grid = card.task("text_to_video").parameters["height"].multiple_of
    assert grid is not None, "sizes of Wan lie on a grid"
    return grid // 2
