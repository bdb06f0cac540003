"""First stage: the latents of many drawn streams.

A turn's latents are those of a stream that has always shown what the turn shows. So latents stay what the autoencoder
knows from clips in which nothing changes, and what is shown changes from one latent frame to the next.

Shape letters: N streams, C latent channels, T latent frames, H rows, W columns.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fastvideo_wan.models.vae import WanVAE, mean_latents
from fastvideo_wan.shapes.scenes import Scene
from fastvideo_wan.shapes.streams import CHUNK_LATENTS, Turn, draw_stream, render_turn
from fastvideo_wan.shapes.train.workers import Worker
from fastvideo_wan.shapes.train_causal.config import CausalConfig, StreamsStage

LATENTS_FOLDER = "latents"
ENCODE_FRAMES = 96  # encoded at a time
FRAMES_PER_LATENT = 4


def draw_turns(rng: random.Random, stage: StreamsStage) -> tuple[int, ...]:
    """Return the chunks at which a stream's turns begin, the first one 0; advances `rng`."""
    number = rng.choices(range(len(stage.turn_shares)), stage.turn_shares)[0]
    return (0, *sorted(rng.sample(range(1, stage.num_chunks), number)))


def file_streams(config: CausalConfig, index: int) -> list[list[Turn]]:
    """Return the streams of a file of latents; they follow from the run's seed and the file's number."""
    rng, stage = random.Random(f"{config.seed}/streams/{index}"), config.streams
    ranges = stage.ranges.to_stream_ranges()
    return [draw_stream(rng, draw_turns(rng, stage), ranges=ranges) for _ in range(stage.streams_per_file)]


@torch.no_grad()
def encode_streams(vae: WanVAE, streams: Sequence[Sequence[Turn]], num_chunks: int, lead_latents: int) -> Tensor:
    """Return the normalised latents of streams' first chunks, on the CPU, shape (N, C, T, H, W)."""
    parts: dict[int, list[tuple[int, int, Tensor]]] = defaultdict(list)
    for number, stream in enumerate(streams):
        ends = [*(turn.first_chunk for turn in stream[1:]), num_chunks]
        for turn, end in zip(stream, ends, strict=True):
            first, count = CHUNK_LATENTS * turn.first_chunk, CHUNK_LATENTS * (end - turn.first_chunk)
            lead = lead_latents if first else 0
            clip = render_turn(turn, FRAMES_PER_LATENT * (first - lead), FRAMES_PER_LATENT * (lead + count - 1) + 1)
            parts[clip.shape[1]].append((number, turn.first_chunk, clip))
    found: dict[tuple[int, int], Tensor] = {}
    for num_frames, clips in parts.items():
        size = max(1, ENCODE_FRAMES // num_frames)
        for some in (clips[i : i + size] for i in range(0, len(clips), size)):
            latents = _encode(vae, torch.stack([clip for *_, clip in some]))
            found |= {(number, chunk): row for (number, chunk, _), row in zip(some, latents, strict=True)}
    return torch.stack([_join(found, number, stream, lead_latents) for number, stream in enumerate(streams)])


def _encode(vae: WanVAE, clips_NCTHW: Tensor) -> Tensor:
    device = next(vae.parameters()).device
    return vae.normalize(mean_latents(vae.encode(clips_NCTHW.to(device) * 2 - 1))).cpu()


def _join(found: dict[tuple[int, int], Tensor], number: int, stream: Sequence[Turn], lead: int) -> Tensor:
    parts = [found[number, turn.first_chunk][:, lead if turn.first_chunk else 0 :] for turn in stream]
    return torch.cat(parts, dim=1)


def num_files(stage: StreamsStage) -> int:
    """Return how many files hold the latents."""
    return -(-stage.num_streams // stage.streams_per_file)


def latents_path(config: CausalConfig, index: int) -> Path:
    """Return the name of a file of latents."""
    return config.folder / LATENTS_FOLDER / f"{index:05d}.safetensors"


def write_latents(worker: Worker, config: CausalConfig) -> None:
    """Write the files that are not there yet; each process takes every n-th."""
    torch.manual_seed(config.seed)
    vae = config.read_base().load_vae().to(config.device).eval()
    total = num_files(config.streams)
    for index in range(worker.rank, total, worker.num_workers):
        path = latents_path(config, index)
        if not path.exists():
            _write_file(path, vae, file_streams(config, index), config.streams)
            print(f"latents {index + 1}/{total}", flush=True)


def _write_file(path: Path, vae: WanVAE, streams: list[list[Turn]], stage: StreamsStage) -> None:
    latents = encode_streams(vae, streams, stage.num_chunks, stage.lead_latents).half()
    described = json.dumps([[asdict(turn) for turn in stream] for stream in streams])
    partial = path.with_suffix(".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"latents": latents.contiguous()}, partial, {"streams": described})
    partial.replace(path)


def read_latents(path: Path) -> tuple[Tensor, list[list[Turn]]]:
    """Return normalised latents, float16, shape (N, C, T, H, W), and what they show."""
    with safe_open(path, framework="pt") as file:
        described: list[list[dict[str, Any]]] = json.loads(file.metadata()["streams"])
        return file.get_tensor("latents"), [[_turn(turn) for turn in stream] for stream in described]


def _turn(described: dict[str, Any]) -> Turn:
    return Turn(described["first_chunk"], Scene(**described["scene"]), tuple(described["changed"]))
