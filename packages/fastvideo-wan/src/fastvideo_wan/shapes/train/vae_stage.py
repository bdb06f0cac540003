"""First stage: the autoencoder, trained on crops of drawn clips, then on whole clips.

Shape letters: N clips, B latent channels twice (moments), C channels, T frames, H rows, W columns.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from fastvideo_wan.models.vae import WanVAE
from fastvideo_wan.models.vae_config import WanVAEConfig
from fastvideo_wan.shapes.render import render_clip
from fastvideo_wan.shapes.scenes import FRAME_SIZE, NUM_FRAMES, Scene, draw_scene
from fastvideo_wan.shapes.train.checkpoint import Average, load_checkpoint, save_checkpoint
from fastvideo_wan.shapes.train.config import TrainConfig, VaeStage
from fastvideo_wan.shapes.train.muon import MuonAdamW, split_parameters
from fastvideo_wan.shapes.train.progress import Progress
from fastvideo_wan.shapes.train.workers import Worker

CHECKPOINT = "vae.safetensors"
EDGE_PART = 0.8  # of the crops are laid around the object, so that most of them see an edge
EDGE_REACH = 14.0  # pixels by which such a crop's middle may miss the object's centre


def vae_config(stage: VaeStage) -> WanVAEConfig:
    """Return the autoencoder's shape: Wan 2.2's layout with 2 by 2 patches, latents not yet normalised."""
    channels = stage.latent_channels
    return WanVAEConfig(
        base_dim=stage.base_dim,
        z_dim=channels,
        dim_mult=stage.dim_mult,
        num_res_blocks=stage.num_res_blocks,
        temperal_downsample=(True,) * (len(stage.dim_mult) - 1),
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
        scale_factor_temporal=2 ** (len(stage.dim_mult) - 1),
        scale_factor_spatial=2 ** len(stage.dim_mult),
        latents_mean=(0.0,) * channels,
        latents_std=(1.0,) * channels,
    )


def draw_crop(rng: random.Random, stage: VaeStage, *, num_frames: int, size: int) -> Tensor:
    """Return a crop in time and space of a drawn clip, values -1 to 1, shape (C, T, H, W); advances `rng`."""
    scene = draw_scene(rng, stage.ranges.to_scene_ranges())
    first = rng.randrange(NUM_FRAMES - num_frames + 1)
    row, column = rng.randrange(FRAME_SIZE - size + 1), rng.randrange(FRAME_SIZE - size + 1)
    if rng.random() < EDGE_PART:
        column, row = _corner_near_object(rng, scene, (first + num_frames / 2) / NUM_FRAMES, size)
    clip = render_clip(scene)[:, first : first + num_frames, row : row + size, column : column + size]
    return clip * 2 - 1


def _corner_near_object(rng: random.Random, scene: Scene, when: float, size: int) -> tuple[int, int]:
    centre = [a + when * (b - a) for a, b in zip(scene.start_xy, scene.end_xy, strict=True)]
    corners = [c - size / 2 + rng.uniform(-EDGE_REACH, EDGE_REACH) for c in centre]
    column, row = (int(min(max(corner, 0), FRAME_SIZE - size)) for corner in corners)
    return column, row


@dataclass(frozen=True, slots=True)
class VaeLoss:
    """Loss of a batch, and the parts that are shown."""

    total: Tensor
    squared_error: float
    divergence: float


def vae_loss(vae: WanVAE, pixels_NCTHW: Tensor, noise: Tensor, stage: VaeStage) -> VaeLoss:
    """Return absolute plus twice squared error, weighted up on the object, plus the latents' divergence."""
    decoded, moments = vae(pixels_NCTHW, noise)
    mean, log_variance = moments.chunk(2, dim=1)
    error = decoded - pixels_NCTHW
    weight = object_weight(pixels_NCTHW, stage.object_weight)
    divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).mean()
    total = (weight * (error.abs() + 2 * error**2)).mean() + stage.kl_weight * divergence
    return VaeLoss(total, error.detach().square().mean().item(), divergence.item())


def object_weight(pixels_NCTHW: Tensor, extra: float) -> Tensor:
    """Return the loss's weight of each pixel: 1, and `extra` more where it differs from the upper left corner's.

    In a crop that corner may lie in the object; then the background around it has the extra weight.
    """
    is_other = (pixels_NCTHW - pixels_NCTHW[:, :, :, :1, :1]).abs().amax(1, keepdim=True) > 0.1
    return 1 + extra * is_other.float()


def psnr(squared_error: float) -> float:
    """Return decibels for a mean squared error of values from -1 to 1."""
    return -10 * math.log10(max(squared_error, 1e-12) / 4)


def train_vae(worker: Worker, config: TrainConfig) -> None:
    """Train, or go on from the checkpoint in the run's folder, until the schedule's last step."""
    torch.manual_seed(config.seed)
    vae = WanVAE(vae_config(config.vae)).to(config.device)
    schedule = config.vae.schedule
    average = Average(vae, schedule.ema_decay)
    optimizer = MuonAdamW(split_parameters(vae), lr=schedule.learning_rate, worker=worker)
    path = config.folder / CHECKPOINT
    start = load_checkpoint(path, vae, average, optimizer) if path.exists() else 0
    progress = Progress("vae", schedule, start, is_shown=worker.is_first)
    for step in range(start, schedule.num_steps):
        shown = vae_step(worker, config, vae, optimizer, step)
        average.update(vae, step)
        progress.report(step, shown)
        is_last = step + 1 == schedule.num_steps
        if worker.is_first and (is_last or (step + 1) % schedule.save_every == 0):
            save_checkpoint(path, step + 1, vae, average, optimizer)


def vae_step(worker: Worker, config: TrainConfig, vae: WanVAE, optimizer: MuonAdamW, step: int) -> dict[str, float]:
    """Draw one batch and update the weights; returns figures over all processes."""
    stage = config.vae
    is_whole = step >= (1 - stage.whole_part) * stage.schedule.num_steps
    num_frames, size = (NUM_FRAMES, FRAME_SIZE) if is_whole else (stage.crop_frames, stage.crop_size)
    num_clips = (stage.whole_batch_size if is_whole else stage.batch_size) // worker.num_workers
    rng, torch_rng = worker.rng(config.seed, step), worker.torch_rng(config.seed, step)
    crops = [draw_crop(rng, stage, num_frames=num_frames, size=size) for _ in range(num_clips)]
    factor = vae.config.spatial_factor
    latent_shape = (num_clips, stage.latent_channels, (num_frames + 3) // 4, size // factor, size // factor)
    noise = torch.randn(latent_shape, generator=torch_rng).to(config.device)
    loss = vae_loss(vae, torch.stack(crops).to(config.device), noise, stage)
    loss.total.backward()
    apply_gradients(worker, vae, optimizer, stage.schedule.rate_at(step))
    sums = worker.sum(torch.tensor([loss.total.item(), loss.squared_error, loss.divergence])) / worker.num_workers
    return {"loss": sums[0].item(), "psnr": psnr(sums[1].item()), "kl": sums[2].item()}


def apply_gradients(worker: Worker, module: torch.nn.Module, optimizer: MuonAdamW, rate: float) -> None:
    """Average over processes, clip to norm one, and step; clears the gradients."""
    params = list(module.parameters())
    worker.average_gradients(params)
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()
