"""A stream chunk by chunk as a loop: what each chunk leaves behind is a slab, which the chunks after it look at.

A chunk is encoding a prompt if there is a new one, recaching the window under it, the denoising steps, the commit pass
that alone leaves a valid slab, and decoding. Each of them is a step.

Shape letters: B rows; C latent channels; T, H, W latent frames of a chunk, rows, columns; E text width; S noises of a
chunk, one a step; F, Y, X pixel frames, rows, columns; P pixel channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fastvideo_core.cache.slabs import SlabKey, SlabTable
from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import LoopContext, LoopEstimate, LoopRequest, LoopResult, ModelView
from fastvideo_core.loop.chunks import PushAction, PushText
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import Done, EmitSpec, ShapeSignature, StepResult, Wait, WorkKind, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_testing.tiny.denoise import shifted_sigmas
from fastvideo_testing.tiny.plans import make_plan

__all__ = [
    "CACHE",
    "CHUNK_FRAMES",
    "NUM_RECENT",
    "NUM_SINK",
    "STREAM",
    "CausalLoop",
    "CausalOutputs",
    "CausalState",
    "CommitPayload",
    "DecodePayload",
    "DenoisePayload",
    "EncodePayload",
    "EncodeValues",
    "FrameValues",
    "LatentValues",
    "RecachePayload",
    "SlabValues",
    "estimate",
]

CACHE = "chunk_kv"
STREAM = "video"
CHUNK_FRAMES = 2
"""Latent frames of a chunk."""
NUM_SINK = 1
NUM_RECENT = 2
"""Slabs that a chunk looks at: those of the first chunks, and the latest."""


@dataclass(slots=True)
class CausalState(LoopState):
    """State of a stream. But for the frames of a request that is no session's, nothing in it grows.

    Attributes:
        embeds_1E: The encoded prompt.
        prompt_version: How many prompts there were before it.
        pending_ids: Tokens of a prompt that the next chunk begins with; None if there is none.
        action: What the actions add to the noise level's condition.
        seed: Decides the noise, with the number of the chunk.
        sigmas: Noise levels of a chunk's steps, from one to zero.
        shape: Of a chunk's latents, (1, C, T, H, W).
        fps: Frames a second.
        num_chunks: Chunks after which the stream ends; None if never.
        scope: What cancels it.
        is_exact: Whether requests are computed one by one.
        is_kept: Whether decoded frames are kept, for an artifact.
        table: Slabs of past chunks.
        clean: Latents of the chunks whose slabs are in the table, by chunk.
        chunk: The chunk in progress.
        stage: What comes next; `begin` is between two chunks.
        step_index: The denoising step that comes next.
        latents_1CTHW: The chunk in progress.
        noise_S1CTHW: Its noises.
        before_1CHW: The latent frame that was decoded last.
        num_frames: Pixel frames decoded so far.
        frames_FYXP: The frames, where they are kept.
    """

    embeds_1E: torch.Tensor
    prompt_version: int
    pending_ids: tuple[int, ...] | None
    action: float
    seed: int
    sigmas: tuple[float, ...]
    shape: tuple[int, ...]
    fps: float
    num_chunks: int | None
    scope: CancelScope
    is_exact: bool
    is_kept: bool
    table: SlabTable
    clean: dict[int, torch.Tensor] = field(default_factory=dict)
    chunk: int = 0
    stage: str = "begin"
    step_index: int = 0
    latents_1CTHW: torch.Tensor | None = None
    noise_S1CTHW: torch.Tensor | None = None
    before_1CHW: torch.Tensor | None = None
    num_frames: int = 0
    frames_FYXP: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class EncodePayload:
    """A new prompt."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EncodeValues:
    """The encoded prompt."""

    embeds_1E: torch.Tensor


@dataclass(frozen=True, slots=True)
class RecachePayload:
    """The clean latents of the window, by chunk, under a new prompt."""

    clean: Mapping[int, torch.Tensor]
    embeds_1E: torch.Tensor
    is_exact: bool


@dataclass(frozen=True, slots=True)
class SlabValues:
    """Content of slabs, by chunk."""

    content: Mapping[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class DenoisePayload:
    """One denoising step of a chunk.

    Attributes:
        latents_1CTHW: The sample; None before the first step, which draws the noise.
        noise_1CTHW: What is added after the step; None before the first step, which draws it.
        embeds_1E: The encoded prompt.
        window: Content of the slabs that the chunk looks at, oldest first.
        sigma: Noise level of the sample.
        next_sigma: Noise level after the step.
        seed: Of the stream.
        chunk: Number of the chunk.
        num_noises: Noises of a chunk.
        shape: Of its latents.
        action: What the actions add.
        is_exact: Whether requests are computed one by one.
    """

    latents_1CTHW: torch.Tensor | None
    noise_1CTHW: torch.Tensor | None
    embeds_1E: torch.Tensor
    window: tuple[torch.Tensor, ...]
    sigma: float
    next_sigma: float
    seed: int
    chunk: int
    num_noises: int
    shape: tuple[int, ...]
    action: float
    is_exact: bool


@dataclass(frozen=True, slots=True)
class LatentValues:
    """The sample after a step, and from the first step the chunk's noises."""

    latents_1CTHW: torch.Tensor
    noise_S1CTHW: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class CommitPayload:
    """The clean latents of the chunk."""

    latents_1CTHW: torch.Tensor
    embeds_1E: torch.Tensor
    chunk: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class DecodePayload:
    """The clean latents of the chunk, and what the decoder remembers."""

    latents_1CTHW: torch.Tensor
    before_1CHW: torch.Tensor | None
    chunk: int
    num_frames_before: int
    fps: float
    is_last: bool
    is_exact: bool


@dataclass(frozen=True, slots=True)
class FrameValues:
    """The decoded frames, uint8, and what the decoder remembers."""

    frames_FYXP: torch.Tensor
    before_1CHW: torch.Tensor


@dataclass(frozen=True, slots=True)
class CausalOutputs:
    """What the loop hands on: all frames, in chunks."""

    frames: tuple[torch.Tensor, ...]


class CausalLoop:
    """Makes a stream."""

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> CausalState:
        """Fix the schedule; no noise is drawn before its chunk."""
        parameters, vae = request.parameters, self._model.config("vae")
        height, width = parameters["height"] // vae.spatial_factor, parameters["width"] // vae.spatial_factor
        return CausalState(
            embeds_1E=request.inputs["embeds"][0],
            prompt_version=0,
            pending_ids=None,
            action=0.0,
            seed=int(parameters["seed"]),
            sigmas=shifted_sigmas(parameters["num_inference_steps"], 1.0),
            shape=(1, vae.latent_channels, CHUNK_FRAMES, height, width),
            fps=float(parameters["fps"]),
            num_chunks=None if request.is_session else int(parameters["num_chunks"]),
            scope=request.cancel_scope,
            is_exact=request.is_exact,
            is_kept=not request.is_session,
            table=SlabTable.of(ctx.slab_pool(CACHE), is_training=request.profile == "train"),
        )

    def boundary(self, state: CausalState) -> int | None:
        """Between two chunks, return the next one's number."""
        return state.chunk if state.stage == "begin" else None

    def next(self, state: CausalState) -> WorkPlan[Any] | Wait | Done:
        """Describe the next step of the chunk."""
        stage = state.stage
        if stage == "begin":
            if state.num_chunks is not None and state.chunk >= state.num_chunks:
                return Done()
            stage = "denoise" if state.pending_ids is None else "encode"
        match stage:
            case "encode":
                assert state.pending_ids is not None, "only a new prompt is encoded"
                return self._plan(state, "encode", EncodePayload(state.pending_ids))
            case "recache":
                return self._plan(state, "recache", RecachePayload(dict(state.clean), state.embeds_1E, state.is_exact))
            case "denoise":
                return self._plan(state, "denoise", self._denoise(state))
            case "commit":
                clean = _there(state.latents_1CTHW)
                return self._plan(state, "commit", CommitPayload(clean, state.embeds_1E, state.chunk, state.is_exact))
            case _:
                return self._plan(state, "decode", self._decode(state))

    def advance(self, state: CausalState, result: StepResult[Any]) -> CausalState:
        """Fold a step in."""
        match result.values:
            case EncodeValues(embeds_1E):
                state.embeds_1E, state.pending_ids = embeds_1E, None
                state.prompt_version += 1
                state.stage = "recache" if state.clean else "denoise"
            case SlabValues(content) if state.stage == "recache":
                self._recache(state, content)
            case SlabValues(content):
                self._commit(state, content[state.chunk])
            case LatentValues():
                self._denoised(state, result.values)
            case FrameValues():
                self._decoded(state, result.values)
        return state

    def apply(self, state: CausalState, event: Any) -> CausalState:
        """Take a prompt, for the next chunk, or one action, for the next step.

        Raises:
            InputError: It is something else.
        """
        match event:
            case PushText(text):
                return replace(state, pending_ids=tuple(self._model.component("tokenizer").encode(text)))
            case PushAction(values) if values and len(values[0]) == 1:
                return replace(state, action=values[-1][0])
            case PushAction():
                raise InputError("not an action", field="values", value=event.values, allowed="rows of one number")
        raise InputError("no such event", field="event", value=type(event).__name__, allowed="text, action")

    def finalize(self, state: CausalState) -> LoopResult:
        """Hand the frames on."""
        return LoopResult({"frames": state.frames_FYXP})

    def _denoise(self, state: CausalState) -> DenoisePayload:
        index = state.step_index if state.stage == "denoise" else 0
        noise = None if index == 0 else _there(state.noise_S1CTHW)[index]
        return DenoisePayload(
            latents_1CTHW=None if index == 0 else state.latents_1CTHW,
            noise_1CTHW=noise,
            embeds_1E=state.embeds_1E,
            window=tuple(slab.tensors["k"] for slab in state.table.valid()),
            sigma=state.sigmas[index],
            next_sigma=state.sigmas[index + 1],
            seed=state.seed,
            chunk=state.chunk,
            num_noises=len(state.sigmas) - 1,
            shape=state.shape,
            action=state.action,
            is_exact=state.is_exact,
        )

    def _decode(self, state: CausalState) -> DecodePayload:
        return DecodePayload(
            latents_1CTHW=_there(state.latents_1CTHW),
            before_1CHW=state.before_1CHW,
            chunk=state.chunk,
            num_frames_before=state.num_frames,
            fps=state.fps,
            is_last=state.num_chunks is not None and state.chunk + 1 == state.num_chunks,
            is_exact=state.is_exact,
        )

    def _denoised(self, state: CausalState, values: LatentValues) -> None:
        index = state.step_index if state.stage == "denoise" else 0
        if index == 0:
            state.table.reserve(SlabKey(prompt_version=state.prompt_version), state.chunk)
            state.noise_S1CTHW = values.noise_S1CTHW
        state.latents_1CTHW = values.latents_1CTHW
        state.step_index = index + 1
        state.stage = "denoise" if state.step_index < len(state.sigmas) - 1 else "commit"

    def _commit(self, state: CausalState, content: torch.Tensor) -> None:
        state.table.commit(state.table.reserved(), {"k": content})
        state.table.slide(num_sink=NUM_SINK, num_recent=NUM_RECENT)
        kept = {slab.chunk for slab in state.table.valid()}
        state.clean = {
            chunk: latents for chunk, latents in {**state.clean, state.chunk: _there(state.latents_1CTHW)}.items()
            if chunk in kept
        }  # fmt: skip
        state.noise_S1CTHW, state.stage = None, "decode"

    def _recache(self, state: CausalState, content: Mapping[int, torch.Tensor]) -> None:
        key = SlabKey(prompt_version=state.prompt_version)
        for slab in state.table.valid():
            if slab.chunk >= NUM_SINK:
                state.table.replace(slab, key, {"k": content[slab.chunk]})
        state.stage = "denoise"
        state.step_index = 0

    def _decoded(self, state: CausalState, values: FrameValues) -> None:
        state.before_1CHW = values.before_1CHW
        state.num_frames += len(values.frames_FYXP)
        if state.is_kept:
            state.frames_FYXP = (*state.frames_FYXP, values.frames_FYXP)
        state.latents_1CTHW, state.step_index, state.stage = None, 0, "begin"
        state.chunk += 1

    def _plan(self, state: CausalState, kind: str, payload: Any) -> WorkPlan[Any]:
        _, _, frames, rows, columns = state.shape
        component = {"encode": "text_encoder", "decode": "vae"}.get(kind, "transformer")
        is_first = kind == "decode" and state.chunk == 0
        plan = make_plan(
            self._spec,
            self._model,
            payload,
            component=component,
            kind=_KINDS[kind],
            shape=ShapeSignature.of(frames=frames, rows=rows, columns=columns, first=int(is_first)),
            flops=_FLOPS[kind] * frames * rows * columns,
            scope=state.scope,
            step_index=state.step_index,
            num_steps=len(state.sigmas) + 1,
            is_exact=state.is_exact,
            emits=(EmitSpec(STREAM, "media"),) if kind == "decode" else (),
        )
        return replace(plan, batch_key=plan.batch_key._replace(loop_kind=f"{self._spec.loop_id}.{kind}"))


_KINDS = {
    "encode": WorkKind.ENCODER_CHUNK,
    "recache": WorkKind.CHUNK_STEP,
    "denoise": WorkKind.CHUNK_STEP,
    "commit": WorkKind.CHUNK_STEP,
    "decode": WorkKind.VAE_TILE,
}
_FLOPS = {"encode": 8.0, "recache": 64.0, "denoise": 256.0, "commit": 64.0, "decode": 8192.0}


def estimate(
    spec: LoopSpec,  # noqa: ARG001 - the contract's signature
    model: ModelView,
    parameters: ResolvedParameters,
    inputs: Mapping[str, Any],  # noqa: ARG001
    *,
    exact: bool,  # noqa: ARG001
) -> LoopEstimate:
    """Tell what a stream holds: the window, the chunk in progress, one slab of a recache, and the chunk's beginning."""
    vae = model.config("vae")
    size = vae.latent_channels * CHUNK_FRAMES * (parameters["height"] // 8) * (parameters["width"] // 8) * 4
    return LoopEstimate(
        steps=(),
        resident_bytes=size * (parameters["num_inference_steps"] + 8),
        peak_bytes=64 * size,
        cache_blocks={CACHE: NUM_SINK + 2 * NUM_RECENT + 2},
        chunk_blocks={CACHE: 1},
    )


def _there(value: Any) -> Any:
    assert value is not None, "the stage before has left it"
    return value
