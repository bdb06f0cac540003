"""The steps of a stage: what all stages that train something do around each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from fastvideo_wan.shapes.train.checkpoint import Average, load_checkpoint, save_checkpoint
from fastvideo_wan.shapes.train.config import Schedule
from fastvideo_wan.shapes.train.muon import MuonAdamW
from fastvideo_wan.shapes.train.progress import Progress
from fastvideo_wan.shapes.train.workers import Worker


def train_steps(
    worker: Worker,
    name: str,
    schedule: Schedule,
    path: Path,
    module: nn.Module,
    optimizer: MuonAdamW,
    take_step: Callable[[int], dict[str, float]],
    *,
    evaluate: Callable[[Average, int], None] | None = None,
    evaluate_every: int = 1,
) -> None:
    """Take the steps of a stage, from its checkpoint if there is one, until the schedule's last.

    Args:
        worker: This process's place among those that share the batches.
        name: The stage's, for progress lines.
        schedule: Steps and learning rate.
        path: The checkpoint.
        module: What is trained.
        optimizer: Its optimiser.
        take_step: Takes a step, counted from 0; returns figures to show.
        evaluate: Given the averaged weights and the number of steps done.
        evaluate_every: Steps between evaluations; the last step is always followed by one.
    """
    average = Average(module, schedule.ema_decay)
    start = load_checkpoint(path, module, average, optimizer) if path.exists() else 0
    progress = Progress(name, schedule, start, is_shown=worker.is_first)
    for step in range(start, schedule.num_steps):
        shown = take_step(step)
        average.update(module, step)
        progress.report(step, shown)
        is_last = step + 1 == schedule.num_steps
        if worker.is_first and (is_last or (step + 1) % schedule.save_every == 0):
            save_checkpoint(path, step + 1, module, average, optimizer)
        if evaluate is not None and (is_last or (step + 1) % evaluate_every == 0):
            evaluate(average, step + 1)
