"""Opening chunks: what a stream begins with, before there is a past to go on from.

A lesson has one opening chunk beside several that have a past to copy from, but the opening alone has to get everything
from the words. So more of them are learnt, each by itself, at a small part of a lesson's cost.

Shape letters: N streams, C latent channels, T latent frames, H rows, W columns.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from fastvideo_wan.models.context import select_rows
from fastvideo_wan.shapes.streams import CHUNK_LATENTS, Turn
from fastvideo_wan.shapes.train.sampling import shifted
from fastvideo_wan.shapes.train_causal.config import CausalStage
from fastvideo_wan.shapes.train_causal.lesson import draw_prompts
from fastvideo_wan.shapes.train_causal.model import CausalShapesModel, spread_times


def opening_loss(
    model: CausalShapesModel,
    tokenizer: Tokenizer,
    latents_NCTHW: Tensor,
    streams: Sequence[Sequence[Turn]],
    stage: CausalStage,
    rng: random.Random,
    generator: torch.Generator,
) -> Tensor:
    """Return the mean squared error of the velocity of streams' first chunks made noisy; advances both generators.

    Args:
        model: What is trained.
        tokenizer: Of the prompts.
        latents_NCTHW: The streams' latents; those after the first chunk are not looked at.
        streams: What they show.
        stage: Settings.
        rng: Source of captions.
        generator: Source of noise and its levels, on the CPU.
    """
    clean = latents_NCTHW[:, :, :CHUNK_LATENTS]
    device, num_streams = clean.device, len(clean)
    prompts = [draw_prompts(stream[:1], rng, stage)[0] for stream in streams]
    times_N1 = shifted(torch.rand((num_streams, 1), generator=generator), stage.time_shift).to(device)
    noise = torch.randn(clean.shape, generator=generator).to(device)
    levels = times_N1[:, :, None, None, None]
    context, rows = model.prepare_prompts(tokenizer, prompts)
    velocity = model.causal.forward_masked(
        (1 - levels) * clean + levels * noise,
        spread_times(times_N1, [CHUNK_LATENTS]),
        select_rows(context, torch.tensor(rows, device=device)),
        torch.ones((CHUNK_LATENTS, CHUNK_LATENTS), dtype=torch.bool, device=device),
    )
    return (velocity - (noise - clean)).square().mean()
