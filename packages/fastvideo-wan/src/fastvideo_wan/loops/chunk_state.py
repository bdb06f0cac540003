"""State, payloads and results of a stream that grows chunk by chunk.

Shape letters: B rows; C latent channels; T, H, W latent frames of a chunk, rows, columns; S noises of a chunk, one a
noise level; Z layers; L tokens of a chunk; N heads; K head width; F, Y, X pixel frames, rows, columns; P pixel
channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from fastvideo_core.cache.slabs import SlabTable
from fastvideo_core.loop.behavior import LoopBehavior, StepBehavior
from fastvideo_core.loop.policies.cfg import (
    ClassifierFreeGuidance,
    EmbeddedGuidance,
    NoGuidance,
    RescaledGuidance,
    ZeroStarGuidance,
)
from fastvideo_core.loop.policies.experts import SingleExpert, StepIndexExperts, TimestepExperts
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import Profile
from fastvideo_core.request.cancel import CancelScope
from fastvideo_wan.loops.chunk_schedule import ChunkSchedule
from fastvideo_wan.loops.text import TextRow
from fastvideo_wan.models.chunks import ChunkRule
from fastvideo_wan.models.context import TextContext
from fastvideo_wan.models.vae_cache import FeatureCache

__all__ = [
    "CACHE",
    "ChunkCommitPayload",
    "ChunkContent",
    "ChunkDecodePayload",
    "ChunkDenoisePayload",
    "ChunkFrames",
    "ChunkKeyValues",
    "ChunkLatents",
    "ChunkOutputs",
    "ChunkPrompts",
    "ChunkPromptsPayload",
    "ChunkRereadPayload",
    "ChunkState",
    "PromptContext",
    "Window",
]

CACHE = "chunk_kv"

Policy = NoGuidance | EmbeddedGuidance | ClassifierFreeGuidance | RescaledGuidance | ZeroStarGuidance
Experts = SingleExpert | TimestepExperts | StepIndexExperts


@dataclass(frozen=True, slots=True)
class ChunkContent:
    """Keys, rotated, and values of one chunk in all layers, each (Z, 1, L, N, K)."""

    key_Z1LNK: torch.Tensor
    value_Z1LNK: torch.Tensor


Window = tuple[ChunkContent, ...]
"""What a chunk attends to besides itself, oldest first."""


@dataclass(frozen=True, slots=True)
class PromptContext:
    """A prompt's cross-attention keys and values in one expert, and which of the stream's prompts it is."""

    version: int
    context: TextContext


@dataclass(slots=True)
class ChunkState(LoopState):
    """State of a stream. But for the frames of a request that is no session's, nothing in it grows.

    Attributes:
        rule: Lengths of chunks, window and sink.
        schedule: Noise levels of a chunk.
        context_time: Timestep at which clean chunks are read.
        is_renoised: Whether new noise leads from one level to the next, or the velocity.
        has_reread: Whether a new prompt reads the window anew.
        policy: Guidance.
        experts: Routing of noise levels to components.
        branches: Branches of every pass.
        seed: Decides the noise, with the number of the chunk.
        shape_1CHW: Of a latent frame, as of a batch of one.
        fps: Frames a second.
        num_chunks: Chunks after which the stream ends; None if never.
        scope: What cancels it.
        profile: Serve, rollout or train.
        is_exact: Whether the reference's order of operations is kept.
        is_kept: Whether decoded frames are kept, for an artifact.
        table: Keys and values of past chunks, by expert and branch.
        prompts: Encoded prompts, by branch.
        versions: Which of the stream's prompts each of them is, from 0.
        pending_ids: Tokens of a prompt that the next chunk begins with; None if there is none.
        contexts: Cross-attention keys and values, by expert, then by branch.
        reread: Experts that have still to read the window anew with the new prompt.
        given_1CTHW: Latents of a video that the stream goes on from; None once they are used up.
        clean: Latents of the chunks that a new prompt would read anew, by chunk.
        chunk: The chunk in progress.
        stage: What comes next; `begin` is between two chunks.
        step_index: The noise level that comes next.
        latents_1CTHW: The chunk in progress.
        noise_S1CTHW: Its noises.
        decode_index: Latent frames of it that are decoded.
        cache: What the decoder remembers.
        committed: Experts that have read the chunk in progress.
        num_frames: Pixel frames decoded so far.
        num_pieces: Pieces of the stream that have come out.
        frames_FYXP: The frames, where they are kept.
        has_frames: Whether chunks are decoded.
        has_latents: Whether the latents of all chunks are kept, for an artifact.
        made_1CTHW: These latents, chunk by chunk.
        behavior: What the steps of a rollout recorded, but for what each chunk attended to, which the table keeps.
    """

    rule: ChunkRule
    schedule: ChunkSchedule
    context_time: float
    is_renoised: bool
    has_reread: bool
    policy: Policy
    experts: Experts
    branches: tuple[str, ...]
    seed: int
    shape_1CHW: tuple[int, int, int, int]
    fps: float
    num_chunks: int | None
    scope: CancelScope
    profile: Profile
    is_exact: bool
    is_kept: bool
    table: SlabTable
    prompts: dict[str, TextRow]
    versions: dict[str, int]
    pending_ids: tuple[int, ...] | None = None
    contexts: dict[str, dict[str, PromptContext]] = field(default_factory=dict)
    reread: tuple[str, ...] = ()
    given_1CTHW: torch.Tensor | None = None
    clean: dict[int, torch.Tensor] = field(default_factory=dict)
    chunk: int = 0
    stage: str = "begin"
    step_index: int = 0
    latents_1CTHW: torch.Tensor | None = None
    noise_S1CTHW: torch.Tensor | None = None
    decode_index: int = 0
    cache: FeatureCache = field(default_factory=FeatureCache)
    committed: tuple[str, ...] = ()
    num_frames: int = 0
    num_pieces: int = 0
    frames_FYXP: tuple[torch.Tensor, ...] = ()
    has_frames: bool = True
    has_latents: bool = False
    made_1CTHW: tuple[torch.Tensor, ...] = ()
    behavior: tuple[StepBehavior, ...] = ()


@dataclass(frozen=True, slots=True)
class ChunkPromptsPayload:
    """Prompts whose cross-attention keys and values are to be computed.

    Attributes:
        component: The expert.
        prompts: Encoded prompts, by branch.
        versions: Which of the stream's prompts each is.
        num_tokens: Text tokens that are kept, where padding is merged.
        is_exact: Whether the reference's order of operations is kept.
    """

    component: str
    prompts: Mapping[str, TextRow]
    versions: Mapping[str, int]
    num_tokens: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class ChunkPrompts:
    """Cross-attention keys and values, by branch."""

    component: str
    contexts: Mapping[str, PromptContext]


@dataclass(frozen=True, slots=True)
class ChunkRereadPayload:
    """Chunks of the window that are read anew in one pass, in which each sees all of them.

    Attributes:
        component: The expert.
        latents_1CTHW: Their clean latents.
        sizes: Latent frames of each.
        first_frame: Position of the first.
        time: Timestep at which clean chunks are read.
        contexts: The new prompts, by branch.
        sinks: What they attend to besides each other, by branch.
        is_exact: Whether the reference's order of operations is kept.
    """

    component: str
    latents_1CTHW: torch.Tensor
    sizes: tuple[int, ...]
    first_frame: int
    time: float
    contexts: Mapping[str, TextContext]
    sinks: Mapping[str, Window]
    is_exact: bool


@dataclass(frozen=True, slots=True)
class ChunkDenoisePayload:
    """One noise level of a chunk.

    Attributes:
        component: The expert.
        latents_1CTHW: The sample; None before the first level, whose step draws the noise.
        noise_1CTHW: What the next level is made with; None before the first level, or if it takes none.
        contexts: Prompts, by branch.
        windows: What the chunk attends to besides itself, by branch.
        time: Timestep.
        sigma: Part of noise in the sample.
        next_sigma: The same at the next level; 0 after the last.
        step_index: Number of the level.
        policy: Guidance.
        guidance_scale: Scale of it.
        is_renoised: Whether new noise leads to the next level, or the velocity.
        seed: Of the stream.
        chunk: Number of the chunk.
        num_noises: Noises of a chunk.
        shape_1CTHW: Of its latents.
        first_frame: Position of its first frame.
        is_exact: Whether the reference's order of operations is kept.
    """

    component: str
    latents_1CTHW: torch.Tensor | None
    noise_1CTHW: torch.Tensor | None
    contexts: Mapping[str, TextContext]
    windows: Mapping[str, Window]
    time: float
    sigma: float
    next_sigma: float
    step_index: int
    policy: Policy
    guidance_scale: float
    is_renoised: bool
    seed: int
    chunk: int
    num_noises: int
    shape_1CTHW: tuple[int, int, int, int, int]
    first_frame: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class ChunkLatents:
    """The sample after a level, and from the first one the chunk's noises."""

    latents_1CTHW: torch.Tensor
    noise_S1CTHW: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class ChunkCommitPayload:
    """The clean latents of a chunk, to be read so that later chunks can attend to it.

    Attributes:
        component: The expert.
        latents_1CTHW: The clean latents.
        contexts: Prompts, by branch.
        windows: What the chunk attends to besides itself, by branch.
        time: Timestep at which clean chunks are read.
        first_frame: Position of its first frame.
        is_exact: Whether the reference's order of operations is kept.
    """

    component: str
    latents_1CTHW: torch.Tensor
    contexts: Mapping[str, TextContext]
    windows: Mapping[str, Window]
    time: float
    first_frame: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class ChunkKeyValues:
    """Keys and values of some chunks in one expert, by branch, in order."""

    component: str
    contents: Mapping[str, tuple[ChunkContent, ...]]


@dataclass(frozen=True, slots=True)
class ChunkDecodePayload:
    """Latent frames of a chunk to decode.

    Attributes:
        latents_1CTHW: The chunk's clean latents.
        start: First latent frame of this step, in the chunk.
        stop: The latent frame after the last one of this step.
        cache: What the decoder remembers.
        index: Position of the frames among the stream's pieces.
        num_frames_before: Pixel frames decoded before.
        fps: Frames a second.
        is_last: Whether the stream ends with them.
        is_exact: Whether the reference's order of operations is kept.
    """

    latents_1CTHW: torch.Tensor
    start: int
    stop: int
    cache: FeatureCache
    index: int
    num_frames_before: int
    fps: float
    is_last: bool
    is_exact: bool


@dataclass(frozen=True, slots=True)
class ChunkFrames:
    """Decoded frames, uint8, and what the decoder remembers after them."""

    frames_FYXP: torch.Tensor
    cache: FeatureCache


@dataclass(frozen=True, slots=True)
class ChunkOutputs:
    """What the loop hands on.

    Attributes:
        frames: All frames, in pieces, uint8 (F, Y, X, P); none where nobody takes them.
        latents: The clean latents, float32 (1, C, T, H, W); None where nobody takes them.
        behavior: Of a rollout, what its steps recorded.
    """

    frames: tuple[torch.Tensor, ...]
    latents: torch.Tensor | None
    behavior: LoopBehavior | None = None
