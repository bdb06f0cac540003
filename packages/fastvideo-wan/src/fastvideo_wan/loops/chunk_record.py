"""What the rollout profile records of a stream's noise levels, and the prediction that training makes of them.

A rollout keeps the keys and values of all its chunks, and its record refers to them: training predicts each chunk
after the very past that it was made after. No gradients flow to the past.

Shape letters as in `chunk_state`; R rows: the branches of all queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from fastvideo_core.cache.slabs import SlabTable
from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.behavior import LoopBehavior, Past, PredictQuery, StepBehavior
from fastvideo_core.loop.samplers import Schedule
from fastvideo_core.loop.work import WorkPlan
from fastvideo_wan.loops.chunk_options import rule_of
from fastvideo_wan.loops.chunk_schedule import NUM_TABLE_STEPS, ChunkSchedule
from fastvideo_wan.loops.chunk_state import ChunkContent, ChunkDenoisePayload, ChunkPromptsPayload, ChunkState, Window
from fastvideo_wan.loops.guidance import Guidance, guidance_of
from fastvideo_wan.loops.text import EncodedText, text_bucket
from fastvideo_wan.models.causal import CausalWanTransformer
from fastvideo_wan.models.context import TextContext

__all__ = ["behavior_of", "predict", "record_steps"]


def record_steps(
    plans: Sequence[WorkPlan[Any]],
    samples_1CTHW: Sequence[Tensor],
    velocities_1CTHW: Sequence[Tensor],
    nexts_1CTHW: Sequence[Tensor],
) -> list[StepBehavior]:
    """Return what there is to record of noise levels that have been gone through, but for what they attended to."""
    return [
        StepBehavior(
            step_index=plan.payload.step_index,
            component=plan.payload.component,
            branches=tuple(plan.payload.contexts),
            guidance_scale=plan.payload.guidance_scale,
            sample_1CTHW=sample,
            prediction_1CTHW=velocity,
            next_1CTHW=following,
            log_prob=None,
            weights_version=plan.batch_key.weights_version,
            chunk=plan.payload.chunk,
        )
        for plan, sample, velocity, following in zip(plans, samples_1CTHW, velocities_1CTHW, nexts_1CTHW, strict=True)
    ]


def behavior_of(state: ChunkState) -> LoopBehavior:
    """Return the record of a rollout that has ended, each step with what its chunk attended to."""
    contents = _contents(state.table)
    steps = tuple(
        replace(
            step,
            past={
                branch: tuple(contents[step.component, branch, chunk] for chunk in state.rule.past(step.chunk))
                for branch in step.branches
            },
        )
        for step in state.behavior
    )
    return LoopBehavior(_as_schedule(state.schedule), steps)


def _contents(table: SlabTable) -> dict[tuple[str, str, int], tuple[Tensor, Tensor]]:
    slabs = [slab for slab in (*table.retained, *table.slabs) if slab.is_valid]
    return {(s.key.expert, s.key.branch, s.chunk): (s.tensors["k"], s.tensors["v"]) for s in slabs}


def _as_schedule(levels: ChunkSchedule) -> Schedule:
    """Return the noise levels of a chunk in the form that all records have; no sampler made them."""
    sigmas = (*levels.sigmas, 0.0)
    return Schedule(
        "", torch.tensor(sigmas), torch.tensor(levels.times), sigmas, levels.times, NUM_TABLE_STEPS, 1.0, 1, 0, ()
    )


class _NoContext:
    """A step's context where no runtime is: nobody looks."""

    is_tapped: bool = False
    blocks_runner: Callable[..., Any] | None = None

    def tap(self, name: str, value: Tensor) -> None:
        """Show nobody."""


def predict(
    spec: LoopSpec,
    modules: Mapping[str, Any],
    queries: Sequence[PredictQuery],
    *,
    blocks_runner: Callable[..., Any] | None = None,
) -> Tensor:
    """Return the (guided) velocities of chunks; see `fastvideo_core.loop.behavior.Predict`.

    The rows are made by the step body's own code. Chunks of several places of a video may share a call.

    Raises:
        InputError: A query lacks what its chunk attends to, or queries are of different experts.
    """
    from fastvideo_wan.loops.chunk_step import chunk_velocities

    guidances = [_guidance(spec, query) for query in queries]
    routed = {
        guide.experts.route(query.timestep, query.step_index).component
        for guide, query in zip(guidances, queries, strict=True)
    }
    if len(routed) != 1:
        raise InputError("one call predicts with one expert", field="timestep", value=sorted(routed), allowed="one")
    (component,) = routed
    transformer: CausalWanTransformer = modules[component]
    contexts = _contexts(transformer, component, queries, guidances)
    payloads = [
        _payload(spec, query, guide, component, contexts[_context_key(query, guide)])
        for query, guide in zip(queries, guidances, strict=True)
    ]
    return torch.cat(list(chunk_velocities(transformer, payloads, _NoContext(), blocks_runner=blocks_runner)))


def _guidance(spec: LoopSpec, query: PredictQuery) -> Guidance:
    if str(spec.options.get("guidance", "batched")) == "none":
        return guidance_of(spec.options, {})
    return guidance_of(spec.options, {"guidance_scale": 1.0 if query.guidance_scale is None else query.guidance_scale})


def _context_key(query: PredictQuery, guide: Guidance) -> tuple[int, tuple[str, ...]]:
    return id(query.inputs["text"]), guide.branches


def _contexts(
    transformer: CausalWanTransformer, component: str, queries: Sequence[PredictQuery], guidances: Sequence[Guidance]
) -> dict[tuple[int, tuple[str, ...]], dict[str, TextContext]]:
    """Return the cross-attention keys and values of each prompt, by branch; once a prompt, however many have it."""
    from fastvideo_wan.loops.chunk_step import prompt_contexts

    wanted = {
        _context_key(query, guide): _prompts_payload(component, query.inputs["text"], guide.branches)
        for query, guide in zip(queries, guidances, strict=True)
    }
    made = prompt_contexts(transformer, list(wanted.values()))
    return {
        key: {branch: own.context for branch, own in one.contexts.items()}
        for key, one in zip(wanted, made, strict=True)
    }


def _prompts_payload(component: str, text: EncodedText, branches: Sequence[str]) -> ChunkPromptsPayload:
    rows = {branch: text.rows[branch] for branch in branches}
    num_tokens = max(text_bucket(row.embeds_1LE.shape[1] + 1, row.length) for row in rows.values())
    return ChunkPromptsPayload(component, rows, dict.fromkeys(rows, 0), num_tokens, is_exact=False)


def _payload(
    spec: LoopSpec, query: PredictQuery, guide: Guidance, component: str, contexts: Mapping[str, TextContext]
) -> ChunkDenoisePayload:
    return ChunkDenoisePayload(
        component=component,
        latents_1CTHW=query.sample_1CTHW,
        noise_1CTHW=None,
        contexts=contexts,
        windows=_windows(query.past, query.chunk, guide.branches),
        time=query.timestep,
        sigma=0.0,
        next_sigma=0.0,
        step_index=query.step_index,
        policy=cast("Any", guide.policy),
        guidance_scale=guide.experts.route(query.timestep, query.step_index).guidance_scale,
        is_renoised=False,
        seed=0,
        chunk=query.chunk,
        num_noises=0,
        shape_1CTHW=cast("Any", tuple(query.sample_1CTHW.shape)),
        first_frame=rule_of(spec.options).start(query.chunk),
        is_exact=False,
    )


def _windows(past: Past | None, chunk: int, branches: Sequence[str]) -> dict[str, Window]:
    if chunk and (past is None or any(branch not in past for branch in branches)):
        known = "none" if past is None else ", ".join(past)
        raise InputError(
            "a chunk is predicted after what the rollout recorded before it", field="past", value=known,
            allowed=", ".join(branches),
        )  # fmt: skip
    known_past = past or dict.fromkeys(branches, ())
    return {
        branch: tuple(ChunkContent(key.detach(), value.detach()) for key, value in known_past[branch])
        for branch in branches
    }
