"""Evaluations while the transformer learns: what the averaged weights make of streams whose prompt changes once.

Shape letters: N streams, C channels, T frames, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from fastvideo_wan.models.vae import WanVAE
from fastvideo_wan.models.vae_cache import FeatureCache
from fastvideo_wan.shapes.evaluation import ATTRIBUTES, wilson_interval
from fastvideo_wan.shapes.render import to_uint8_frames
from fastvideo_wan.shapes.scenes import FRAME_SIZE
from fastvideo_wan.shapes.sheets import write_sheet
from fastvideo_wan.shapes.stream_measure import StreamCase, judge_chunk, stream_cases
from fastvideo_wan.shapes.streams import first_frame, turn_of_chunk
from fastvideo_wan.shapes.train.checkpoint import Average
from fastvideo_wan.shapes.train.watching import MAX_SHEET_CLIPS, SHEETS_FOLDER
from fastvideo_wan.shapes.train.workers import Worker
from fastvideo_wan.shapes.train_causal.config import CausalConfig, CausalStage
from fastvideo_wan.shapes.train_causal.model import CausalShapesModel
from fastvideo_wan.shapes.train_causal.rollout import RollOut

TURN_CHUNK = 4
NUM_CHUNKS = 7


def held_out_streams(num_cases: int, seed: int) -> list[StreamCase]:
    """Return streams whose prompt changes at `TURN_CHUNK`."""
    return stream_cases(num_cases, seed, (0, TURN_CHUNK))


@torch.no_grad()
def make_streams(
    model: CausalShapesModel,
    vae: WanVAE,
    tokenizer: Tokenizer,
    cases: Sequence[StreamCase],
    num_chunks: int,
    stage: CausalStage,
) -> Tensor:
    """Return streams decoded chunk by chunk, values about -1 to 1, on the CPU, shape (N, C, T, H, W)."""
    turns = [turn_of_chunk(case.turns, num_chunks) for case in cases]
    prompts = [[case.prompts[turns[row][chunk]] for row, case in enumerate(cases)] for chunk in range(num_chunks)]
    side = FRAME_SIZE // vae.config.spatial_factor
    rolled = RollOut(model, tokenizer, stage, [case.seed for case in cases], (vae.config.z_dim, side, side))
    caches, frames = [FeatureCache() for _ in cases], []
    for latents in rolled.chunks(prompts):
        decoded = [
            vae.decode_frames(row[None], cache) for row, cache in zip(vae.denormalize(latents), caches, strict=True)
        ]
        caches = [cache for _, cache in decoded]
        frames.append(torch.cat([pixels for pixels, _ in decoded]).cpu())
    return torch.cat(frames, dim=2)


def evaluate_average(
    worker: Worker, config: CausalConfig, vae: WanVAE, average: Average, tokenizer: Tokenizer, step: int
) -> None:
    """Print how many streams show what is asked for before and after a turn, and write sheets.

    Before means the chunk before the turn, after means the third chunk with the new prompt.
    """
    stage = config.causal
    model = CausalShapesModel(config.read_base().dit, vae.config.z_dim).to(config.device).eval()
    model.load_state_dict(average.weights)
    cases = held_out_streams(stage.eval_streams, config.seed)
    own = cases[worker.rank :: worker.num_workers]
    clips = make_streams(model, vae, tokenizer, own, NUM_CHUNKS, stage) if own else torch.zeros(0)
    for name, chunk, turn in (("before", TURN_CHUNK - 1, 0), ("after", TURN_CHUNK + 2, 1)):
        span = slice(first_frame(chunk), first_frame(chunk + 1))
        scores = [judge_chunk(_frames(clip[:, span]), case.case(turn)) for clip, case in zip(clips, own, strict=True)]
        counts = worker.sum(torch.tensor([sum(s[attribute] for s in scores) for attribute in ATTRIBUTES]))
        if worker.is_first:
            print(f"eval {step} {name:<6}  {_line(counts.tolist(), len(cases))}", flush=True)
    if worker.is_first:
        path = config.folder / SHEETS_FOLDER / f"{step:06d}"
        write_sheet(path.with_suffix(".png"), clips[:MAX_SHEET_CLIPS])
        text = "".join(f"{' / '.join(case.prompts)}\n" for case in own[:MAX_SHEET_CLIPS])
        path.with_suffix(".txt").write_text(text, encoding="utf-8")


def _frames(clip_CTHW: Tensor) -> npt.NDArray[np.uint8]:
    """Return frames with values -1 to 1 as bytes."""
    return to_uint8_frames(clip_CTHW / 2 + 0.5).numpy()


def _line(counts: list[int], num_cases: int) -> str:
    parts = []
    for name, count in zip(ATTRIBUTES, counts, strict=True):
        low, high = wilson_interval(count, num_cases)
        parts.append(f"{name} {count / num_cases:.2f} ({low:.2f}-{high:.2f})")
    return "  ".join(parts)
