"""The step body of denoising: text laid out, or one sampler step, guidance included, for a batch of requests.

Branches of all requests are rows of one call, sequences of unequal length filled up and masked; exact requests have a
call a branch, as the reference.

Shape letters: B rows; N layers; Z keys and values; S tokens of text; G packed tokens; C width; H heads; D width of a
head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastvideo_core.loop.base import StepContext
from fastvideo_core.loop.samplers import SamplerState, get_sampler
from fastvideo_core.loop.work import StepResult, WorkPlan
from fastvideo_cosmos3.loops.denoise import (
    DenoisePayload,
    DenoiseValues,
    PackedText,
    PackPayload,
    PackValues,
    Sample,
    SamplerStates,
)
from fastvideo_cosmos3.loops.pages import stack_pages
from fastvideo_cosmos3.models.packing import patchify, positions, unpatchify
from fastvideo_cosmos3.models.transformer import Cosmos3Transformer

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["run_step"]


def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[Any]], ctx: StepContext
) -> Sequence[StepResult[PackValues] | StepResult[DenoiseValues]]:
    """Run a batch of plans of one kind."""
    model: Cosmos3Transformer = instance.component("transformer")
    payloads = [plan.payload for plan in plans]
    if isinstance(payloads[0], PackPayload):
        return [StepResult(PackValues(_pack(model, payload)), is_finite=True) for payload in payloads]
    velocities = [_exact(model, payloads[0])] if payloads[0].is_exact else _batched(model, payloads)
    values = [_sampler_step(*one) for one in zip(payloads, velocities, strict=True)]
    finite = torch.stack([_is_finite(value.sample) for value in values]).tolist()
    for value in values:
        ctx.tap("latents", value.sample.video_1CTHW)
    return [StepResult(value, is_finite=is_finite) for value, is_finite in zip(values, finite, strict=True)]


def _pack(model: Cosmos3Transformer, payload: PackPayload) -> PackedText:
    text = stack_pages(payload.texts)
    assert text is not None, "a text has its end at least"
    rows = [positions(model.config, payload.layout, pages.next_position) for pages in payload.texts]
    cos, sin = model.rotary(torch.stack(rows, dim=1))
    return PackedText(text, tuple(pages.num_tokens for pages in payload.texts), cos, sin)


def _embed(model: Cosmos3Transformer, payload: DenoisePayload) -> Tensor:
    """Return the packed tokens of a request, (G, C); what is known gets no timestep."""
    layout, sample, time = payload.layout, payload.sample, payload.schedule.timestep_values[payload.sampler_step]
    count = payload.is_exact  # the reference embeds the timestep of every token; it is the same
    video = model.proj_in(patchify(sample.video_1CTHW.to(model.device, model.dtype), layout.patch))
    noisy = _noisy_tokens(payload)
    if len(noisy) == len(video):
        video = video + model.embed_times(time, len(noisy) if count else 1)
    elif len(noisy):
        video = video.index_add(0, noisy.to(model.device), model.embed_times(time, len(noisy)))
    parts = [video]
    if sample.sound_CT is not None:
        # Laid out as in the reference: which kernel multiplies, and so the last bit, may depend on it.
        latents = sample.sound_CT.to(model.device, model.dtype).T.contiguous()
        sound = model.audio_proj_in(latents) + model.audio_modality_embed
        parts.append(sound + model.embed_times(time, layout.sound_frames if count else 1))
    if sample.actions_TK is not None:
        moves = model.action_proj_in(sample.actions_TK.to(model.device, model.dtype), payload.domain)
        moves = moves + model.action_modality_embed
        if layout.has_noisy_actions:
            moves = moves + model.embed_times(time, layout.num_actions if count else 1)
        parts.append(moves)
    return torch.cat(parts)


def _noisy_tokens(payload: DenoisePayload) -> Tensor:
    """Return the places of the video's tokens that are denoised."""
    layout = payload.layout
    frames = torch.tensor(layout.noisy_frames, dtype=torch.long).unsqueeze(1)
    return (frames * layout.patches_a_frame + torch.arange(layout.patches_a_frame)).flatten()


def _velocities(model: Cosmos3Transformer, payload: DenoisePayload, hidden_GC: Tensor) -> Sample:
    """Return the velocities of one branch of a request, float32; zero where something is known."""
    layout = payload.layout
    sound_end = layout.video_tokens + layout.sound_frames
    video = unpatchify(model.proj_out(hidden_GC[_noisy_tokens(payload)]), layout).float()
    sound = moves = None
    if layout.sound_frames:
        sound = model.audio_proj_out(hidden_GC[layout.video_tokens : sound_end]).T.float()
    if layout.num_actions:
        moves = model.action_proj_out(hidden_GC[sound_end : layout.num_tokens], payload.domain).float()
        moves = moves * layout.has_noisy_actions
        moves[:, payload.action_width :] = 0
    return Sample(video, sound, moves)


def _exact(model: Cosmos3Transformer, payload: DenoisePayload) -> Sample:
    """Return the guided velocities of one request, a branch at a time."""
    packed, tokens_1GC = payload.packed, _embed(model, payload).unsqueeze(0)
    branches = []
    for row, length in enumerate(packed.lengths):
        tables = (packed.cos_RGD[row : row + 1], packed.sin_RGD[row : row + 1])
        hidden = model.generate(tokens_1GC, tables, packed.text_NZRSHD[:, :, row : row + 1, :length])
        branches.append(_velocities(model, payload, hidden[0]))
    return _guide(branches, payload.guidance_scale)


def _batched(model: Cosmos3Transformer, payloads: Sequence[DenoisePayload]) -> list[Sample]:
    """Return the guided velocities of several requests, all branches as rows of one call."""
    sizes = [payload.layout.num_tokens for payload in payloads]
    longest = max(sizes)
    tokens = [F.pad(_embed(model, one), (0, 0, 0, longest - size)) for one, size in zip(payloads, sizes, strict=True)]
    rows = [index for index, payload in enumerate(payloads) for _ in payload.packed.lengths]
    text = _stack_text([payload.packed.text_NZRSHD for payload in payloads])
    lengths = [length for payload in payloads for length in payload.packed.lengths]
    hidden_BGC = model.generate(
        torch.stack(tokens)[rows],
        (
            _stack_tables([payload.packed.cos_RGD for payload in payloads], longest),
            _stack_tables([payload.packed.sin_RGD for payload in payloads], longest),
        ),
        text,
        _mask(lengths, [sizes[row] for row in rows], text.shape[3], longest, model.device),
    )
    branches: list[list[Sample]] = [[] for _ in payloads]
    for row, index in enumerate(rows):
        branches[index].append(_velocities(model, payloads[index], hidden_BGC[row]))
    return [_guide(parts, payload.guidance_scale) for parts, payload in zip(branches, payloads, strict=True)]


def _stack_text(texts: Sequence[Tensor]) -> Tensor:
    if len(texts) == 1:
        return texts[0]
    longest = max(text.shape[3] for text in texts)
    return torch.cat([F.pad(text, (0, 0, 0, 0, 0, longest - text.shape[3])) for text in texts], dim=2)


def _stack_tables(tables: Sequence[Tensor], longest: int) -> Tensor:
    if len(tables) == 1:
        return tables[0]
    return torch.cat([F.pad(table, (0, 0, 0, longest - table.shape[1])) for table in tables])


def _mask(lengths: Sequence[int], sizes: Sequence[int], text: int, longest: int, device: torch.device) -> Tensor | None:
    """Return which keys count in each row; None if all do."""
    if min(lengths) == text and min(sizes) == longest:
        return None
    places = torch.arange(text + longest, device=device)
    ends = torch.tensor([lengths, sizes], device=device).unsqueeze(2)
    seen = torch.where(places < text, places < ends[0], places - text < ends[1])
    return seen.view(len(lengths), 1, 1, -1)


def _guide(branches: Sequence[Sample], scale: float) -> Sample:
    """Return the velocities of the prompt, or moved away from those of the negative prompt."""
    if len(branches) == 1:
        return branches[0]
    with_prompt, without = branches

    def mix(one: Tensor | None, other: Tensor | None) -> Tensor | None:
        return None if one is None or other is None else other + scale * (one - other)

    video = mix(with_prompt.video_1CTHW, without.video_1CTHW)
    assert video is not None, "there is always a video"
    return Sample(video, mix(with_prompt.sound_CT, without.sound_CT), mix(with_prompt.actions_TK, without.actions_TK))


def _sampler_step(payload: DenoisePayload, velocity: Sample) -> DenoiseValues:
    sample, states = payload.sample, payload.samplers
    video, video_state = _one_step(payload, states.video, velocity.video_1CTHW, sample.video_1CTHW)
    sound, sound_state = sample.sound_CT, states.sound
    moves, moves_state = sample.actions_TK, states.actions
    if sound is not None and velocity.sound_CT is not None:
        sound, sound_state = _one_step(payload, sound_state, velocity.sound_CT.unsqueeze(0), sound.unsqueeze(0))
        sound = sound.squeeze(0)
    if moves is not None and velocity.actions_TK is not None and payload.layout.has_noisy_actions:
        moves, moves_state = _one_step(payload, moves_state, velocity.actions_TK.unsqueeze(0), moves.unsqueeze(0))
        moves = moves.squeeze(0)
        moves[:, payload.action_width :] = 0
    return DenoiseValues(Sample(video, sound, moves), SamplerStates(video_state, sound_state, moves_state))


def _one_step(
    payload: DenoisePayload, state: SamplerState, velocity: Tensor, sample: Tensor
) -> tuple[Tensor, SamplerState]:
    sampler = get_sampler(payload.schedule.sampler)
    return sampler.step(payload.schedule, state, velocity, sample.to(velocity.device), payload.sampler_step)


def _is_finite(sample: Sample) -> Tensor:
    parts = [part for part in (sample.video_1CTHW, sample.sound_CT, sample.actions_TK) if part is not None]
    return torch.stack([torch.isfinite(part).all() for part in parts]).all()
