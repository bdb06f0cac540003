"""Optional stage: polish the decoder on the stored latents of whole clips; the encoder, and so the latents, stay.

Shape letters: C channels, T frames, H rows, W columns.

It may run beside or after the transformer's stage. Noise on the latents makes the decoder forgiving of what a
transformer gets slightly wrong.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from fastvideo_wan.models.vae import WanVAE
from fastvideo_wan.shapes.train.checkpoint import load_average
from fastvideo_wan.shapes.train.config import TrainConfig, draw_bucket
from fastvideo_wan.shapes.train.latents_stage import VAE_FOLDER, draw_pixels, load_vae
from fastvideo_wan.shapes.train.muon import MuonAdamW, split_parameters
from fastvideo_wan.shapes.train.pool import LatentsPool
from fastvideo_wan.shapes.train.steps import train_steps
from fastvideo_wan.shapes.train.vae_stage import apply_gradients, object_weight, psnr
from fastvideo_wan.shapes.train.workers import Worker

# Pixels at a window's border are decoded without what lies beyond it, so they are not counted.
MARGIN = 4
OBJECT_CONTRAST = 0.1  # of values from -1 to 1, in any channel
CHECKPOINT = "decoder.safetensors"


def decoder_parts(vae: WanVAE) -> nn.ModuleDict:
    """Return the parts behind the latents."""
    return nn.ModuleDict({"post_quant_conv": vae.post_quant_conv, "decoder": vae.decoder})


def train_decoder(worker: Worker, config: TrainConfig) -> None:
    """Train, or go on from the checkpoint in the run's folder, until the schedule's last step."""
    torch.manual_seed(config.seed)
    vae = load_vae(config.folder / VAE_FOLDER).to(config.device)
    parts, schedule = decoder_parts(vae), config.decoder.schedule
    optimizer = MuonAdamW(split_parameters(parts), lr=schedule.learning_rate, worker=worker)
    pool = LatentsPool(config)

    def take_step(step: int) -> dict[str, float]:
        return decoder_step(worker, config, vae, parts, optimizer, pool, step)

    train_steps(worker, "decoder", schedule, config.folder / CHECKPOINT, parts, optimizer, take_step)


def decoder_step(
    worker: Worker,
    config: TrainConfig,
    vae: WanVAE,
    parts: nn.ModuleDict,
    optimizer: MuonAdamW,
    pool: LatentsPool,
    step: int,
) -> dict[str, float]:
    """Draw one batch and update the decoder; returns figures over all processes."""
    stage = config.decoder
    rng, torch_rng = worker.rng(config.seed, step), worker.torch_rng(config.seed, step)
    bucket = config.buckets[draw_bucket(config.buckets, worker.shared_rng(config.seed, step))]
    latents, scenes = pool.draw(rng, stage.pool_step, bucket, stage.batch_size // worker.num_workers)
    latents = latents[:, :, : stage.window_frames]
    pixels = draw_pixels(scenes, bucket)[:, :, : (latents.shape[2] - 1) * vae.config.temporal_factor + 1]
    is_whole = step >= (1 - stage.whole_part) * stage.schedule.num_steps
    if not is_whole:
        pairs = [cut_window(rng, *item, stage.window_cells) for item in zip(latents, pixels, strict=True)]
        latents, pixels = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    noisy = latents + stage.noise * torch.randn(latents.shape, generator=torch_rng)
    pixels = pixels.to(config.device)
    error = vae.decode(vae.denormalize(noisy.to(config.device))) - pixels
    if not is_whole:
        error, pixels = (x[..., MARGIN:-MARGIN, MARGIN:-MARGIN] for x in (error, pixels))
    loss = (object_weight(pixels, config.vae.object_weight) * (error.abs() + 2 * error**2)).mean()
    loss.backward()
    apply_gradients(worker, parts, optimizer, stage.schedule.rate_at(step))
    figures = torch.tensor([loss.item(), error.detach().square().mean().item()])
    sums = worker.sum(figures) / worker.num_workers
    return {"loss": sums[0].item(), "psnr": psnr(sums[1].item())}


def cut_window(rng: random.Random, latents_CTHW: Tensor, pixels_CTHW: Tensor, num_cells: int) -> tuple[Tensor, Tensor]:
    """Return the same window of latents and pixels, near the object as a random frame shows it; advances `rng`.

    A side that has fewer cells than `num_cells` is taken whole.
    """
    cell = pixels_CTHW.shape[-1] // latents_CTHW.shape[-1]
    frame = pixels_CTHW[:, rng.randrange(pixels_CTHW.shape[1])]
    is_object = (frame - frame[:, :1, :1]).abs().amax(0) > OBJECT_CONTRAST
    slices = []
    for axis, length in enumerate(latents_CTHW.shape[-2:]):
        places = is_object.any(1 - axis).nonzero().float()
        centre = places.mean().item() / cell if len(places) else length / 2
        first = min(max(round(centre - num_cells / 2 + rng.uniform(-2, 2)), 0), max(0, length - num_cells))
        slices.append((first, min(num_cells, length)))
    (row, num_rows), (column, num_columns) = slices
    latents = latents_CTHW[..., row : row + num_rows, column : column + num_columns]
    top, left = row * cell, column * cell
    return latents, pixels_CTHW[..., top : top + num_rows * cell, left : left + num_columns * cell]


def load_polished_vae(config: TrainConfig) -> WanVAE:
    """Return the run's autoencoder, with the polished decoder if there is one."""
    vae = load_vae(config.folder / VAE_FOLDER)
    path = config.folder / CHECKPOINT
    if path.exists():
        decoder_parts(vae).load_state_dict(load_average(path))
    return vae
