"""All settings of a causal training run, checked when the file is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from fastvideo_wan.loops.chunk_schedule import make_schedule
from fastvideo_wan.models.chunks import ChunkRule
from fastvideo_wan.shapes.streams import CHUNK_LATENTS, StreamRanges
from fastvideo_wan.shapes.train.base import SHIPPED, Base
from fastvideo_wan.shapes.train.config import Count, Part, Rate, Schedule, Settings

Share = Annotated[float, Field(ge=0)]


class Ranges(Settings):
    """Ranges of streams; see `streams.StreamRanges`."""

    min_radius: float = 11.0
    max_radius: float = 12.5
    min_speed: float = 1.3
    max_speed: float = 1.7
    start_slack: float = 10.0

    def to_stream_ranges(self) -> StreamRanges:
        """Return the same as the generator takes it."""
        return StreamRanges(**self.model_dump())


class StreamsStage(Settings):
    """Streams whose latents the transformer learns from.

    Attributes:
        num_streams: How many are stored.
        streams_per_file: In one file.
        num_chunks: Length of each.
        lead_latents: Latent frames that the encoder sees before a turn's first one, as if the turn had always been.
        turn_shares: How often a stream has no turn, one, two and so on, in proportion.
        ranges: What is drawn.
    """

    num_streams: Count = 2048
    streams_per_file: Count = 16
    num_chunks: Annotated[int, Field(ge=2)] = 6
    lead_latents: Annotated[int, Field(ge=1)] = 3
    turn_shares: Annotated[tuple[Share, ...], Field(min_length=1)] = (3, 5, 2)
    ranges: Ranges = Ranges()

    @model_validator(mode="after")
    def _turns_fit(self) -> Self:
        if len(self.turn_shares) > self.num_chunks:
            raise ValueError(f"turn_shares: at most {self.num_chunks}, as many as there are chunks")
        if not any(self.turn_shares):
            raise ValueError("turn_shares: one at least must be above 0")
        return self


class CausalStage(Settings):
    """The transformer on chunks, with its text encoder.

    Attributes:
        window_frames: Latent frames that a chunk attends to at most, its own among them.
        sink_frames: Latent frames at the start that stay in the window.
        batch_size: Streams a step, over all processes.
        num_openings: Further first chunks a step, over all processes, each learnt by itself.
        weight_decay: Decoupled decay of matrices.
        time_shift: Noise levels are s u / (1 + (s - 1) u) with uniform u and this s; the sampler's flow shift too.
        prompt_drop: Part of the streams whose prompts are all empty.
        ordered_part: Part of the prompts of moving objects in which the order of the words must say where they move.
        unknown_part: Part of the prompts into which one or two unknown words are put.
        recache_part: Part of the streams with a turn whose past is read anew with the turn's prompt, as a session does
            when its prompt changes.
        noisy_part: Part of the clean chunks that get noise, about which the model is told nothing.
        max_noise: Most noise of such a chunk, 0 to 1.
        own_part: Part of the steps in which the clean chunks are what the model itself makes of noisy ones.
        own_from: Step from which on there are such steps.
        streams_at_start: Streams that the first step may use.
        streams_per_step: How many more each step may use, so that latents can be computed meanwhile.
        eval_every: Steps between evaluations.
        eval_streams: Streams of an evaluation.
        steps: The steps of a chunk, before the shift.
        is_renoised: Go from one noise level to the next by new noise, else along the velocity.
        guidance_scale: Guidance of an evaluation; 1 for none.
    """

    window_frames: Count = 12
    sink_frames: Annotated[int, Field(ge=0)] = 0
    batch_size: Count = 8
    num_openings: Annotated[int, Field(ge=0)] = 24
    weight_decay: Part = 0.01
    time_shift: Annotated[float, Field(ge=1)] = 5.0
    prompt_drop: Part = 0.1
    ordered_part: Part = 0.2
    unknown_part: Part = 0.1
    recache_part: Part = 0.5
    noisy_part: Part = 0.5
    max_noise: Rate = 0.2
    own_part: Part = 0.5
    own_from: Annotated[int, Field(ge=0)] = 300
    streams_at_start: Count = 256
    streams_per_step: Count = 1
    eval_every: Count = 250
    eval_streams: Count = 24
    steps: tuple[int, ...] = (1000, 875, 750, 625, 500, 375, 250, 125)
    is_renoised: bool = True
    guidance_scale: Annotated[float, Field(ge=1)] = 1.0
    schedule: Schedule = Schedule(num_steps=3000, learning_rate=1.5e-3, num_warmup_steps=60, ema_decay=0.995)

    @property
    def rule(self) -> ChunkRule:
        """Which chunks a chunk attends to."""
        return ChunkRule(CHUNK_LATENTS, self.window_frames, self.sink_frames)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            make_schedule(self.steps, self.time_shift)
            _ = self.rule
        except ValueError as error:
            raise ValueError(str(error)) from error
        return self


class CausalConfig(Settings):
    """A whole run.

    Attributes:
        folder: Where latents, checkpoints, sheets and the result go.
        base: Folder of the finished model whose autoencoder, text encoder and transformer this one begins with; the
            package's own by default.
        dropped_layers: Layers of the base's transformer that are left out, which makes the model smaller and faster.
        seed: Everything drawn follows from it.
        num_processes: Single-threaded processes that share every batch.
        device: "cpu", or "cuda" with one process.
        streams: Stored latents.
        causal: The training.
    """

    folder: Path
    base: Path = SHIPPED
    dropped_layers: tuple[Annotated[int, Field(ge=0)], ...] = ()
    seed: Annotated[int, Field(ge=0)] = 1
    num_processes: Annotated[int, Field(ge=1, le=64)] = 2
    device: Annotated[str, Field(pattern="^(cpu|cuda)$")] = "cpu"
    streams: StreamsStage = StreamsStage()
    causal: CausalStage = CausalStage()

    @model_validator(mode="after")
    def _processes_fit(self) -> Self:
        for name in ("batch_size", "num_openings"):
            if (count := getattr(self.causal, name)) % self.num_processes:
                raise ValueError(f"causal.{name}={count} must be a multiple of num_processes={self.num_processes}")
        if self.device == "cuda" and self.num_processes > 1:
            raise ValueError("num_processes must be 1 on cuda")
        return self

    def read_base(self) -> Base:
        """Read what this run begins with.

        Raises:
            ParameterError: If there is no such model in the folder, or no such layer.
        """
        return Base(self.base, self.dropped_layers)
