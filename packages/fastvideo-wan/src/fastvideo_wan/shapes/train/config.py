"""All settings of a training run, checked when the file is read."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fastvideo_core.errors import ParameterError
from fastvideo_wan.shapes.scenes import PLAIN, WIDE, SceneRanges, World

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, lt=1)]
Part = Annotated[float, Field(ge=0, le=1)]


class Settings(BaseModel):
    """Settings whose unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


SettingsT = TypeVar("SettingsT", bound=Settings)


class Ranges(Settings):
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


class Schedule(Settings):
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


class Bucket(Settings):
    """One length and size of what a step sees, so that its batch is one tensor.

    Attributes:
        num_frames: Frames, 4k + 1.
        height: Rows in pixels.
        width: Columns in pixels.
        batch_size: Windows or clips a step, over all processes.
        share: How often steps draw this bucket, in proportion to the others' shares.
        num_clips: Clips whose latents are stored; windows of the autoencoder's stage are drawn anew at every step.
    """

    num_frames: Annotated[int, Field(ge=1, le=81)] = 17
    height: Annotated[int, Field(ge=16, le=128, multiple_of=16)] = 64
    width: Annotated[int, Field(ge=16, le=128, multiple_of=16)] = 64
    batch_size: Count
    share: Annotated[float, Field(gt=0)] = 1.0
    num_clips: Count = 256

    @property
    def name(self) -> str:
        """What files and tables call it: frames, height and width."""
        return f"{self.num_frames}x{self.height}x{self.width}"

    @model_validator(mode="after")
    def _frames_on_grid(self) -> Self:
        if self.num_frames % 4 != 1:
            raise ValueError(f"num_frames={self.num_frames} must be one more than a multiple of 4")
        return self


def draw_bucket(buckets: Sequence[Bucket], rng: random.Random) -> int:
    """Return the index of one of the buckets, drawn by their shares; advances `rng`."""
    return rng.choices(range(len(buckets)), [bucket.share for bucket in buckets])[0]


class VaeStage(Settings):
    """The autoencoder: its shape, the windows of clips that it sees, and its loss.

    Attributes:
        base_dim: Channels of the first level.
        dim_mult: Channels of each level in multiples of the base.
        latent_channels: Channels of the latents.
        ranges: Scenes that it is trained on; wider than what is shown later.
        min_scale: Smallest scale of a scene, in pixels a unit of its lengths.
        max_scale: Largest scale.
        clip_frames: Lengths of the clips that windows are cut from, which set how fast objects move.
        windows: Lengths and sizes of windows.
        object_weight: Extra weight of the loss where a pixel differs from the background.
        kl_weight: Weight of the latents' divergence from the standard normal.
    """

    base_dim: Count = 24
    dim_mult: tuple[Count, ...] = (1, 2, 2)
    latent_channels: Count = 12
    num_res_blocks: Count = 2
    ranges: Ranges = Ranges(min_radius=10, max_radius=13.5, min_travel=18, max_travel=29, along_slack=4, across_slack=9)
    min_scale: Annotated[float, Field(gt=0)] = 0.75
    max_scale: Annotated[float, Field(gt=0)] = 1.5
    clip_frames: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (17, 17, 33, 81)
    windows: Annotated[tuple[Bucket, ...], Field(min_length=1)] = (
        Bucket(num_frames=9, height=32, width=32, batch_size=8, share=10),
        Bucket(num_frames=17, height=32, width=32, batch_size=4, share=3),
        Bucket(num_frames=33, height=32, width=32, batch_size=2, share=1),
        Bucket(num_frames=17, height=64, width=64, batch_size=2, share=2),
        Bucket(num_frames=5, height=96, width=64, batch_size=2, share=1),
        Bucket(num_frames=5, height=48, width=96, batch_size=4, share=1),
        Bucket(num_frames=1, height=96, width=96, batch_size=8, share=1),
        Bucket(num_frames=1, height=48, width=48, batch_size=16, share=1),
    )
    object_weight: float = 2.0
    kl_weight: float = 3e-4
    schedule: Schedule = Schedule(num_steps=5000, learning_rate=3e-3, decay_part=0.5, ema_decay=0.995)

    @model_validator(mode="after")
    def _windows_fit(self) -> Self:
        if self.min_scale > self.max_scale:
            raise ValueError(f"min_scale={self.min_scale} must not be above max_scale={self.max_scale}")
        longest = max(window.num_frames for window in self.windows)
        if longest > max(self.clip_frames):
            raise ValueError(
                f"clip_frames={self.clip_frames} must hold a length of at least {longest}, the longest window's"
            )
        return self


class LatentsStage(Settings):
    """Clips whose latents the transformer learns from; how many is said by the buckets.

    Attributes:
        clips_per_file: Clips in one file.
        ranges: Scenes that are drawn.
    """

    clips_per_file: Count = 64
    ranges: Ranges = Ranges()


class DecoderStage(Settings):
    """The decoder alone, on the beginnings of stored latents.

    Attributes:
        batch_size: Windows a step, over all processes.
        window_cells: Height and width of a window in latent cells, laid around the object.
        window_frames: Latent frames of a window, at most; it opens the clip.
        whole_part: Part of the steps, at the end, that see whole frames.
        noise: Deviation of the noise on the normalised latents.
        pool_step: Step of the transformer's stage whose share of the clips is used.
    """

    batch_size: Count = 4
    window_cells: Annotated[int, Field(ge=3, le=8)] = 5
    window_frames: Count = 5
    whole_part: Part = 0.25
    noise: Part = 0.05
    pool_step: Annotated[int, Field(ge=0)] = 100_000
    schedule: Schedule = Schedule(num_steps=500, learning_rate=1e-3, decay_part=0.6)


class DitStage(Settings):
    """Transformer and text encoder, trained together.

    Attributes:
        num_heads: Heads of the transformer.
        head_dim: Width of a head.
        num_layers: Blocks.
        ffn_dim: Hidden width of the feed-forward nets.
        text_dim: Width of the text encoder.
        text_layers: Its layers.
        weight_decay: Decoupled decay of matrices.
        time_shift: Noise levels are s u / (1 + (s - 1) u) with uniform u and this s; the sampler's flow shift too.
        prompt_drop: Part of the prompts that are replaced by the empty one.
        unknown_part: Part of the prompts into which one or two unknown words are put.
        ordered_part: Part of the prompts of moving objects in which the order of the words says where they move
            (`from left to right`), besides those that are drawn so by chance: what is learnt last.
        clips_at_start: Clips of the first bucket that the first step may use, and as large a part of the others'.
        clips_per_step: How many more each step may use, so that latents can be computed meanwhile.
        eval_every: Steps between evaluations of the first bucket.
        eval_prompts: Prompts of an evaluation.
        eval_side_prompts: Prompts on which each evaluation looks at one other bucket, in turn.
        eval_steps: Sampling steps of an evaluation.
        guidance_scale: Guidance of an evaluation.
    """

    num_heads: Count = 6
    head_dim: Count = 32
    num_layers: Count = 6
    ffn_dim: Count = 768
    text_dim: Count = 128
    text_layers: Count = 2
    weight_decay: Part = 0.01
    time_shift: Annotated[float, Field(ge=1)] = 5.0
    prompt_drop: Part = 0.1
    unknown_part: Part = 0.1
    ordered_part: Part = 0.0
    clips_at_start: Count = 2048
    clips_per_step: Count = 8
    eval_every: Count = 250
    eval_prompts: Count = 60
    eval_side_prompts: Annotated[int, Field(ge=0)] = 8
    eval_steps: Count = 20
    guidance_scale: Annotated[float, Field(ge=1)] = 2.5
    schedule: Schedule = Schedule(num_steps=2500, learning_rate=2e-3, num_warmup_steps=100, ema_decay=0.998)


class WordsStage(Settings):
    """The text encoder alone, on captions whose words' order matters; see `words_stage`.

    Attributes:
        batch_size: Captions a step, over all processes.
    """

    batch_size: Count = 128
    schedule: Schedule = Schedule(
        num_steps=500, learning_rate=4e-3, num_warmup_steps=20, decay_part=0.6, ema_decay=0.98
    )


class Grid(Settings):
    """What the card of the finished model accepts; all of it should look as good as the buckets do.

    Attributes:
        max_frames: Most frames.
        min_size: Least height and width in pixels.
        max_size: Greatest height and width.
    """

    max_frames: Annotated[int, Field(ge=1, le=253)] = 81
    min_size: Annotated[int, Field(ge=16, multiple_of=16)] = 48
    max_size: Annotated[int, Field(ge=16, multiple_of=16)] = 96


_BUCKETS = (
    Bucket(batch_size=48, share=10, num_clips=4096),
    Bucket(num_frames=1, batch_size=96, share=0.6),
    Bucket(num_frames=1, height=48, width=48, batch_size=96, share=0.4),
    Bucket(num_frames=1, height=96, width=96, batch_size=64, share=0.4),
    Bucket(num_frames=1, height=64, width=96, batch_size=80, share=0.3),
    Bucket(num_frames=5, batch_size=80, share=0.5),
    Bucket(num_frames=9, batch_size=64, share=0.7),
    Bucket(num_frames=13, height=80, width=64, batch_size=48, share=0.5),
    Bucket(height=48, width=48, batch_size=72, share=0.7, num_clips=384),
    Bucket(height=80, width=80, batch_size=32, share=0.6),
    Bucket(height=96, width=96, batch_size=22, share=0.7),
    Bucket(height=48, width=96, batch_size=44, share=0.5),
    Bucket(height=96, width=64, batch_size=32, share=0.5),
    Bucket(num_frames=33, batch_size=28, share=1.2, num_clips=384),
    Bucket(num_frames=33, height=80, width=48, batch_size=28, share=0.5),
    Bucket(num_frames=49, height=64, width=80, batch_size=14, share=0.5, num_clips=128),
    Bucket(num_frames=81, batch_size=12, share=1.0, num_clips=192),
    Bucket(num_frames=81, height=48, width=48, batch_size=20, share=0.4, num_clips=128),
    Bucket(num_frames=65, height=96, width=96, batch_size=6, share=0.3, num_clips=96),
)


class WorldSettings(Settings):
    """Which kinds of scenes are learnt.

    Attributes:
        kinds: "plain": six colours, three shapes, four directions and standing still; "wide": eight colours, five
            shapes, eight directions and standing still.
        pair_part: Part of the scenes that have two objects.
        min_pair_size: Least height and width in pixels at which there are any: smaller ones show too little of each.
    """

    kinds: Literal["plain", "wide"] = "plain"
    pair_part: Part = 0.0
    min_pair_size: Count = 64

    def at(self, height: int, width: int) -> World:
        """Return the kinds that clips of a size show."""
        world = PLAIN if self.kinds == "plain" else WIDE
        return replace(world, pair_part=self.pair_part) if min(height, width) >= self.min_pair_size else world


class TrainConfig(Settings):
    """A whole run.

    Attributes:
        folder: Where checkpoints, latents, sheets and the result go.
        seed: Everything drawn follows from it.
        world: Which kinds of scenes are learnt.
        base: Folder of a finished model that the run begins with, or "wan-shapes" for the package's own. Its
            autoencoder is taken as it is, so that the latents stay the same; `dit` goes on from its weights, whose
            shapes must be those of `dit`'s settings.
        num_processes: Single-threaded processes that share every batch; on a busy machine they do better than threads.
        device: "cpu", or "cuda" with one process.
        buckets: Lengths and sizes of clips that latents are stored for, and that the transformer learns; the first one
            is the card's default. Batch sizes that keep the number of tokens about the same make all steps as long.
    """

    folder: Path
    seed: Annotated[int, Field(ge=0)] = 1
    world: WorldSettings = WorldSettings()
    base: Annotated[str, Field(min_length=1)] | None = None
    num_processes: Annotated[int, Field(ge=1, le=64)] = 2
    device: Annotated[str, Field(pattern="^(cpu|cuda)$")] = "cpu"
    buckets: Annotated[tuple[Bucket, ...], Field(min_length=1)] = _BUCKETS
    vae: VaeStage = VaeStage()
    latents: LatentsStage = LatentsStage()
    decoder: DecoderStage = DecoderStage()
    dit: DitStage = DitStage()
    words: WordsStage = WordsStage()
    grid: Grid = Grid()

    @model_validator(mode="after")
    def _buckets_differ(self) -> Self:
        names = [bucket.name for bucket in self.buckets]
        if len(set(names)) < len(names):
            raise ValueError(f"buckets must differ in length or size; got {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _batches_divide(self) -> Self:
        sizes = {f"vae.windows.{i}.batch_size": window.batch_size for i, window in enumerate(self.vae.windows)}
        sizes |= {f"buckets.{i}.batch_size": bucket.batch_size for i, bucket in enumerate(self.buckets)}
        sizes |= {"decoder.batch_size": self.decoder.batch_size, "words.batch_size": self.words.batch_size}
        for name, size in sizes.items():
            if size % self.num_processes:
                raise ValueError(f"{name}={size} must be a multiple of num_processes={self.num_processes}")
        if self.device == "cuda" and self.num_processes > 1:
            raise ValueError("num_processes must be 1 on cuda")
        return self


def read_config(path: Path) -> TrainConfig:
    """Read a JSON file of a run's settings.

    Raises:
        ParameterError: As `read_settings`.
    """
    return read_settings(path, TrainConfig)


def read_settings(path: Path, kind: type[SettingsT]) -> SettingsT:
    """Read a JSON file of settings.

    Raises:
        ParameterError: If it cannot be read, or a setting is unknown or out of range; names the first one.
    """
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
        return kind.model_validate(raw)
    except OSError as error:
        raise ParameterError(f"cannot be read: {error.strerror}", field="config", value=str(path)) from error
    except json.JSONDecodeError as error:
        raise ParameterError(f"is not JSON: {error}", field="config", value=str(path)) from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "config"
        raise ParameterError(first["msg"], field=field, value=first["input"] if first["loc"] else str(path)) from error
