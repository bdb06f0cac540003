"""What one step teaches: noisy chunks beside a clean copy of the stream, each attending to clean chunks before it.

The clean copy stands for what a session has in its window. It may be spoilt, so that a stream that went slightly wrong
is set right and does not drift.

Shape letters: N streams, G chunks, C latent channels, T latent frames, H rows, W columns.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastvideo_wan.models.chunk_masks import chunk_mask
from fastvideo_wan.models.chunks import ChunkRule
from fastvideo_wan.shapes.streams import Turn, draw_captions, turn_of_chunk
from fastvideo_wan.shapes.tokenizer import UNKNOWN
from fastvideo_wan.shapes.train_causal.config import CausalStage


@dataclass(frozen=True, slots=True)
class Lesson:
    """Prompts, masks and counts of a batch of streams.

    Attributes:
        prompts: Of each stream, the prompts of its clean chunks, then of its noisy ones.
        mask_NGG: Which chunk, clean ones first, attends to which.
        counted_NG: Noisy chunks that count in the loss.
    """

    prompts: list[list[str]]
    mask_NGG: Tensor
    counted_NG: Tensor


def draw_lesson(
    rng: random.Random, streams: Sequence[Sequence[Turn]], num_chunks: int, rule: ChunkRule, stage: CausalStage
) -> Lesson:
    """Draw captions and what is read anew; advances `rng`."""
    prompts, masks, counted = [], [], []
    for stream in streams:
        captions, turns = draw_prompts(stream, rng, stage), turn_of_chunk(stream, num_chunks)
        last = stream[-1].first_chunk
        anew = last if last and rng.random() < stage.recache_part else 0
        reread = rule.reread(anew)
        clean = [captions[-1] if chunk in reread else captions[turn] for chunk, turn in enumerate(turns)]
        prompts.append([*clean, *(captions[turn] for turn in turns)])
        masks.append(lesson_mask(rule, num_chunks, reread))
        counted.append(torch.arange(num_chunks) >= anew)
    return Lesson(prompts, torch.stack(masks), torch.stack(counted))


def draw_prompts(stream: Sequence[Turn], rng: random.Random, stage: CausalStage) -> list[str]:
    """Return a caption for each turn, now and then none for all, now and then with unknown words; advances `rng`."""
    captions = draw_captions(stream, rng, ordered_part=stage.ordered_part)
    if rng.random() < stage.prompt_drop:
        return [""] * len(captions)
    return [_with_unknown(caption, rng) if rng.random() < stage.unknown_part else caption for caption in captions]


def _with_unknown(caption: str, rng: random.Random) -> str:
    words = caption.split()
    for _ in range(rng.randint(1, 2)):
        words.insert(rng.randrange(len(words) + 1), UNKNOWN)
    return " ".join(words)


def lesson_mask(rule: ChunkRule, num_chunks: int, reread: range) -> Tensor:
    """Return which of 2 G chunks attends to which: clean ones to clean ones, noisy ones to earlier clean ones.

    Args:
        rule: The window.
        num_chunks: G.
        reread: Clean chunks that are read anew together: they attend to each other, in both directions, and to the
            sink. The noisy chunks before their end attend to themselves alone; they must not count.
    """
    past_GG, own_GG = chunk_mask(rule, num_chunks), torch.eye(num_chunks, dtype=torch.bool)
    clean_GG = past_GG.clone()
    for chunk in reread:
        clean_GG[chunk] = False
        clean_GG[chunk, [*rule.kept_sink(reread), *reread]] = True
    earlier_GG = past_GG & ~own_GG
    earlier_GG[: reread.stop] = False
    noisy_rows = torch.cat([earlier_GG, own_GG], dim=1)
    return torch.cat([torch.cat([clean_GG, torch.zeros_like(own_GG)], dim=1), noisy_rows])
