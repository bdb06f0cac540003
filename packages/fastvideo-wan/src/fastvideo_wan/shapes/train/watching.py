"""Evaluations while the transformer learns: what the averaged weights make of held-out prompts.

Shape letters: N clips, C latent channels, T latent frames, H rows, W columns.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from fastvideo_wan.models.vae import WanVAE
from fastvideo_wan.shapes.evaluation import (
    ATTRIBUTES,
    Case,
    case_noise,
    held_out_cases,
    judge_clips,
    wilson_interval,
)
from fastvideo_wan.shapes.sheets import write_sheet
from fastvideo_wan.shapes.train.checkpoint import Average
from fastvideo_wan.shapes.train.config import Bucket, DitStage, TrainConfig
from fastvideo_wan.shapes.train.model import ShapesModel, tokenize
from fastvideo_wan.shapes.train.sampling import sample
from fastvideo_wan.shapes.train.vae_stage import latent_shape
from fastvideo_wan.shapes.train.workers import Worker

SHEETS_FOLDER = "sheets"
DECODE_BATCH = 8
MAX_SHEET_CLIPS = 24


def evaluate_average(
    worker: Worker, config: TrainConfig, vae: WanVAE, average: Average, tokenizer: Tokenizer, step: int
) -> None:
    """Print how many held-out prompts the averaged weights follow, by attribute with 95 % intervals, and write sheets.

    The first bucket is looked at every time, the others in turn.
    """
    stage, others = config.dit, config.buckets[1:]
    model = ShapesModel(stage, vae.config.z_dim).to(config.device).eval()
    model.load_state_dict(average.weights)
    wanted = [(config.buckets[0], stage.eval_prompts)]
    if others and stage.eval_side_prompts:
        wanted.append((others[step // stage.eval_every % len(others)], stage.eval_side_prompts))
    for bucket, num_prompts in wanted:
        cases = held_out_cases(num_prompts, config.seed, config.world.at(bucket.height, bucket.width))
        own = cases[worker.rank :: worker.num_workers]
        clips = generate(model, vae, tokenizer, own, bucket, stage)
        scores = judge_clips(clips, own)
        counts = worker.sum(torch.tensor([sum(score[name] for score in scores) for name in ATTRIBUTES]))
        if worker.is_first:
            print(f"eval {step} {bucket.name}  {_line(counts.tolist(), num_prompts)}", flush=True)
            _write(config.folder / SHEETS_FOLDER / f"{step:06d}-{bucket.name}", clips, own)


def _line(counts: list[int], num_prompts: int) -> str:
    parts = []
    for name, count in zip(ATTRIBUTES, counts, strict=True):
        low, high = wilson_interval(count, num_prompts)
        parts.append(f"{name} {count / num_prompts:.2f} ({low:.2f}-{high:.2f})")
    return "  ".join(parts)


def _write(path: Path, clips_NCTHW: Tensor, cases: list[Case]) -> None:
    """Write a sheet, and its prompts in its order: along rows."""
    write_sheet(path.with_suffix(".png"), clips_NCTHW[:MAX_SHEET_CLIPS])
    text = "".join(f"{case.prompt}\n" for case in cases[:MAX_SHEET_CLIPS])
    path.with_suffix(".txt").write_text(text, encoding="utf-8")


@torch.no_grad()
def generate(
    model: ShapesModel, vae: WanVAE, tokenizer: Tokenizer, cases: list[Case], bucket: Bucket, stage: DitStage
) -> Tensor:
    """Return the clips of some cases, decoded, values about -1 to 1, on the CPU, shape (N, C, T, H, W)."""
    if not cases:
        return torch.zeros(0, 3, bucket.num_frames, bucket.height, bucket.width)
    device = next(model.parameters()).device
    prompts = [case.prompt for case in cases]
    texts = [model.encode_text(*(x.to(device) for x in tokenize(tokenizer, p))) for p in (prompts, [""] * len(prompts))]
    latents = sample(
        model,
        case_noise(cases, latent_shape(vae, bucket)).to(device),
        *texts,
        num_steps=stage.eval_steps,
        guidance_scale=stage.guidance_scale,
        shift=stage.time_shift,
    )
    return torch.cat([vae.decode(part).cpu() for part in vae.denormalize(latents).split(DECODE_BATCH)])
