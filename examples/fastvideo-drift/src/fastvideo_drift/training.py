"""Data and recipe: bars that a program draws, and a network that learns to undo noise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from fastvideo_core.card import CheckpointSource, ModelCard
from fastvideo_drift.card import PIPELINE_NAME, make_card
from fastvideo_drift.model import Shifter, ShifterConfig, to_patches
from fastvideo_drift.words import COLOURS, DRIFTS, WORDS

__all__ = ["draw_bars", "train"]

_BATCH = 4
_SIZE = 32
_NUM_FRAMES = 9
_BAR = 8
"""Width of a bar in pixels."""
_GROUND = -0.8


def draw_bars(count: int, generator: torch.Generator) -> tuple[Tensor, list[tuple[int, ...]]]:
    """Draw some videos, and the ids of the words that describe them.

    Returns:
        Pixels from -1 to 1, (count, frames, rows, columns, 3), and the ids of each.
    """
    videos, words = [], []
    for _ in range(count):
        colour, drift, start = (
            int(torch.randint(high, (), generator=generator)) for high in (len(COLOURS), len(DRIFTS), _SIZE)
        )
        name, move = list(COLOURS)[colour], list(DRIFTS)[drift]
        left = start + torch.arange(_NUM_FRAMES) * DRIFTS[move]
        is_bar_TX = (torch.arange(_SIZE) - left[:, None]) % _SIZE < _BAR
        paint = torch.tensor(COLOURS[name]) * 2 - 1
        video_TX3 = torch.where(is_bar_TX[..., None], paint, torch.tensor(_GROUND))
        videos.append(video_TX3[:, None].expand(-1, _SIZE, -1, -1))
        words.append((WORDS.index(name), WORDS.index(move)))
    return torch.stack(videos), words


def train(
    folder: Path,
    *,
    num_steps: int = 600,
    seed: int = 0,
    config: ShifterConfig | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> ModelCard:
    """Train a checkpoint into a folder, and return its card.

    Args:
        folder: Where it is written.
        num_steps: Optimizer steps; 0 leaves the weights as they were drawn.
        seed: Decides weights and data.
        config: Sizes; None for the usual ones.
        on_step: Told each step and its mean squared error.
    """
    generator, sizes = torch.Generator().manual_seed(seed), config or ShifterConfig()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Shifter(sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=max(num_steps, 1))
    for step in range(num_steps):
        error = _error(model, generator)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        schedule.step()
        if on_step is not None:
            on_step(step + 1, float(error.detach()))
    return _write(folder, model, sizes)


def _error(model: Shifter, generator: torch.Generator) -> Tensor:
    """Return the squared error of the clean patches, at a noise level drawn for each video."""
    videos, words = draw_bars(_BATCH, generator)
    clean = to_patches(videos)
    level_B = torch.rand(len(words), generator=generator).clamp(0.02, 1)
    noise = torch.randn(clean.shape, generator=generator)
    level = level_B[:, None, None, None, None]
    given = torch.cat([model.encode(ids) for ids in words])
    return (model((1 - level) * clean + level * noise, level_B, given) - clean).square().mean()


def _write(folder: Path, model: Shifter, config: ShifterConfig) -> ModelCard:
    place = folder / "shifter"
    place.mkdir(parents=True, exist_ok=True)
    save_file(dict(model.state_dict()), place / "diffusion_pytorch_model.safetensors")
    (place / "config.json").write_text(config.model_dump_json(), encoding="utf-8")
    (folder / "model_index.json").write_text(json.dumps({"_class_name": PIPELINE_NAME}), encoding="utf-8")
    return make_card(CheckpointSource(kind="folder", location=str(folder.resolve())))
