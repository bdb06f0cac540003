"""Optional stage: polish the decoder on the stored latents of whole clips; the encoder, and so the latents, stay.

It may run beside or after the transformer's stage. Noise on the latents makes the decoder forgiving of what a
transformer gets slightly wrong.
"""

from __future__ import annotations

import torch
from torch import nn

from fastvideo_wan.models.vae import WanVAE
from fastvideo_wan.shapes.render import render_clips
from fastvideo_wan.shapes.train.checkpoint import Average, load_average, load_checkpoint, save_checkpoint
from fastvideo_wan.shapes.train.config import TrainConfig
from fastvideo_wan.shapes.train.dit_stage import LatentsPool
from fastvideo_wan.shapes.train.latents_stage import VAE_FOLDER, load_vae
from fastvideo_wan.shapes.train.muon import MuonAdamW, split_parameters
from fastvideo_wan.shapes.train.progress import Progress
from fastvideo_wan.shapes.train.vae_stage import apply_gradients, object_weight, psnr
from fastvideo_wan.shapes.train.workers import Worker

CHECKPOINT = "decoder.safetensors"


def decoder_parts(vae: WanVAE) -> nn.ModuleDict:
    """Return the parts behind the latents."""
    return nn.ModuleDict({"post_quant_conv": vae.post_quant_conv, "decoder": vae.decoder})


def train_decoder(worker: Worker, config: TrainConfig) -> None:
    """Train, or go on from the checkpoint in the run's folder, until the schedule's last step."""
    torch.manual_seed(config.seed)
    vae = load_vae(config.folder / VAE_FOLDER).to(config.device)
    parts, schedule = decoder_parts(vae), config.decoder.schedule
    average = Average(parts, schedule.ema_decay)
    optimizer = MuonAdamW(split_parameters(parts), lr=schedule.learning_rate, worker=worker)
    path = config.folder / CHECKPOINT
    start = load_checkpoint(path, parts, average, optimizer) if path.exists() else 0
    pool = LatentsPool(config)
    progress = Progress("decoder", schedule, start, is_shown=worker.is_first)
    for step in range(start, schedule.num_steps):
        shown = decoder_step(worker, config, vae, parts, optimizer, pool, step)
        average.update(parts, step)
        progress.report(step, shown)
        is_last = step + 1 == schedule.num_steps
        if worker.is_first and (is_last or (step + 1) % schedule.save_every == 0):
            save_checkpoint(path, step + 1, parts, average, optimizer)


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
    latents, scenes = pool.draw(rng, stage.pool_step, stage.batch_size // worker.num_workers)
    noisy = latents + stage.noise * torch.randn(latents.shape, generator=torch_rng)
    pixels = (render_clips(scenes) * 2 - 1).to(config.device)
    error = vae.decode(vae.denormalize(noisy.to(config.device))) - pixels
    loss = (object_weight(pixels, config.vae.object_weight) * (error.abs() + 2 * error**2)).mean()
    loss.backward()
    apply_gradients(worker, parts, optimizer, stage.schedule.rate_at(step))
    figures = torch.tensor([loss.item(), error.detach().square().mean().item()])
    sums = worker.sum(figures) / worker.num_workers
    return {"loss": sums[0].item(), "psnr": psnr(sums[1].item())}


def load_polished_vae(config: TrainConfig) -> WanVAE:
    """Return the run's autoencoder, with the polished decoder if there is one."""
    vae = load_vae(config.folder / VAE_FOLDER)
    path = config.folder / CHECKPOINT
    if path.exists():
        decoder_parts(vae).load_state_dict(load_average(path))
    return vae
