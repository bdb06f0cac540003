"""The stored clips that a step may draw from, read as they come.

Shape letters: N clips, C latent channels, T latent frames, H rows, W columns.
"""

from __future__ import annotations

import random
import time

import torch
from torch import Tensor

from fastvideo_wan.shapes.scenes import Scene
from fastvideo_wan.shapes.train.config import Bucket, TrainConfig
from fastvideo_wan.shapes.train.latents_stage import latents_path, read_latents

POLL_S = 2.0


class LatentsPool:
    """The clips of all buckets read so far; a step may use a number of them that follows from its index alone.

    Args:
        config: Says where the files are and how many.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.latents: dict[str, list[Tensor]] = {bucket.name: [] for bucket in config.buckets}
        self.scenes: dict[str, list[Scene]] = {bucket.name: [] for bucket in config.buckets}

    def num_usable(self, step: int, bucket: Bucket) -> int:
        """Return how many of a bucket's clips a step may use."""
        stage, first = self.config.dit, self.config.buckets[0]
        part = min(1.0, (stage.clips_at_start + stage.clips_per_step * step) / first.num_clips)
        return max(1, int(part * bucket.num_clips))

    def draw(self, rng: random.Random, step: int, bucket: Bucket, num_clips: int) -> tuple[Tensor, list[Scene]]:
        """Return random clips for a step, waiting for files that are not there yet; advances `rng`."""
        num_usable, scenes = self.num_usable(step, bucket), self.scenes[bucket.name]
        while len(scenes) < num_usable:
            self._read_next(bucket)
        chosen = [rng.randrange(num_usable) for _ in range(num_clips)]
        size, files = self.config.latents.clips_per_file, self.latents[bucket.name]
        latents = torch.stack([files[i // size][i % size] for i in chosen])
        return latents.float(), [scenes[i] for i in chosen]

    def _read_next(self, bucket: Bucket) -> None:
        files = self.latents[bucket.name]
        path = latents_path(self.config, bucket, len(files))
        while not path.exists():
            time.sleep(POLL_S)
        latents, scenes = read_latents(path)
        files.append(latents)
        self.scenes[bucket.name].extend(scenes)
