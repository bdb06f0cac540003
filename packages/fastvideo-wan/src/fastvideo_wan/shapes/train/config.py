"""All settings of a training run, checked when the file is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fastvideo_core.errors import ParameterError
from fastvideo_wan.shapes.scenes import SceneRanges

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, lt=1)]
Part = Annotated[float, Field(ge=0, le=1)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ranges(_Settings):
    """Ranges of scenes; see `scenes.SceneRanges`."""

    min_radius: float = 11.0
    max_radius: float = 12.5
    min_travel: float = 22.0
    max_travel: float = 27.0
    along_slack: float = 2.0
    across_slack: float = 7.0

    def to_scene_ranges(self) -> SceneRanges:
        """Return the same as the generator takes it."""
        return SceneRanges(**self.model_dump())


class Schedule(_Settings):
    """Steps and learning rate of a stage: linear warm-up, constant, linear fall to zero.

    Attributes:
        num_steps: Optimiser steps; may be changed when a run is resumed, which moves the fall.
        learning_rate: Highest rate, in AdamW's units.
        num_warmup_steps: Steps of the warm-up.
        decay_part: Part of the steps over which the rate falls at the end.
        ema_decay: Decay of the averaged weights, which are the ones that are kept.
        save_every: Steps between checkpoints.
        report_every: Steps between progress lines.
    """

    num_steps: Count
    learning_rate: Rate
    num_warmup_steps: Count = 30
    decay_part: Part = 0.5
    ema_decay: Rate = 0.99
    save_every: Count = 100
    report_every: Count = 25

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        warmup = min(1.0, (step + 1) / self.num_warmup_steps)
        left = (self.num_steps - step) / max(1.0, self.decay_part * self.num_steps)
        return self.learning_rate * warmup * max(0.0, min(1.0, left))


class VaeStage(_Settings):
    """The autoencoder: its shape, its crops and its loss.

    Attributes:
        base_dim: Channels of the first level.
        dim_mult: Channels of each level in multiples of the base.
        latent_channels: Channels of the latents.
        ranges: Scenes that it is trained on; wider than what is shown later.
        batch_size: Crops a step, over all processes.
        crop_size: Height and width of a crop in pixels.
        crop_frames: Frames of a crop, 4k + 1.
        whole_part: Part of the steps, at the end, that see whole clips.
        whole_batch_size: Clips a step in that part, over all processes.
        object_weight: Extra weight of the loss where a pixel differs from the background.
        kl_weight: Weight of the latents' divergence from the standard normal.
    """

    base_dim: Count = 24
    dim_mult: tuple[Count, ...] = (1, 2, 2)
    latent_channels: Count = 12
    num_res_blocks: Count = 2
    ranges: Ranges = Ranges(min_radius=9, max_radius=14, min_travel=16, max_travel=30, along_slack=4, across_slack=9)
    batch_size: Count = 8
    crop_size: Annotated[int, Field(ge=16, le=64, multiple_of=8)] = 32
    crop_frames: Annotated[int, Field(ge=5, le=17)] = 9
    whole_part: Part = 0.1
    whole_batch_size: Count = 2
    object_weight: float = 2.0
    kl_weight: float = 3e-4
    schedule: Schedule = Schedule(num_steps=1600, learning_rate=3e-3, decay_part=0.6)


class LatentsStage(_Settings):
    """Clips whose latents the transformer learns from.

    Attributes:
        num_clips: How many.
        clips_per_file: Clips in one file.
        ranges: Scenes that are drawn.
    """

    num_clips: Count = 16384
    clips_per_file: Count = 128
    ranges: Ranges = Ranges()


class DecoderStage(_Settings):
    """The decoder alone, on stored latents.

    Attributes:
        batch_size: Windows or clips a step, over all processes.
        window_cells: Height and width of a window in latent cells, laid around the object.
        whole_part: Part of the steps, at the end, that see whole frames.
        noise: Deviation of the noise on the normalised latents.
        pool_step: Step of the transformer's stage whose share of the clips is used.
    """

    batch_size: Count = 4
    window_cells: Annotated[int, Field(ge=3, le=8)] = 5
    whole_part: Part = 0.25
    noise: Part = 0.05
    pool_step: Annotated[int, Field(ge=0)] = 100_000
    schedule: Schedule = Schedule(num_steps=500, learning_rate=1e-3, decay_part=0.6)


class DitStage(_Settings):
    """Transformer and text encoder, trained together.

    Attributes:
        num_heads: Heads of the transformer.
        head_dim: Width of a head.
        num_layers: Blocks.
        ffn_dim: Hidden width of the feed-forward nets.
        text_dim: Width of the text encoder.
        text_layers: Its layers.
        batch_size: Clips a step, over all processes.
        weight_decay: Decoupled decay of matrices.
        time_shift: Noise levels are s u / (1 + (s - 1) u) with uniform u and this s; the sampler's flow shift too.
        prompt_drop: Part of the prompts that are replaced by the empty one.
        unknown_part: Part of the prompts into which one or two unknown words are put.
        clips_at_start: Clips that the first step may use; see `clips_per_step`.
        clips_per_step: How many more clips each step may use, so that latents can be computed meanwhile.
        eval_every: Steps between evaluations.
        eval_prompts: Prompts of an evaluation.
        eval_steps: Sampling steps of an evaluation.
        guidance_scale: Guidance of an evaluation.
    """

    num_heads: Count = 6
    head_dim: Count = 32
    num_layers: Count = 6
    ffn_dim: Count = 768
    text_dim: Count = 128
    text_layers: Count = 2
    batch_size: Count = 64
    weight_decay: Part = 0.01
    time_shift: Annotated[float, Field(ge=1)] = 5.0
    prompt_drop: Part = 0.1
    unknown_part: Part = 0.1
    clips_at_start: Count = 2048
    clips_per_step: Count = 8
    eval_every: Count = 250
    eval_prompts: Count = 60
    eval_steps: Count = 20
    guidance_scale: Annotated[float, Field(ge=1)] = 2.5
    schedule: Schedule = Schedule(num_steps=2500, learning_rate=2e-3, num_warmup_steps=100, ema_decay=0.998)


class TrainConfig(_Settings):
    """A whole run.

    Attributes:
        folder: Where checkpoints, latents, sheets and the result go.
        seed: Everything drawn follows from it.
        num_processes: Single-threaded processes that share every batch; on a busy machine they do better than threads.
        device: "cpu", or "cuda" with one process.
    """

    folder: Path
    seed: Annotated[int, Field(ge=0)] = 1
    num_processes: Annotated[int, Field(ge=1, le=64)] = 2
    device: Annotated[str, Field(pattern="^(cpu|cuda)$")] = "cpu"
    vae: VaeStage = VaeStage()
    latents: LatentsStage = LatentsStage()
    decoder: DecoderStage = DecoderStage()
    dit: DitStage = DitStage()

    @model_validator(mode="after")
    def _batches_divide(self) -> Self:
        for name, size in (
            ("vae.batch_size", self.vae.batch_size),
            ("vae.whole_batch_size", self.vae.whole_batch_size),
            ("dit.batch_size", self.dit.batch_size),
            ("decoder.batch_size", self.decoder.batch_size),
        ):
            if size % self.num_processes:
                raise ValueError(f"{name}={size} must be a multiple of num_processes={self.num_processes}")
        if self.device == "cuda" and self.num_processes > 1:
            raise ValueError("num_processes must be 1 on cuda")
        if self.vae.crop_frames % 4 != 1:
            raise ValueError("vae.crop_frames must be one more than a multiple of 4")
        return self


def read_config(path: Path) -> TrainConfig:
    """Read a JSON file of settings.

    Raises:
        ParameterError: If it cannot be read, or a setting is unknown or out of range; names the first one.
    """
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
        return TrainConfig.model_validate(raw)
    except OSError as error:
        raise ParameterError(f"cannot be read: {error.strerror}", field="config", value=str(path)) from error
    except json.JSONDecodeError as error:
        raise ParameterError(f"is not JSON: {error}", field="config", value=str(path)) from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "config"
        raise ParameterError(first["msg"], field=field, value=first["input"] if first["loc"] else str(path)) from error
