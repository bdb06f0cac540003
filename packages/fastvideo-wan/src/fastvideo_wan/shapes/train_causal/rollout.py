"""Streams made by the model while it is trained, all in step: the shipped card's sampler and window.

Shape letters: N streams, G chunks, C latent channels, T latent frames, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from fastvideo_wan.loops.chunk_schedule import add_noise, draw_noise, make_schedule, predict_clean
from fastvideo_wan.models.context import TextContext, select_rows
from fastvideo_wan.models.past import ListedPast
from fastvideo_wan.shapes.streams import CHUNK_LATENTS
from fastvideo_wan.shapes.train_causal.config import CausalStage
from fastvideo_wan.shapes.train_causal.model import CausalShapesModel


@dataclass(slots=True)
class RollOut:
    """Streams that go on together.

    Attributes:
        model: Gives velocities.
        tokenizer: Of the prompts.
        stage: Window, steps and guidance.
        seeds: Of the streams' noise.
        frame_shape: Channels, rows and columns of a latent frame.
    """

    model: CausalShapesModel
    tokenizer: Tokenizer
    stage: CausalStage
    seeds: Sequence[int]
    frame_shape: tuple[int, int, int]

    @torch.no_grad()
    def chunks(self, prompts: Sequence[Sequence[str]]) -> Iterator[Tensor]:
        """Yield normalised latents of chunk after chunk, shape (N, C, T, H, W).

        Args:
            prompts: Of every chunk, a prompt for each stream. Where one differs from the chunk's before, the past keeps
                what the old prompt has made of it.
        """
        past = ListedPast(self.stage.rule)
        for chunk, now in enumerate(prompts):
            context = self._context(now)
            latents = self._denoise(chunk, context, past)
            self._velocity(latents, 0.0, chunk, context, past)
            past.commit()
            yield latents

    def _context(self, prompts: Sequence[str]) -> TextContext:
        """Return the prompts' context, and behind it the empty prompt's for guidance."""
        wanted = [*prompts, *([""] * len(prompts) if self.stage.guidance_scale > 1 else [])]
        context, rows = self.model.prepare_prompts(self.tokenizer, wanted)
        return select_rows(context, torch.tensor(rows, device=context.keys_ZBLNK.device))

    def _denoise(self, chunk: int, context: TextContext, past: ListedPast) -> Tensor:
        stage, (channels, height, width) = self.stage, self.frame_shape
        schedule = make_schedule(stage.steps, stage.time_shift)
        shape = channels, CHUNK_LATENTS, height, width
        drawn = torch.stack([draw_noise(seed, chunk, len(stage.steps), shape) for seed in self.seeds], dim=1)
        noises = drawn.to(context.keys_ZBLNK.device)
        latents = noises[0]
        for index, (time, sigma) in enumerate(zip(schedule.times, schedule.sigmas, strict=True)):
            velocity = self._velocity(latents, time, chunk, context, past)
            following = schedule.sigmas[index + 1] if index + 1 < len(schedule.sigmas) else 0.0
            clean = predict_clean(latents, velocity, sigma)
            if following == 0.0:
                return clean
            if stage.is_renoised:
                latents = add_noise(clean, noises[index + 1], following)
            else:
                latents = latents + (following - sigma) * velocity
        raise AssertionError("a schedule has at least one step")

    def _velocity(self, latents: Tensor, time: float, chunk: int, context: TextContext, past: ListedPast) -> Tensor:
        num_branches = context.num_rows // len(latents)
        both = latents.repeat(num_branches, 1, 1, 1, 1)
        times = torch.full((len(both),), time, device=latents.device)
        turns = self.model.causal.chunk_turns(both, [self.stage.rule.start(chunk)] * len(both))
        velocity = self.model.causal.forward_chunk(both, times, context, past, turns=turns)
        if num_branches == 1:
            return velocity
        wanted, free = velocity.chunk(2)
        return free + self.stage.guidance_scale * (wanted - free)
