"""Third stage: transformer and text encoder learn the latents' flow together.

Shape letters: N clips, C latent channels, T latent frames, H rows, W columns.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from fastvideo_wan.models.vae import WanVAE
from fastvideo_wan.shapes.captions import draw_caption
from fastvideo_wan.shapes.scenes import Scene
from fastvideo_wan.shapes.tokenizer import UNKNOWN
from fastvideo_wan.shapes.train.checkpoint import Average, load_checkpoint, save_checkpoint
from fastvideo_wan.shapes.train.config import DitStage, TrainConfig
from fastvideo_wan.shapes.train.evaluation import ATTRIBUTES, case_noise, held_out_cases, judge_clips, write_sheet
from fastvideo_wan.shapes.train.latents_stage import VAE_FOLDER, latents_path, load_vae, read_latents
from fastvideo_wan.shapes.train.model import ADAMW_NAMES, ShapesModel, new_tokenizer, tokenize
from fastvideo_wan.shapes.train.muon import MuonAdamW, split_parameters
from fastvideo_wan.shapes.train.progress import Progress
from fastvideo_wan.shapes.train.sampling import sample, shifted
from fastvideo_wan.shapes.train.vae_stage import apply_gradients
from fastvideo_wan.shapes.train.workers import Worker

CHECKPOINT = "dit.safetensors"
SHEETS_FOLDER = "sheets"
POLL_S = 2.0
DECODE_BATCH = 8


class LatentsPool:
    """The clips read so far; a step may use a number of them that follows from its index alone.

    Args:
        config: Says where the files are and how many.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.num_read = 0
        self.latents: list[Tensor] = []
        self.scenes: list[Scene] = []

    def num_usable(self, step: int) -> int:
        """Return how many clips a step may use."""
        stage = self.config.dit
        return min(self.config.latents.num_clips, stage.clips_at_start + stage.clips_per_step * step)

    def draw(self, rng: random.Random, step: int, num_clips: int) -> tuple[Tensor, list[Scene]]:
        """Return random clips for a step, waiting for files that are not there yet; advances `rng`."""
        num_usable = self.num_usable(step)
        while len(self.scenes) < num_usable:
            self._read_next()
        chosen = [rng.randrange(num_usable) for _ in range(num_clips)]
        size = self.config.latents.clips_per_file
        latents = torch.stack([self.latents[i // size][i % size] for i in chosen])
        return latents.float(), [self.scenes[i] for i in chosen]

    def _read_next(self) -> None:
        path = latents_path(self.config, self.num_read)
        while not path.exists():
            time.sleep(POLL_S)
        latents, scenes = read_latents(path)
        self.latents.append(latents)
        self.scenes.extend(scenes)
        self.num_read += 1


def draw_prompt(scene: Scene, rng: random.Random, stage: DitStage) -> str:
    """Return a caption, now and then none, now and then with unknown words in it; advances `rng`."""
    if rng.random() < stage.prompt_drop:
        return ""
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
    model = ShapesModel(config.dit, vae.config.z_dim).to(config.device)
    schedule = config.dit.schedule
    average = Average(model, schedule.ema_decay)
    groups = split_parameters(model, adamw_names=ADAMW_NAMES)
    optimizer = MuonAdamW(groups, lr=schedule.learning_rate, weight_decay=config.dit.weight_decay, worker=worker)
    path = config.folder / CHECKPOINT
    start = load_checkpoint(path, model, average, optimizer) if path.exists() else 0
    pool, tokenizer = LatentsPool(config), new_tokenizer()
    progress = Progress("dit", schedule, start, is_shown=worker.is_first)
    for step in range(start, schedule.num_steps):
        shown = dit_step(worker, config, model, optimizer, pool, tokenizer, step)
        average.update(model, step)
        progress.report(step, shown)
        is_last = step + 1 == schedule.num_steps
        if worker.is_first and (is_last or (step + 1) % schedule.save_every == 0):
            save_checkpoint(path, step + 1, model, average, optimizer)
        if is_last or (step + 1) % config.dit.eval_every == 0:
            evaluate_average(worker, config, vae, average, tokenizer, step + 1)


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
    rng, torch_rng = worker.rng(config.seed, step), worker.torch_rng(config.seed, step)
    clean, scenes = pool.draw(rng, step, stage.batch_size // worker.num_workers)
    prompts = [draw_prompt(scene, rng, stage) for scene in scenes]
    loss = flow_loss(model, clean.to(config.device), prompts, tokenizer, stage.time_shift, torch_rng)
    loss.backward()
    apply_gradients(worker, model, optimizer, stage.schedule.rate_at(step))
    return {"loss": worker.sum(loss.detach().cpu().reshape(1)).item() / worker.num_workers}


def evaluate_average(
    worker: Worker, config: TrainConfig, vae: WanVAE, average: Average, tokenizer: Tokenizer, step: int
) -> None:
    """Print how many held-out prompts the averaged weights follow, by attribute, and write a sheet."""
    model = ShapesModel(config.dit, vae.config.z_dim).to(config.device).eval()
    model.load_state_dict(average.weights)
    cases = held_out_cases(config.dit.eval_prompts, config.seed)[worker.rank :: worker.num_workers]
    clips = generate(model, vae, tokenizer, [c.prompt for c in cases], case_noise(cases, latent_shape(vae)), config.dit)
    scores = judge_clips(clips, cases)
    counts = worker.sum(torch.tensor([float(sum(s[name] for s in scores)) for name in ATTRIBUTES]))
    if worker.is_first:
        parts = "  ".join(f"{n} {c / config.dit.eval_prompts:.2f}" for n, c in zip(ATTRIBUTES, counts, strict=True))
        print(f"eval {step}  {parts}", flush=True)
        sheet = config.folder / SHEETS_FOLDER / f"{step:06d}.png"
        write_sheet(sheet, clips[:24])
        write_prompts(sheet.with_suffix(".txt"), [case.prompt for case in cases[:24]])


def latent_shape(vae: WanVAE, num_frames: int = 17, size: int = 64) -> tuple[int, int, int, int]:
    """Return channels, frames, rows and columns of a clip's latents."""
    factor = vae.config.spatial_factor
    return vae.config.z_dim, (num_frames - 1) // vae.config.temporal_factor + 1, size // factor, size // factor


@torch.no_grad()
def generate(
    model: ShapesModel, vae: WanVAE, tokenizer: Tokenizer, prompts: list[str], noise_NCTHW: Tensor, stage: DitStage
) -> Tensor:
    """Return decoded clips, values about -1 to 1, on the CPU."""
    device = next(model.parameters()).device
    texts = [model.encode_text(*(x.to(device) for x in tokenize(tokenizer, p))) for p in (prompts, [""] * len(prompts))]
    latents = sample(
        model,
        noise_NCTHW.to(device),
        *texts,
        num_steps=stage.eval_steps,
        guidance_scale=stage.guidance_scale,
        shift=stage.time_shift,
    )
    return torch.cat([vae.decode(part).cpu() for part in vae.denormalize(latents).split(DECODE_BATCH)])


def write_prompts(path: Path, prompts: list[str]) -> None:
    """Write the prompts of a sheet, in its order: along rows."""
    path.write_text("".join(f"{prompt}\n" for prompt in prompts), encoding="utf-8")
