"""Steps of a stream: rows of different streams share a call, each with its own chunk, prompt and window.

Shape letters: B rows; C latent channels; T, H, W latent frames of a chunk, rows, columns; E text width; S noises of a
chunk; P pixel channels, F, Y, X pixel frames, rows, columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fastvideo_core.loop.base import StepContext
from fastvideo_core.loop.work import StepResult, StreamChunk, WorkPlan
from fastvideo_core.request.media.pixels import pixels_to_frames
from fastvideo_testing.tiny.causal import (
    STREAM,
    CommitPayload,
    DecodePayload,
    DenoisePayload,
    EncodePayload,
    EncodeValues,
    FrameValues,
    LatentValues,
    RecachePayload,
    SlabValues,
)

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["run_step"]


def run_step(instance: ModelInstance, plans: Sequence[WorkPlan[Any]], ctx: StepContext) -> Sequence[StepResult[Any]]:
    """Run one kind of step for a batch of streams; exact ones are computed one by one."""
    payloads = [plan.payload for plan in plans]
    match payloads[0]:
        case EncodePayload():
            return [StepResult(EncodeValues(_encode(instance, payload))) for payload in payloads]
        case RecachePayload():
            return [StepResult(SlabValues(_recache(instance, payload))) for payload in payloads]
        case CommitPayload():
            return [StepResult(SlabValues(_commit(instance, payload))) for payload in payloads]
        case DenoisePayload():
            groups = [[payload] for payload in payloads] if payloads[0].is_exact else [payloads]
            return [StepResult(values) for group in groups for values in _denoise(instance, group, ctx)]
    return [_decode(instance.component("vae"), payload) for payload in payloads]


def _encode(instance: ModelInstance, payload: EncodePayload) -> torch.Tensor:
    ids_1L = torch.tensor([payload.token_ids], dtype=torch.long, device=instance.device)
    embeds_1E: torch.Tensor = instance.component("text_encoder")(ids_1L, torch.ones_like(ids_1L))
    return embeds_1E.float()


def _content(instance: ModelInstance, latents_1CTHW: torch.Tensor, embeds_1E: torch.Tensor) -> torch.Tensor:
    """Return what a chunk leaves behind, (1, C): of its latents and of the prompt that it was made under."""
    weight = instance.component("transformer").from_text.weight
    by_prompt = torch.tanh(embeds_1E.to(weight.dtype) @ weight.T)[:, : latents_1CTHW.shape[1]]
    return latents_1CTHW.mean(dim=(2, 3, 4)) + by_prompt.float()


def _recache(instance: ModelInstance, payload: RecachePayload) -> dict[int, torch.Tensor]:
    return {chunk: _content(instance, clean, payload.embeds_1E) for chunk, clean in payload.clean.items()}


def _commit(instance: ModelInstance, payload: CommitPayload) -> dict[int, torch.Tensor]:
    return {payload.chunk: _content(instance, payload.latents_1CTHW, payload.embeds_1E)}


def _denoise(instance: ModelInstance, payloads: Sequence[DenoisePayload], ctx: StepContext) -> list[LatentValues]:
    """Make one step of each stream: predict the clean sample, and go to the next level with noise drawn for it."""
    transformer = instance.component("transformer")
    weight = transformer.to_velocity.weight
    noises = [_noise(payload) if payload.latents_1CTHW is None else None for payload in payloads]
    samples = [
        payload.latents_1CTHW if noise is None else noise[0] for payload, noise in zip(payloads, noises, strict=True)
    ]
    past_BC = torch.cat([_past(payload) for payload in payloads])
    latents_BCTHW = torch.cat([sample for sample in samples if sample is not None]) + past_BC[:, :, None, None, None]
    sigma_B = torch.tensor([payload.sigma + payload.action for payload in payloads], dtype=weight.dtype)
    embeds_BE = torch.cat([payload.embeds_1E for payload in payloads]).to(weight.dtype)
    velocity_BCTHW = transformer(latents_BCTHW.to(weight.dtype), sigma_B, embeds_BE).float()
    ctx.tap("velocity", velocity_BCTHW)
    return [
        _stepped(payload, sample, noise, velocity)
        for payload, sample, noise, velocity in zip(payloads, samples, noises, velocity_BCTHW.split(1), strict=True)
    ]


def _stepped(
    payload: DenoisePayload, sample: torch.Tensor | None, noise_S1CTHW: torch.Tensor | None, velocity: torch.Tensor
) -> LatentValues:
    assert sample is not None, "a sample was drawn or given"
    clean = sample - payload.sigma * velocity
    if payload.next_sigma == 0:
        return LatentValues(clean, noise_S1CTHW)
    # The first noise was the sample itself; each step has the next one.
    fresh = payload.noise_1CTHW if noise_S1CTHW is None else noise_S1CTHW[0]
    assert fresh is not None, "a step's noise was drawn by the first"
    return LatentValues((1 - payload.next_sigma) * clean + payload.next_sigma * fresh, noise_S1CTHW)


def _noise(payload: DenoisePayload) -> torch.Tensor:
    """Draw the noises of a chunk, (S, 1, C, T, H, W), from a generator of its own: the same wherever it is made."""
    generator = torch.Generator("cpu").manual_seed((payload.seed * 1_000_003 + payload.chunk) % (1 << 63))
    return torch.randn((payload.num_noises, *payload.shape), generator=generator)


def _past(payload: DenoisePayload) -> torch.Tensor:
    """Return the mean of the slabs, (1, C), newer ones with more weight; order and number of them matter."""
    past_1C = torch.zeros(1, payload.shape[1])
    for age, content_1C in enumerate(reversed(payload.window)):
        past_1C = past_1C + content_1C / (2.0 + age)
    return past_1C


def _decode(vae: Any, payload: DecodePayload) -> StepResult[FrameValues]:
    weight, before, parts = vae.mix.weight, payload.before_1CHW, []
    for latent_1CHW in payload.latents_1CTHW.unbind(2):
        parts.append(
            vae.decode_frame(latent_1CHW.to(weight.dtype), None if before is None else before.to(weight.dtype))
        )
        before = latent_1CHW
    assert before is not None, "a chunk has frames"
    pixels_PFYX = torch.cat(parts, dim=2)[0]
    if not bool(torch.isfinite(pixels_PFYX).all()):
        return StepResult(FrameValues(torch.empty(0, dtype=torch.uint8), before), is_finite=False)
    frames_FYXP = torch.from_numpy(pixels_to_frames(pixels_PFYX))
    start = payload.num_frames_before
    chunk = StreamChunk(
        stream=STREAM,
        kind="media",
        index=payload.chunk,
        data=frames_FYXP,
        start_s=start / payload.fps,
        end_s=(start + len(frames_FYXP)) / payload.fps,
        is_final=payload.is_last,
    )
    return StepResult(FrameValues(frames_FYXP, before), chunks=(chunk,))
