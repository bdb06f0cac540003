"""Second stage: the transformer learns to go on, chunk by chunk, from what it sees in its window.

Shape letters: N streams, G chunks, C latent channels, T latent frames, H rows, W columns.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from fastvideo_wan.models.chunk_masks import spread_mask
from fastvideo_wan.models.context import select_rows
from fastvideo_wan.shapes.streams import CHUNK_LATENTS, Turn
from fastvideo_wan.shapes.train.checkpoint import Average
from fastvideo_wan.shapes.train.model import ADAMW_NAMES, new_tokenizer
from fastvideo_wan.shapes.train.muon import MuonAdamW, split_parameters
from fastvideo_wan.shapes.train.sampling import shifted
from fastvideo_wan.shapes.train.steps import train_steps
from fastvideo_wan.shapes.train.vae_stage import apply_gradients
from fastvideo_wan.shapes.train.workers import Worker
from fastvideo_wan.shapes.train_causal.config import CausalConfig, CausalStage
from fastvideo_wan.shapes.train_causal.lesson import Lesson, draw_lesson
from fastvideo_wan.shapes.train_causal.model import CausalShapesModel, spread_times
from fastvideo_wan.shapes.train_causal.openings import opening_loss
from fastvideo_wan.shapes.train_causal.pool import StreamPool
from fastvideo_wan.shapes.train_causal.watching import evaluate_average

CHECKPOINT = "causal.safetensors"
OPENING_LEVEL = 0.6
"""Highest noise level from which the model makes its own opening chunk: above, nothing says what is to be seen."""


def train_causal(worker: Worker, config: CausalConfig) -> None:
    """Train, or go on from the checkpoint in the run's folder, until the schedule's last step."""
    torch.manual_seed(config.seed)
    base, stage = config.read_base(), config.causal
    vae, model = base.load_vae().to(config.device).eval(), base.load_model(CausalShapesModel).to(config.device)
    path, schedule = config.folder / CHECKPOINT, stage.schedule
    groups = split_parameters(model, adamw_names=ADAMW_NAMES)
    optimizer = MuonAdamW(groups, lr=schedule.learning_rate, weight_decay=stage.weight_decay, worker=worker)
    pool, tokenizer = StreamPool(config), new_tokenizer()

    def take_step(step: int) -> dict[str, float]:
        return causal_step(worker, config, model, optimizer, pool, tokenizer, step)

    def evaluate(average: Average, num_done: int) -> None:
        evaluate_average(worker, config, vae, average, tokenizer, num_done)

    train_steps(
        worker, "causal", schedule, path, model, optimizer, take_step,
        evaluate=evaluate, evaluate_every=stage.eval_every,
    )  # fmt: skip


def causal_step(
    worker: Worker,
    config: CausalConfig,
    model: CausalShapesModel,
    optimizer: MuonAdamW,
    pool: StreamPool,
    tokenizer: Tokenizer,
    step: int,
) -> dict[str, float]:
    """Draw one batch and update the weights; returns figures over all processes."""
    stage = config.causal
    rng, torch_rng = worker.rng(config.seed, step), worker.torch_rng(config.seed, step)
    is_own = step >= stage.own_from and worker.shared_rng(config.seed, step).random() < stage.own_part
    latents, streams = pool.draw(rng, step, stage.batch_size // worker.num_workers)
    batch = draw_batch(latents.to(config.device), streams, config, rng, torch_rng)
    losses = {"loss": batch.loss(model, tokenizer, own_past=is_own)}
    if stage.num_openings:
        latents, streams = pool.draw(rng, step, stage.num_openings // worker.num_workers)
        losses["opening"] = opening_loss(
            model, tokenizer, latents.to(config.device), streams, stage, rng, torch_rng
        )  # fmt: skip
    torch.stack(list(losses.values())).sum().backward()
    apply_gradients(worker, model, optimizer, stage.schedule.rate_at(step))
    totals = worker.sum(torch.stack([one.detach().cpu() for one in losses.values()]))
    return dict(zip(losses, (totals / worker.num_workers).tolist(), strict=True))


def draw_batch(
    latents_NCTHW: Tensor,
    streams: Sequence[Sequence[Turn]],
    config: CausalConfig,
    rng: random.Random,
    torch_rng: torch.Generator,
) -> Batch:
    """Draw the lesson, the noise levels and the noise of a step; advances both generators."""
    stage, num_chunks = config.causal, config.streams.num_chunks
    lesson = draw_lesson(rng, streams, num_chunks, stage.rule, stage)
    return Batch(latents_NCTHW, lesson, stage, torch_rng)


class Batch:
    """A step's streams with all that is drawn for them.

    Args:
        latents_NCTHW: The streams' latents.
        lesson: Prompts and masks.
        stage: Settings.
        generator: Advanced by what is drawn here.
    """

    def __init__(self, latents_NCTHW: Tensor, lesson: Lesson, stage: CausalStage, generator: torch.Generator) -> None:
        self.clean, self.lesson, self.stage = latents_NCTHW, lesson, stage
        num_streams, num_chunks = lesson.counted_NG.shape
        self.sizes = [CHUNK_LATENTS] * num_chunks
        shape = latents_NCTHW.shape

        def uniform(*size: int) -> Tensor:
            return torch.rand(size, generator=generator)

        self.times_NG = shifted(uniform(num_streams, num_chunks), stage.time_shift).to(latents_NCTHW.device)
        self.own_times_NG = shifted(uniform(num_streams, num_chunks), stage.time_shift).to(latents_NCTHW.device)
        self.own_times_NG[:, 0] *= OPENING_LEVEL
        is_noisy = uniform(num_streams, num_chunks) < stage.noisy_part
        self.spoilt_NG = (uniform(num_streams, num_chunks) * stage.max_noise * is_noisy).to(latents_NCTHW.device)
        self.noise, self.own_noise, self.past_noise = (
            torch.randn(shape, generator=generator).to(latents_NCTHW.device) for _ in range(3)
        )

    def loss(self, model: CausalShapesModel, tokenizer: Tokenizer, *, own_past: bool) -> Tensor:
        """Return the mean squared error of the velocity of the noisy chunks that count.

        Args:
            model: What is trained.
            tokenizer: Of the prompts.
            own_past: Whether the clean chunks are what the model makes of noisy ones.
        """
        past = self.own_past(model, tokenizer) if own_past else self.clean
        past = self._mix(past, self.past_noise, self.spoilt_NG)
        velocity = self._predict(model, tokenizer, past, self.noise, self.times_NG)
        error_NT = (velocity - (self.noise - self.clean)).square().mean(dim=(1, 3, 4))
        counted_NT = self.lesson.counted_NG.to(error_NT.device).repeat_interleave(CHUNK_LATENTS, dim=1)
        return (error_NT * counted_NT).sum() / counted_NT.sum()

    @torch.no_grad()
    def own_past(self, model: CausalShapesModel, tokenizer: Tokenizer) -> Tensor:
        """Return what the model takes noisy chunks for, each seen after clean ones: its own typical mistakes."""
        velocity = self._predict(model, tokenizer, self.clean, self.own_noise, self.own_times_NG)
        noisy = self._mix(self.clean, self.own_noise, self.own_times_NG)
        made = noisy - self._frames(self.own_times_NG) * velocity
        # Noisy chunks that do not count have seen nothing but themselves.
        counted_NT = self.lesson.counted_NG.to(made.device).repeat_interleave(CHUNK_LATENTS, dim=1)
        return torch.where(counted_NT[:, None, :, None, None], made, self.clean)

    def _predict(
        self, model: CausalShapesModel, tokenizer: Tokenizer, past: Tensor, noise: Tensor, times_NG: Tensor
    ) -> Tensor:
        """Return the velocity of the clean streams made noisy, beside `past` as what went before."""
        context, rows = model.prepare_prompts(tokenizer, [prompt for row in self.lesson.prompts for prompt in row])
        context = select_rows(context, torch.tensor(rows, device=past.device))
        noisy, num_frames = self._mix(self.clean, noise, times_NG), past.shape[2]
        both_times = torch.cat([torch.zeros_like(times_NG), times_NG], dim=1)
        velocity = model.causal.forward_masked(
            torch.cat([past, noisy], dim=2),
            spread_times(both_times, self.sizes * 2),
            context,
            spread_mask(self.lesson.mask_NGG.to(past.device), self.sizes * 2),
            positions=[*range(num_frames), *range(num_frames)],
        )
        return velocity[:, :, num_frames:]

    def _mix(self, clean: Tensor, noise: Tensor, times_NG: Tensor) -> Tensor:
        times = self._frames(times_NG)
        return (1 - times) * clean + times * noise

    def _frames(self, times_NG: Tensor) -> Tensor:
        """Return chunks' levels such that they multiply latents."""
        return times_NG.repeat_interleave(CHUNK_LATENTS, dim=1)[:, None, :, None, None]
