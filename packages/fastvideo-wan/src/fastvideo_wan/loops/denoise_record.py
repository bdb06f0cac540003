"""What the rollout profile records of denoise steps, and the prediction that training makes of it.

Shape letters: B rows; C channels; T, H, W latent frames, rows, columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.behavior import PredictQuery, StepBehavior
from fastvideo_core.loop.samplers import Sampler, SamplerState, Schedule, get_sampler
from fastvideo_core.loop.work import WorkPlan
from fastvideo_wan.loops.denoise import ContextPayload, DenoisePayload, DenoiseValues, RequestContext
from fastvideo_wan.loops.guidance import Guidance, guidance_of
from fastvideo_wan.loops.text import EncodedText, text_bucket
from fastvideo_wan.models.transformer import WanTransformer

__all__ = ["predict", "record_steps"]


def record_steps(
    plans: Sequence[WorkPlan[Any]],
    velocities_1CTHW: Sequence[Tensor],
    values: Sequence[DenoiseValues],
    samplers: Mapping[str, Sampler],
) -> list[StepBehavior]:
    """Return what there is to record of steps that have been made; numbers go to the host in one copy."""
    log_probs = _log_probs(plans, velocities_1CTHW, values, samplers)
    return [
        StepBehavior(
            step_index=plan.payload.sampler_step,
            component=plan.payload.component,
            branches=plan.payload.branches,
            guidance_scale=plan.payload.guidance_scale,
            sample_1CTHW=plan.payload.latents_1CTHW,
            prediction_1CTHW=velocity,
            next_1CTHW=value.latents_1CTHW,
            log_prob=log_prob,
            weights_version=plan.batch_key.weights_version,
        )
        for plan, velocity, value, log_prob in zip(plans, velocities_1CTHW, values, log_probs, strict=True)
    ]


def _log_probs(
    plans: Sequence[WorkPlan[Any]],
    velocities_1CTHW: Sequence[Tensor],
    values: Sequence[DenoiseValues],
    samplers: Mapping[str, Sampler],
) -> list[float | None]:
    found: dict[int, Tensor] = {}
    for index, (plan, velocity, value) in enumerate(zip(plans, velocities_1CTHW, values, strict=True)):
        payload: DenoisePayload = plan.payload
        density = get_sampler(payload.schedule.sampler, samplers).log_prob
        if density is not None:
            sample = payload.latents_1CTHW.to(velocity.device)
            one = density(payload.schedule, velocity, sample, value.latents_1CTHW, payload.sampler_step)
            if one is not None:
                found[index] = one
    numbers = torch.cat(list(found.values())).tolist() if found else []
    by_index: dict[int, float] = dict(zip(found, numbers, strict=True))
    return [by_index.get(index) for index in range(len(plans))]


@dataclass(frozen=True, slots=True)
class _NoContext:
    """A step's context where no runtime is: nobody looks, and the blocks run as they are told."""

    blocks_runner: Callable[..., Any] | None = None
    is_tapped: bool = False

    def tap(self, name: str, value: Tensor) -> None:
        """Show nobody."""


def predict(
    spec: LoopSpec,
    modules: Mapping[str, Any],
    queries: Sequence[PredictQuery],
    *,
    blocks_runner: Callable[..., Any] | None = None,
) -> Tensor:
    """Return the (guided) velocities of queries; see `fastvideo_core.loop.behavior.Predict`.

    The rows are made by the code of the fast step body. A prompt's keys and values are computed once a call, however
    many queries have it.

    Raises:
        InputError: A query has an image's condition, or queries are of different experts.
    """
    from fastvideo_wan.loops.denoise_step import batched_velocity

    for port in ("condition", "image_embeds"):
        if any(query.inputs.get(port) is not None for query in queries):
            raise InputError("there is no prediction for training with it", field=port, value="given", allowed="none")
    guidances = [_guidance(spec, query) for query in queries]
    routed = {
        guide.experts.route(query.timestep, query.step_index) for guide, query in zip(guidances, queries, strict=True)
    }
    components = {expert.component for expert in routed}
    if len(components) != 1:
        raise InputError("one call predicts with one expert", field="timestep", value=sorted(components), allowed="one")
    (component,) = components
    transformer: WanTransformer = modules[component]
    contexts = _contexts(transformer, component, queries, guidances)
    payloads = [
        _payload(query, guide, component, contexts[_context_key(query, guide)])
        for query, guide in zip(queries, guidances, strict=True)
    ]
    return batched_velocity(transformer, payloads, _NoContext(blocks_runner))


def _guidance(spec: LoopSpec, query: PredictQuery) -> Guidance:
    kind = str(spec.options.get("guidance", "batched"))
    scale = query.guidance_scale
    if scale is None and kind != "none":
        scale = 1.0
    return guidance_of(spec.options, {} if scale is None or kind == "none" else {"guidance_scale": scale})


def _context_key(query: PredictQuery, guide: Guidance) -> tuple[int, tuple[str, ...]]:
    return id(query.inputs["text"]), guide.branches


def _contexts(
    transformer: WanTransformer, component: str, queries: Sequence[PredictQuery], guidances: Sequence[Guidance]
) -> dict[tuple[int, tuple[str, ...]], RequestContext]:
    from fastvideo_wan.loops.denoise_step import batched_contexts

    rotary = transformer.rotary(queries[0].sample_1CTHW)
    wanted = {_context_key(query, guide): query for query, guide in zip(queries, guidances, strict=True)}
    contexts = {}
    for key, query in wanted.items():
        payload = _context_payload(component, query, key[1])
        ((prompts),) = batched_contexts(transformer, [payload])
        contexts[key] = RequestContext(prompts, rotary)
    return contexts


def _context_payload(component: str, query: PredictQuery, branches: tuple[str, ...]) -> ContextPayload:
    text: EncodedText = query.inputs["text"]
    rows = [text.rows[branch] for branch in branches]
    return ContextPayload(
        component=component,
        latents_1CTHW=query.sample_1CTHW,
        text=text,
        branches=branches,
        num_tokens=max(text_bucket(row.embeds_1LE.shape[1] + 1, row.length) for row in rows),
        image_embeds_1ME=None,
        is_exact=False,
    )


def _payload(query: PredictQuery, guide: Guidance, component: str, context: RequestContext) -> DenoisePayload:
    scale = guide.experts.route(query.timestep, query.step_index).guidance_scale
    return DenoisePayload(
        component=component,
        latents_1CTHW=query.sample_1CTHW,
        context=context,
        schedule=_one_level(query.timestep),
        sampler=SamplerState(),
        sampler_step=0,
        policy=cast("Any", guide.policy),
        branches=guide.branches,
        guidance_scale=scale,
        noise_1CTHW=None,
        condition_1CTHW=None,
        num_known=0,
        expand_timesteps=False,
        is_last=False,
        is_exact=False,
    )


def _one_level(timestep: float) -> Schedule:
    """Return a schedule that knows one timestep: all that a prediction takes of one."""
    times = torch.tensor([timestep])
    return Schedule("", times, times, (timestep,), (timestep,), 1000, 1.0, 1, 0, ())
