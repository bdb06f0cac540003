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
    card: ModelCard,
    transformer: Any,
    text_1LE: torch.Tensor,
    parameters: ResolvedParameters,
    *,
    first_frame_1C1HW: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the latents of a few-step request.

    A known first frame takes the place of the sample's own before every step and at the end, and its tokens have
    timestep zero.

    Args:
        card: The card.
        transformer: The reference's transformer.
        text_1LE: Encoded prompt, without padding.
        parameters: Resolved parameters of the request.
        first_frame_1C1HW: Normalized latents of a known first frame.
    """
    options = card.loops["dmd_denoise"].options
    steps = options["sampler_options"]["lcm"]["steps"]
    sigmas = [_nearest_sigma(step, parameters["flow_shift"]) for step in steps]
    text = pad_text(text_1LE, [text_1LE.shape[1]], options["text_length"])
    shape = _latent_shape(card, transformer, parameters)
    generator = make_generator(parameters["seed"])
    noise = torch.randn(shape, generator=generator)
    fresh = [torch.randn(shape, generator=generator) for _ in steps[1:]]

    def with_known(x: torch.Tensor) -> torch.Tensor:
        return x if first_frame_1C1HW is None else torch.cat([first_frame_1C1HW.to(x.dtype), x[:, :, 1:]], dim=2)

    def timesteps(step: float) -> torch.Tensor:
        if not options["expand_timesteps"]:
            return torch.tensor([float(step)])
        by_frame = torch.full((shape[2],), float(step))
        if first_frame_1C1HW is not None:
            by_frame[0] = 0.0
        return by_frame.repeat_interleave(shape[3] * shape[4] // 4).unsqueeze(0)

    def update(x: torch.Tensor, index: int) -> torch.Tensor:
        with torch.no_grad():
            velocity = transformer(with_known(x).float(), timesteps(steps[index]), text, return_dict=False)[0]
        x0 = x.double() - sigmas[index] * velocity.double()
        if index + 1 == len(steps):
            return x0
        return (1 - sigmas[index + 1]) * x0 + sigmas[index + 1] * fresh[index].double()

    return with_known(reduce(update, range(len(steps)), noise)).float()


def _latent_shape(card: ModelCard, transformer: Any, parameters: ResolvedParameters) -> tuple[int, ...]:
    spec, scale = card.task("text_to_video").parameters, _spatial_factor(card)
    num_frames = num_latent_frames(parameters["num_frames"], spec["num_frames"].multiple_of or 4)
    channels: int = transformer.config.in_channels
    return 1, channels, num_frames, parameters["height"] // scale, parameters["width"] // scale


def _nearest_sigma(step: float, shift: float) -> float:
    times = torch.linspace(1.0, 0.0, 1001, dtype=torch.float64)[:-1]
    sigmas = shift * times / (1 + (shift - 1) * times)
    return float(sigmas[(sigmas * 1000 - step).abs().argmin()])


def _spatial_factor(card: ModelCard) -> int:
    grid = card.task("text_to_video").parameters["height"].multiple_of
    assert grid is not None, "sizes of Wan lie on a grid"
    return grid // 2
