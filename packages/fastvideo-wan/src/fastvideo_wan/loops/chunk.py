"""A video chunk by chunk as a loop: each chunk attends to the keys and values that earlier ones have left.

A chunk is: encoding a new prompt and reading the window anew under it, if there is one; the noise levels; decoding,
whose frames leave at once; and one pass over the clean chunk, which alone leaves something valid behind.
Shape letters as in `chunk_state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from fastvideo_core.cache.slabs import SlabKey, SlabTable
from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError, ParameterError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView
from fastvideo_core.loop.chunks import PushText
from fastvideo_core.loop.plans import make_plan
from fastvideo_core.loop.policies.cfg import COND
from fastvideo_core.loop.policies.conditioning import num_latent_frames
from fastvideo_core.loop.work import Done, EmitSpec, ShapeSignature, StepCost, StepResult, WorkKind, WorkPlan
from fastvideo_wan.loops.chunk_costs import chunk_cost, chunk_peak_bytes
from fastvideo_wan.loops.chunk_options import levels_of, rule_of
from fastvideo_wan.loops.chunk_record import behavior_of
from fastvideo_wan.loops.chunk_state import (
    CACHE,
    ChunkCommitPayload,
    ChunkContent,
    ChunkDecodePayload,
    ChunkDenoisePayload,
    ChunkFrames,
    ChunkKeyValues,
    ChunkLatents,
    ChunkPrompts,
    ChunkPromptsPayload,
    ChunkRereadPayload,
    ChunkState,
    Window,
)
from fastvideo_wan.loops.costs import text_cost, text_peak_bytes
from fastvideo_wan.loops.decode import frames_per_step
from fastvideo_wan.loops.denoise import context_needs
from fastvideo_wan.loops.guidance import guidance_of
from fastvideo_wan.loops.text import TextPayload, TextValues, text_bucket, tokenize
from fastvideo_wan.loops.vae_costs import decode_cache_bytes, decode_cost, decode_peak_bytes, decoded_bytes
from fastvideo_wan.loops.vae_plans import STREAM
from fastvideo_wan.models.chunks import ChunkRule
from fastvideo_wan.models.context import TextContext

if TYPE_CHECKING:
    from fastvideo_wan.loops.text import EncodedText

__all__ = ["ChunkRolloutLoop"]


class ChunkRolloutLoop:
    """Makes a stream.

    Args:
        spec: The card's loop. Options: those of `rule_of` and of `guidance_of`; `steps`, before the shift;
            `context_noise`, the timestep at which clean chunks are read; `is_renoised`; `has_reread`; `text_length`;
            `max_step_pixels`, see `DecodeLoop`.
        model: The resident model, with the transformer(s), `vae`, `text_encoder` and `tokenizer`.
    """

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> ChunkState:
        """Fix the schedule; no noise is drawn before its chunk.

        Raises:
            ParameterError: The length is not a whole number of chunks.
        """
        options, parameters = self._spec.options, request.parameters
        guidance = guidance_of(options, parameters, is_exact=request.is_exact)
        text: EncodedText = request.inputs["text"]
        rule = rule_of(options)
        return ChunkState(
            rule=rule,
            schedule=levels_of(options, parameters),
            context_time=float(options.get("context_noise", 0.0)),
            is_renoised=bool(options.get("is_renoised", True)),
            has_reread=bool(options.get("has_reread", True)),
            policy=guidance.policy,  # type: ignore[arg-type]  # the resolver returns one of the union's members
            experts=guidance.experts,
            branches=guidance.branches,
            seed=int(parameters["seed"]),
            shape_1CHW=self._frame_shape(parameters),
            fps=float(parameters["fps"]),
            num_chunks=None if request.is_session else self._num_chunks(rule, parameters, request.inputs),
            scope=request.cancel_scope,
            profile=request.profile,
            is_exact=request.is_exact,
            is_kept=not request.is_session,
            table=SlabTable.of(ctx.slab_pool(CACHE), is_training=request.profile != "serve"),
            prompts=dict(text.rows),
            versions=dict.fromkeys(text.rows, 0),
            given_1CTHW=request.inputs.get("video_latents"),
            # Chunks that are given begin with being decoded, so that what comes after them goes on from there.
            has_frames=request.is_session or request.wants("frames") or "video_latents" in request.inputs,
            has_latents=not request.is_session and request.wants("latents"),
        )

    def boundary(self, state: ChunkState) -> int | None:
        """Between two chunks, return the next one's number."""
        return state.chunk if state.stage == "begin" else None

    def next(self, state: ChunkState) -> WorkPlan[Any] | Done:
        """Describe the next step of the chunk."""
        if state.stage == "begin" and state.num_chunks is not None and state.chunk >= state.num_chunks:
            return Done()
        if state.stage in ("begin", "prepare"):
            return self._prepare(state) or self._start(state)
        if state.stage == "denoise":
            return self._denoise(state)
        return self._decode(state) if state.stage == "decode" else self._commit(state)

    def advance(self, state: ChunkState, result: StepResult[Any]) -> ChunkState:
        """Fold a step in."""
        match result.values:
            case TextValues(row):
                state.prompts = {**state.prompts, COND: row}
                state.versions = {**state.versions, COND: state.versions[COND] + 1}
                state.pending_ids = None
                state.reread = self._experts(state) if state.has_reread and state.clean else ()
                state.stage = "prepare"
            case ChunkPrompts(component, contexts):
                state.contexts = {
                    **state.contexts, component: {**state.contexts.get(component, {}), **contexts}
                }  # fmt: skip
                state.stage = "prepare"
            case ChunkKeyValues() if state.stage == "commit":
                self._committed(state, result.values)
            case ChunkKeyValues():
                self._was_reread(state, result.values)
            case ChunkLatents():
                if result.behavior is not None:
                    state.behavior = (*state.behavior, result.behavior)
                self._denoised(state, result.values)
            case ChunkFrames():
                self._decoded(state, result.values)
        return state

    def apply(self, state: ChunkState, event: Any) -> ChunkState:
        """Take a prompt, for the next chunk.

        Raises:
            InputError: It is something else, or too long.
        """
        if not isinstance(event, PushText):
            raise InputError("no such event", field="event", value=type(event).__name__, allowed="text")
        length = int(self._spec.options["text_length"])
        state.pending_ids = tokenize(self._model.component("tokenizer"), "prompt", event.text, length)
        return state

    def finalize(self, state: ChunkState) -> LoopResult:
        """Hand frames and latents on, and of a rollout what its steps recorded."""
        latents = torch.cat(state.made_1CTHW, dim=2) if state.made_1CTHW else None
        outputs: dict[str, Any] = {"frames": state.frames_FYXP, "latents": latents}
        if state.profile == "rollout":
            outputs["behavior"] = behavior_of(state)
        return LoopResult(outputs)

    def _frame_shape(self, parameters: Any) -> tuple[int, int, int, int]:
        vae = self._model.config("vae")
        rows, columns = (int(parameters[name]) // vae.spatial_factor for name in ("height", "width"))
        return (1, vae.z_dim, rows, columns)

    def _num_chunks(self, rule: ChunkRule, parameters: Any, inputs: Mapping[str, Any]) -> int:
        num_frames, factor = int(parameters["num_frames"]), self._model.config("vae").temporal_factor
        wanted = num_latent_frames(num_frames, factor)
        whole = 1 + max(0, -(-(wanted - rule.num_frames(0)) // rule.chunk_frames))
        given = inputs.get("video_latents")
        num_given = 0 if given is None else given.shape[2]
        if rule.start(whole) == wanted > num_given:
            return whole
        nearest = (max(rule.start(whole), num_given + rule.chunk_frames) - 1) * factor + 1
        least = 1 + (rule.num_frames(0) - 1) * factor
        raise ParameterError(
            "not longer than what the video goes on from" if num_given else "no whole number of chunks",
            field="num_frames",
            value=num_frames,
            allowed=f"{least + (num_given > 0) * (nearest - least)} and multiples of {rule.chunk_frames * factor} more",
            nearest=nearest,
        )

    def _experts(self, state: ChunkState) -> tuple[str, ...]:
        return tuple(dict.fromkeys(expert.component for expert in state.experts.experts))

    def _prepare(self, state: ChunkState) -> WorkPlan[Any] | None:
        """Describe what a prompt has to be done with before the chunk begins; None if there is nothing."""
        if state.pending_ids is not None:
            return self._encode(state, state.pending_ids)
        for expert in self._experts(state):
            known = state.contexts.get(expert, {})
            stale = [b for b in state.branches if b not in known or known[b].version != state.versions[b]]
            if stale:
                return self._prompts(state, expert, stale)
        return self._reread(state, state.reread[0]) if state.reread else None

    def _start(self, state: ChunkState) -> WorkPlan[Any]:
        """Describe the first step of a chunk: decoding where its latents are given."""
        return self._denoise(state) if self._given(state) is None else self._decode(state)

    def _given(self, state: ChunkState) -> torch.Tensor | None:
        """Return the latents of the chunk at hand, if they are given."""
        if state.given_1CTHW is None:
            return None
        first = state.rule.start(state.chunk)
        return state.given_1CTHW[:, :, first : first + state.rule.num_frames(state.chunk)]

    def _encode(self, state: ChunkState, ids: tuple[int, ...]) -> WorkPlan[Any]:
        length, config = int(self._spec.options["text_length"]), self._model.config("text_encoder")
        pad_to = length if state.is_exact else text_bucket(len(ids), length)
        return self._plan(
            state,
            "encode",
            TextPayload(ids, length, pad_to, state.is_exact),
            component="text_encoder",
            kind=WorkKind.ENCODER_CHUNK,
            shape=ShapeSignature.of(tokens=pad_to),
            cost=text_cost(config, pad_to),
            peak_bytes=text_peak_bytes(config, pad_to),
        )

    def _prompts(self, state: ChunkState, expert: str, branches: list[str]) -> WorkPlan[Any]:
        rows = {branch: state.prompts[branch] for branch in branches}
        num_tokens = max(text_bucket(row.embeds_1LE.shape[1] + 1, row.length) for row in rows.values())
        length = next(iter(rows.values())).length
        kept = length if state.is_exact else num_tokens
        needs = context_needs(self._model.config(expert), kept, len(rows), length=length)
        versions = {branch: state.versions[branch] for branch in branches}
        return self._plan(
            state,
            "prompts",
            ChunkPromptsPayload(expert, rows, versions, num_tokens, state.is_exact),
            component=expert,
            kind=WorkKind.ENCODER_CHUNK,
            shape=needs.shape,
            cost=needs.cost,
            peak_bytes=needs.peak_bytes,
            resident_bytes=needs.resident_bytes,
        )

    def _reread(self, state: ChunkState, expert: str) -> WorkPlan[Any]:
        chunks = state.rule.reread(state.chunk)
        sink, branch = state.rule.kept_sink(chunks), COND
        slabs = [slab for slab in state.table.valid(expert, branch) if slab.chunk in sink]
        sizes = tuple(state.rule.num_frames(chunk) for chunk in chunks)
        payload = ChunkRereadPayload(
            component=expert,
            latents_1CTHW=torch.cat([state.clean[chunk] for chunk in chunks], dim=2),
            sizes=sizes,
            first_frame=state.rule.start(chunks.start),
            time=state.context_time,
            contexts={branch: state.contexts[expert][branch].context},
            sinks={branch: tuple(ChunkContent(slab.tensors["k"], slab.tensors["v"]) for slab in slabs)},
            is_exact=state.is_exact,
        )
        past = sum(state.rule.num_frames(chunk) for chunk in sink)
        return self._pass(state, "reread", payload, expert, frames=sum(sizes), past_frames=past, num_rows=1)

    def _denoise(self, state: ChunkState) -> WorkPlan[Any]:
        index = state.step_index if state.stage == "denoise" else 0
        times, sigmas, frames = state.schedule.times, state.schedule.sigmas, state.rule.num_frames(state.chunk)
        expert = state.experts.route(times[index], index)
        _, channels, rows, columns = state.shape_1CHW
        payload = ChunkDenoisePayload(
            component=expert.component,
            latents_1CTHW=None if index == 0 else state.latents_1CTHW,
            noise_1CTHW=_noise_after(state, index),
            contexts=self._contexts(state, expert.component),
            windows=_windows(state, expert.component),
            time=times[index],
            sigma=sigmas[index],
            next_sigma=sigmas[index + 1] if index + 1 < len(sigmas) else 0.0,
            step_index=index,
            policy=state.policy,
            guidance_scale=expert.guidance_scale,
            is_renoised=state.is_renoised,
            seed=state.seed,
            chunk=state.chunk,
            num_noises=len(times) if state.is_renoised else 1,
            shape_1CTHW=(1, channels, frames, rows, columns),
            first_frame=state.rule.start(state.chunk),
            is_exact=state.is_exact,
        )
        return self._pass(state, "denoise", payload, expert.component, frames=frames, past_frames=_past_frames(state))

    def _commit(self, state: ChunkState) -> WorkPlan[Any]:
        expert = next(name for name in self._experts(state) if name not in state.committed)
        latents = _there(state.latents_1CTHW)
        payload = ChunkCommitPayload(
            component=expert,
            latents_1CTHW=latents,
            contexts=self._contexts(state, expert),
            windows=_windows(state, expert),
            time=state.context_time,
            first_frame=state.rule.start(state.chunk),
            is_exact=state.is_exact,
        )
        frames, past = latents.shape[2], _past_frames(state)
        return self._pass(state, "commit", payload, expert, frames=frames, past_frames=past)

    def _decode(self, state: ChunkState) -> WorkPlan[Any]:
        latents = state.latents_1CTHW if state.stage == "decode" else self._given(state)
        vae, latents = self._model.config("vae"), _there(latents)
        size = 1 if state.is_exact else frames_per_step(self._spec, vae, latents.shape)
        stop = min(state.decode_index + size, latents.shape[2])
        is_last = state.num_chunks is not None and state.chunk + 1 == state.num_chunks and stop == latents.shape[2]
        payload = ChunkDecodePayload(
            latents_1CTHW=latents,
            start=state.decode_index,
            stop=stop,
            cache=state.cache,
            index=state.num_pieces,
            num_frames_before=state.num_frames,
            fps=state.fps,
            is_last=is_last,
            is_exact=state.is_exact,
        )
        _, _, _, rows, columns = latents.shape
        first = int(state.cache.is_empty)
        shape = ShapeSignature.of(frames=stop - state.decode_index, rows=rows, columns=columns, first=first)
        return self._plan(
            state,
            "decode",
            payload,
            component="vae",
            kind=WorkKind.VAE_TILE,
            shape=shape,
            cost=decode_cost(vae, dict(shape.dims)),
            peak_bytes=decode_peak_bytes(vae, dict(shape.dims), is_exact=state.is_exact),
            resident_bytes=decode_cache_bytes(vae, dict(shape.dims)) + decoded_bytes(vae, dict(shape.dims)),
            emits=(EmitSpec(STREAM, "media"),),
        )

    def _denoised(self, state: ChunkState, values: ChunkLatents) -> None:
        index = state.step_index if state.stage == "denoise" else 0
        if index == 0:
            self._reserve(state)
            state.noise_S1CTHW = values.noise_S1CTHW
        state.latents_1CTHW = values.latents_1CTHW
        state.step_index = index + 1
        is_clean = state.step_index == len(state.schedule.times)
        if is_clean:
            state.noise_S1CTHW = None
            state.stage = "decode" if state.has_frames else "commit"
        else:
            state.stage = "denoise"

    def _reserve(self, state: ChunkState) -> None:
        for expert in self._experts(state):
            for branch in state.branches:
                state.table.reserve(SlabKey(expert, branch, state.versions[branch]), state.chunk)

    def _decoded(self, state: ChunkState, values: ChunkFrames) -> None:
        if state.stage != "decode":
            self._reserve(state)
            state.latents_1CTHW = self._given(state)
        latents = _there(state.latents_1CTHW)
        state.decode_index += values.cache.frames_done - state.cache.frames_done
        state.cache = values.cache
        state.num_frames += len(values.frames_FYXP)
        state.num_pieces += 1
        if state.is_kept:
            state.frames_FYXP = (*state.frames_FYXP, values.frames_FYXP)
        state.stage = "commit" if state.decode_index == latents.shape[2] else "decode"

    def _committed(self, state: ChunkState, values: ChunkKeyValues) -> None:
        for branch, (content,) in values.contents.items():
            slab = state.table.reserved(values.component, branch)
            state.table.commit(slab, {"k": content.key_Z1LNK, "v": content.value_Z1LNK})
        state.committed = (*state.committed, values.component)
        if len(state.committed) == len(self._experts(state)):
            self._end_chunk(state)

    def _end_chunk(self, state: ChunkState) -> None:
        following = state.chunk + 1
        seen = state.rule.past(following)
        state.table.drop([slab for slab in state.table.slabs if slab.chunk not in seen])
        if state.has_reread:
            clean = {**state.clean, state.chunk: _there(state.latents_1CTHW)}
            needed = state.rule.reread(following)
            state.clean = {chunk: latents for chunk, latents in clean.items() if chunk in needed}
        if state.has_latents:
            state.made_1CTHW = (*state.made_1CTHW, _there(state.latents_1CTHW))
        given = state.given_1CTHW
        if given is not None and state.rule.start(following) >= given.shape[2]:
            state.given_1CTHW = None
        state.latents_1CTHW, state.step_index, state.decode_index, state.committed = None, 0, 0, ()
        state.chunk, state.stage = following, "begin"

    def _was_reread(self, state: ChunkState, values: ChunkKeyValues) -> None:
        chunks = state.rule.reread(state.chunk)
        for branch, contents in values.contents.items():
            key = SlabKey(values.component, branch, state.versions[branch])
            found = dict(zip(chunks, contents, strict=True))
            for slab in state.table.valid(values.component, branch):
                if slab.chunk in found:
                    content = found[slab.chunk]
                    state.table.replace(slab, key, {"k": content.key_Z1LNK, "v": content.value_Z1LNK})
        state.reread = tuple(name for name in state.reread if name != values.component)

    def _contexts(self, state: ChunkState, expert: str) -> dict[str, TextContext]:
        return {branch: state.contexts[expert][branch].context for branch in state.branches}

    def _pass(
        self,
        state: ChunkState,
        step: str,
        payload: Any,
        expert: str,
        *,
        frames: int,
        past_frames: int,
        num_rows: int | None = None,
    ) -> WorkPlan[Any]:
        """Return the plan of one pass of a transformer."""
        _, _, rows, columns = state.shape_1CHW
        config, size = self._model.config(expert), (frames, rows, columns)
        branches = len(state.branches) if num_rows is None else num_rows
        length = next(iter(state.prompts.values())).length
        needs = {"past_frames": past_frames, "num_rows": branches}
        return self._plan(
            state,
            step,
            payload,
            component=expert,
            kind=WorkKind.CHUNK_STEP,
            shape=ShapeSignature.of(frames=frames, rows=rows, columns=columns),
            cost=chunk_cost(config, size, text_tokens=length, **needs),
            peak_bytes=chunk_peak_bytes(config, size, is_exact=state.is_exact, **needs),
        )

    def _plan(
        self,
        state: ChunkState,
        step: str,
        payload: Any,
        *,
        component: str,
        kind: WorkKind,
        shape: ShapeSignature,
        cost: StepCost,
        peak_bytes: int,
        resident_bytes: int = 0,
        emits: tuple[EmitSpec, ...] = (),
    ) -> WorkPlan[Any]:
        return make_plan(
            self._spec,
            self._model,
            state,
            payload,
            component=component,
            kind=kind,
            shape=shape,
            cost=cost,
            step_index=state.step_index,
            num_steps=None,
            peak_bytes=peak_bytes,
            resident_bytes=resident_bytes,
            loop_kind=f"{self._spec.loop_id}.{step}",
            emits=emits,
        )


def _noise_after(state: ChunkState, index: int) -> torch.Tensor | None:
    """Return the noise that leads from a level to the next; the first noise is the sample itself."""
    if index == 0 or not state.is_renoised or index + 1 == len(state.schedule.times):
        return None
    noise: torch.Tensor = _there(state.noise_S1CTHW)[index + 1]
    return noise


def _windows(state: ChunkState, expert: str) -> dict[str, Window]:
    return {
        branch: tuple(ChunkContent(slab.tensors["k"], slab.tensors["v"]) for slab in state.table.valid(expert, branch))
        for branch in state.branches
    }


def _past_frames(state: ChunkState) -> int:
    return sum(state.rule.num_frames(chunk) for chunk in state.rule.past(state.chunk))


def _there(value: Any) -> Any:
    assert value is not None, "the stage before has left it"
    return value
