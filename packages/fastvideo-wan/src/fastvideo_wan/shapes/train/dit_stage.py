"""Third stage: transformer and text encoder learn the latents' flow together.

Shape letters: N clips, C latent channels, T latent frames, H rows, W columns.
"""

from __future__ import annotations

import random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from fastvideo_wan.shapes.captions import draw_caption, is_ordered
from fastvideo_wan.shapes.scenes import Scene
from fastvideo_wan.shapes.tokenizer import UNKNOWN
from fastvideo_wan.shapes.train.base import first_model
from fastvideo_wan.shapes.train.checkpoint import Average
from fastvideo_wan.shapes.train.config import DitStage, TrainConfig, draw_bucket
from fastvideo_wan.shapes.train.latents_stage import VAE_FOLDER, load_vae
from fastvideo_wan.shapes.train.model import ADAMW_NAMES, ShapesModel, new_tokenizer, tokenize
from fastvideo_wan.shapes.train.muon import MuonAdamW, split_parameters
from fastvideo_wan.shapes.train.pool import LatentsPool
from fastvideo_wan.shapes.train.sampling import shifted
from fastvideo_wan.shapes.train.steps import train_steps
from fastvideo_wan.shapes.train.vae_stage import apply_gradients
from fastvideo_wan.shapes.train.watching import evaluate_average
from fastvideo_wan.shapes.train.workers import Worker

CHECKPOINT = "dit.safetensors"


def draw_prompt(scene: Scene, rng: random.Random, stage: DitStage) -> str:
    """Return a caption, now and then none, now and then with unknown words in it; advances `rng`."""
    if rng.random() < stage.prompt_drop:
        return ""
    caption = draw_caption(scene, rng)
    if scene.motion != "still" and stage.ordered_part and rng.random() < stage.ordered_part:
        while not is_ordered(caption):
            caption = draw_caption(scene, rng)
    if rng.random() >= stage.unknown_part:
        return caption
    words = caption.split()
    for _ in range(rng.randint(1, 2)):
        words.insert(rng.randrange(len(words) + 1), UNKNOWN)
    return " ".join(words)


def flow_loss(
    model: ShapesModel,
    clean: Tensor,
    prompts: list[str],
    tokenizer: Tokenizer,
    shift: float,
    generator: torch.Generator,
) -> Tensor:
    """Return the mean squared error of the velocity at random noise levels."""
    device = clean.device
    noise = torch.randn(clean.shape, generator=generator).to(device)
    times = shifted(torch.rand(len(clean), generator=generator), shift).to(device)
    ids, mask = tokenize(tokenizer, prompts)
    text = model.encode_text(ids.to(device), mask.to(device))
    times_N1111 = times.view(-1, 1, 1, 1, 1)
    noisy = (1 - times_N1111) * clean + times_N1111 * noise
    return (model.velocity(noisy, times, text) - (noise - clean)).square().mean()


def train_dit(worker: Worker, config: TrainConfig) -> None:
    """Train, or go on from the checkpoint in the run's folder, until the schedule's last step."""
    torch.manual_seed(config.seed)
    vae = load_vae(config.folder / VAE_FOLDER).to(config.device).eval()
    model = first_model(config, vae.config.z_dim).to(config.device)
    schedule = config.dit.schedule
    groups = split_parameters(model, adamw_names=ADAMW_NAMES)
    optimizer = MuonAdamW(groups, lr=schedule.learning_rate, weight_decay=config.dit.weight_decay, worker=worker)
    pool, tokenizer = LatentsPool(config), new_tokenizer()

    def take_step(step: int) -> dict[str, float]:
        return dit_step(worker, config, model, optimizer, pool, tokenizer, step)

    def evaluate(average: Average, num_done: int) -> None:
        evaluate_average(worker, config, vae, average, tokenizer, num_done)

    train_steps(
        worker, "dit", schedule, config.folder / CHECKPOINT, model, optimizer, take_step,
        evaluate=evaluate, evaluate_every=config.dit.eval_every,
    )  # fmt: skip


def dit_step(
    worker: Worker,
    config: TrainConfig,
    model: ShapesModel,
    optimizer: MuonAdamW,
    pool: LatentsPool,
    tokenizer: Tokenizer,
    step: int,
) -> dict[str, float]:
    """Draw one batch and update the weights; returns figures over all processes."""
    stage = config.dit
    bucket = config.buckets[draw_bucket(config.buckets, worker.shared_rng(config.seed, step))]
    rng, torch_rng = worker.rng(config.seed, step), worker.torch_rng(config.seed, step)
    clean, scenes = pool.draw(rng, step, bucket, bucket.batch_size // worker.num_workers)
    prompts = [draw_prompt(scene, rng, stage) for scene in scenes]
    loss = flow_loss(model, clean.to(config.device), prompts, tokenizer, stage.time_shift, torch_rng)
    loss.backward()
    apply_gradients(worker, model, optimizer, stage.schedule.rate_at(step))
    return {"loss": worker.sum(loss.detach().cpu().reshape(1)).item() / worker.num_workers}
