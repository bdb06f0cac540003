"""The stored streams that a step may draw from, read as they come."""

from __future__ import annotations

import random
import time

import torch
from torch import Tensor

from fastvideo_wan.shapes.streams import Turn
from fastvideo_wan.shapes.train_causal.config import CausalConfig
from fastvideo_wan.shapes.train_causal.latents_stage import latents_path, read_latents

POLL_S = 2.0


class StreamPool:
    """The streams read so far; a step may use a number of them that follows from its index alone.

    Args:
        config: Says where the files are and how many.
    """

    def __init__(self, config: CausalConfig) -> None:
        self.config = config
        self.latents: list[Tensor] = []
        self.streams: list[list[Turn]] = []

    def draw(self, rng: random.Random, step: int, num_streams: int) -> tuple[Tensor, list[list[Turn]]]:
        """Return random streams for a step, waiting for files that are not there yet; advances `rng`.

        Returns:
            Latents, float32, shape (N, C, T, H, W), and what they show.
        """
        stage = self.config.causal
        wanted = stage.streams_at_start + stage.streams_per_step * step
        num_usable = min(wanted, self.config.streams.num_streams)
        while len(self.streams) < num_usable:
            self._read_next()
        chosen = [rng.randrange(num_usable) for _ in range(num_streams)]
        size = self.config.streams.streams_per_file
        latents = torch.stack([self.latents[i // size][i % size] for i in chosen])
        return latents.float(), [self.streams[i] for i in chosen]

    def _read_next(self) -> None:
        path = latents_path(self.config, len(self.latents))
        while not path.exists():
            time.sleep(POLL_S)
        latents, streams = read_latents(path)
        self.latents.append(latents)
        self.streams.extend(streams)
