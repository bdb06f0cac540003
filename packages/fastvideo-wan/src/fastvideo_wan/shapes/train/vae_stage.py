"""First stage: the autoencoder, trained on windows of drawn clips of several lengths and sizes.

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
from fastvideo_wan.shapes.render import render_view, way
from fastvideo_wan.shapes.scenes import FRAME_SIZE, PLAIN, Scene, World, draw_scene
from fastvideo_wan.shapes.train.config import Bucket, TrainConfig, VaeStage, draw_bucket
from fastvideo_wan.shapes.train.muon import MuonAdamW, split_parameters
from fastvideo_wan.shapes.train.steps import train_steps
from fastvideo_wan.shapes.train.workers import Worker

CHECKPOINT = "vae.safetensors"
EDGE_PART = 0.8  # of the windows are laid around the object, so that most of them see an edge
EDGE_REACH = 14.0  # pixels by which such a window's middle may miss the object's centre


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


def draw_window(rng: random.Random, stage: VaeStage, window: Bucket, world: World = PLAIN) -> Tensor:
    """Return a window in time and space of a drawn clip, values -1 to 1, shape (C, T, H, W); advances `rng`."""
    scene = draw_scene(rng, stage.ranges.to_scene_ranges(), world)
    scale = rng.uniform(stage.min_scale if scene.second is None else max(1.0, stage.min_scale), stage.max_scale)
    num_frames = rng.choice([n for n in stage.clip_frames if n >= window.num_frames])
    first = rng.randrange(num_frames - window.num_frames + 1)
    path_T = way(num_frames)[first : first + window.num_frames]
    middle = path_T[len(path_T) // 2].item() if rng.random() < EDGE_PART else None
    size = {"height": window.height, "width": window.width}
    seen = scene if scene.second is None else rng.choice(scene.objects)
    corner_xy = _draw_corner(rng, seen, scale, (window.width, window.height), middle)
    return render_view(scene, path_T, scale=scale, corner_xy=corner_xy, **size) * 2 - 1


def _draw_corner(
    rng: random.Random, scene: Scene, scale: float, size_xy: tuple[int, int], when: float | None
) -> tuple[float, float]:
    """Return the corner of a window in the frame, or around it if larger; near the object at time `when`."""
    corner = []
    for start, end, size in zip(scene.start_xy, scene.end_xy, size_xy, strict=True):
        room = FRAME_SIZE * scale - size
        place = rng.uniform(min(0.0, room), max(0.0, room))
        if when is not None:
            centre = scale * (start + when * (end - start))
            place = centre - size / 2 + rng.uniform(-EDGE_REACH, EDGE_REACH)
        corner.append(min(max(place, min(0.0, room)), max(0.0, room)))
    return corner[0], corner[1]


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

    In a window that corner may lie in the object; then the background around it has the extra weight.
    """
    is_other = (pixels_NCTHW - pixels_NCTHW[:, :, :, :1, :1]).abs().amax(1, keepdim=True) > 0.1
    return 1 + extra * is_other.float()


def latent_shape(vae: WanVAE, bucket: Bucket) -> tuple[int, int, int, int]:
    """Return channels, frames, rows and columns of the latents of a bucket's clip."""
    factor, num_frames = vae.config.spatial_factor, (bucket.num_frames - 1) // vae.config.temporal_factor + 1
    return vae.config.z_dim, num_frames, bucket.height // factor, bucket.width // factor


def psnr(squared_error: float) -> float:
    """Return decibels for a mean squared error of values from -1 to 1."""
    return -10 * math.log10(max(squared_error, 1e-12) / 4)


def train_vae(worker: Worker, config: TrainConfig) -> None:
    """Train, or go on from the checkpoint in the run's folder, until the schedule's last step.

    A run with a base has its autoencoder, and trains none.
    """
    if config.base is not None:
        return
    torch.manual_seed(config.seed)
    vae = WanVAE(vae_config(config.vae)).to(config.device)
    schedule = config.vae.schedule
    optimizer = MuonAdamW(split_parameters(vae), lr=schedule.learning_rate, worker=worker)

    def take_step(step: int) -> dict[str, float]:
        return vae_step(worker, config, vae, optimizer, step)

    train_steps(worker, "vae", schedule, config.folder / CHECKPOINT, vae, optimizer, take_step)


def vae_step(worker: Worker, config: TrainConfig, vae: WanVAE, optimizer: MuonAdamW, step: int) -> dict[str, float]:
    """Draw one batch and update the weights; returns figures over all processes."""
    stage = config.vae
    window = stage.windows[draw_bucket(stage.windows, worker.shared_rng(config.seed, step))]
    rng, torch_rng = worker.rng(config.seed, step), worker.torch_rng(config.seed, step)
    world = config.world.at(FRAME_SIZE, FRAME_SIZE)  # a window shows a part of a frame of any size
    clips = [draw_window(rng, stage, window, world) for _ in range(window.batch_size // worker.num_workers)]
    noise = torch.randn((len(clips), *latent_shape(vae, window)), generator=torch_rng).to(config.device)
    loss = vae_loss(vae, torch.stack(clips).to(config.device), noise, stage)
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
