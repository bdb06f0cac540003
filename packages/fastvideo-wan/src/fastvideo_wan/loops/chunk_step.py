"""The step body of streams: chunks of different streams are rows of one call, each at its own place in its own video.

Shape letters as in `chunk_state`; R rows: the branches of all streams of the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastvideo_core.errors import NonFiniteError
from fastvideo_core.loop.base import StepContext
from fastvideo_core.loop.behavior import StepBehavior
from fastvideo_core.loop.policies.cfg import COND, BranchRow, combine_rows
from fastvideo_core.loop.policies.conditioning import pad_text
from fastvideo_core.loop.work import StepResult, WorkPlan
from fastvideo_core.request.media.pixels import pixels_to_frames
from fastvideo_wan.loops import text
from fastvideo_wan.loops.chunk_record import record_steps
from fastvideo_wan.loops.chunk_schedule import add_noise, draw_noise, follow_velocity, predict_clean
from fastvideo_wan.loops.chunk_state import (
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
    PromptContext,
    Window,
)
from fastvideo_wan.loops.text import TextPayload, TextRow
from fastvideo_wan.loops.vae_plans import make_media_chunk
from fastvideo_wan.models.attention import AttentionFunction, attend
from fastvideo_wan.models.block import WanBlock
from fastvideo_wan.models.causal import CausalWanTransformer
from fastvideo_wan.models.context import TextContext, split_context, stack_contexts
from fastvideo_wan.models.transformer import BlocksRunner, run_blocks

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance
    from fastvideo_wan.models.vae import WanVAE

__all__ = ["WindowAttention", "chunk_velocities", "prompt_contexts", "run_step"]

Pass = ChunkDenoisePayload | ChunkCommitPayload | ChunkRereadPayload


def run_step(instance: ModelInstance, plans: Sequence[WorkPlan[Any]], ctx: StepContext) -> Sequence[StepResult[Any]]:
    """Run one kind of step for some streams, as rows of one call; exact ones have a call each."""
    payloads: list[Any] = [plan.payload for plan in plans]
    match payloads[0]:
        case TextPayload():
            return text.run_step(instance, plans, ctx)
        case ChunkDecodePayload():
            return _decode(instance.component("vae"), payloads, ctx)
    transformer: CausalWanTransformer = instance.component(payloads[0].component)
    match payloads[0]:
        case ChunkPromptsPayload():
            made = prompt_contexts(transformer, payloads)
            return [StepResult(values, is_finite=_is_finite(values)) for values in made]
        case ChunkDenoisePayload():
            return _denoise(transformer, plans, ctx)
    return [StepResult(values) for values in _read(transformer, payloads, ctx)]


class WindowAttention:
    """Self-attention of chunks to what they have in their windows and to themselves; a `LayerAttention`.

    Rows whose windows are equally full share a call of the kernel.

    Args:
        windows: Of each row.
        backend: What computes attention in place of torch's own.
        is_kept: Whether the chunks' own keys and values are kept, for `contents`.

    Attributes:
        fresh: Keys and values of the chunks themselves in every layer so far, each (R, L, N, K), if they are kept.
    """

    def __init__(
        self, windows: Sequence[Window], backend: AttentionFunction | None = None, *, is_kept: bool = True
    ) -> None:
        self.fresh: list[tuple[Tensor, Tensor]] = []
        self._is_kept = is_kept
        self._windows = windows
        self._backend = backend
        lengths = [sum(content.key_Z1LNK.shape[2] for content in window) for window in windows]
        self._groups = [[row for row, own in enumerate(lengths) if own == length] for length in dict.fromkeys(lengths)]

    def __call__(self, layer: int, query_RLNK: Tensor, key_RLNK: Tensor, value_RLNK: Tensor) -> Tensor:
        """Return the mixed values, (R, L, N, K)."""
        if self._is_kept:
            self.fresh.append((key_RLNK, value_RLNK))
        if len(self._groups) == 1:
            return self._mix(self._groups[0], layer, query_RLNK, key_RLNK, value_RLNK)
        mixed = torch.empty_like(query_RLNK)
        for rows in self._groups:
            mixed[rows] = self._mix(rows, layer, query_RLNK[rows], key_RLNK[rows], value_RLNK[rows])
        return mixed

    def contents(self, row: int) -> ChunkContent:
        """Return what a row's chunk leaves behind, in memory of its own."""
        keys, values = zip(*((key[row : row + 1], value[row : row + 1]) for key, value in self.fresh), strict=True)
        return ChunkContent(torch.stack(keys), torch.stack(values))

    def _mix(self, rows: Sequence[int], layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self._windows[rows[0]]:
            windows = [self._windows[row] for row in rows]
            key = _joined([[content.key_Z1LNK[layer] for content in window] for window in windows], key)
            value = _joined([[content.value_Z1LNK[layer] for content in window] for window in windows], value)
        if self._backend is not None:
            return self._backend(query, key, value)
        return attend(query, key, value).view_as(query)


def _joined(pages: Sequence[Sequence[Tensor]], own_RLNK: Tensor) -> Tensor:
    """Return the pages of rows whose windows are equally full, and what is their own behind them, copied once."""
    rows = [[*past, own_RLNK[row : row + 1]] for row, past in enumerate(pages)]
    if len(rows) == 1 or torch.is_grad_enabled():
        return torch.cat([torch.cat(row, dim=1) for row in rows]) if len(rows) > 1 else torch.cat(rows[0], dim=1)
    num_tokens = sum(page.shape[1] for page in rows[0])
    joined = own_RLNK.new_empty(len(rows), num_tokens, *own_RLNK.shape[2:])
    for row, parts in enumerate(rows):
        torch.cat(parts, dim=1, out=joined[row : row + 1])
    return joined


def prompt_contexts(transformer: CausalWanTransformer, payloads: Sequence[ChunkPromptsPayload]) -> list[ChunkPrompts]:
    """Return the cross-attention keys and values of prompts; those of exact requests are made one by one."""
    rows = [(payload, branch) for payload in payloads for branch in payload.prompts]
    texts = [_text(transformer, payload.prompts[branch]) for payload, branch in rows]
    if payloads[0].is_exact:
        made = [transformer.prepare_context(one, exact=True) for one in texts]
    else:
        num_tokens = max(payload.num_tokens for payload in payloads)
        made = split_context(transformer.prepare_context(torch.cat(texts), num_tokens=num_tokens), [1] * len(rows))
    found: list[dict[str, PromptContext]] = [{} for _ in payloads]
    places = [index for index, payload in enumerate(payloads) for _ in payload.prompts]
    for place, (payload, branch), context in zip(places, rows, made, strict=True):
        found[place][branch] = PromptContext(payload.versions[branch], context)
    return [ChunkPrompts(payload.component, one) for payload, one in zip(payloads, found, strict=True)]


def _is_finite(values: ChunkPrompts) -> bool:
    """Tell whether keys and values are finite; a bias is not, where a row has fewer tokens than another."""
    contexts = [own.context for own in values.contexts.values()]
    parts = [part for context in contexts for part in (context.keys_ZBLNK, context.values_ZBLNK)]
    return bool(torch.stack([torch.isfinite(part).all() for part in parts]).all())


def _text(transformer: CausalWanTransformer, row: TextRow) -> Tensor:
    weight = transformer.patch_embedding.weight
    return pad_text(row.embeds_1LE, [row.embeds_1LE.shape[1]], row.length).to(weight.device, weight.dtype)


def _denoise(
    transformer: CausalWanTransformer, plans: Sequence[WorkPlan[ChunkDenoisePayload]], ctx: StepContext
) -> list[StepResult[ChunkLatents]]:
    device = transformer.patch_embedding.weight.device
    payloads = [plan.payload for plan in plans]
    noises = [_noise(payload) for payload in payloads]
    samples = [_sample(payload, noise).to(device) for payload, noise in zip(payloads, noises, strict=True)]
    outputs, _ = _velocities(transformer, payloads, samples, ctx)
    velocities = _guided(payloads, outputs)
    made = [_next(*row) for row in zip(payloads, samples, velocities, noises, strict=True)]
    for latents in made:
        ctx.tap("latents", latents)
    behavior: Sequence[StepBehavior | None] = [None] * len(plans)
    if plans[0].profile == "rollout":
        behavior = record_steps(plans, samples, velocities, made)
    return [
        StepResult(ChunkLatents(latents, noise), is_finite=bool(torch.isfinite(latents).all()), behavior=record)
        for latents, noise, record in zip(made, noises, behavior, strict=True)
    ]


def chunk_velocities(
    transformer: CausalWanTransformer,
    payloads: Sequence[ChunkDenoisePayload],
    ctx: StepContext,
    *,
    blocks_runner: BlocksRunner | None = None,
) -> Sequence[Tensor]:
    """Return the guided velocity of each chunk, (1, C, T, H, W), of samples that are there, on the fast path.

    Args:
        transformer: The expert.
        payloads: Chunks of one shape.
        ctx: Shows what is computed.
        blocks_runner: How to go through the blocks; None goes through them one by one.
    """
    device = transformer.patch_embedding.weight.device
    samples = [_sample(payload, None).to(device) for payload in payloads]
    outputs, _ = _velocities(transformer, payloads, samples, ctx, blocks_runner=blocks_runner or run_blocks)
    return _guided(payloads, outputs)


def _noise(payload: ChunkDenoisePayload) -> Tensor | None:
    """Draw a chunk's noises, (S, 1, C, T, H, W), if this is its first step."""
    if payload.latents_1CTHW is not None:
        return None
    return draw_noise(payload.seed, payload.chunk, payload.num_noises, payload.shape_1CTHW)


def _sample(payload: ChunkDenoisePayload, noise_S1CTHW: Tensor | None) -> Tensor:
    sample = payload.latents_1CTHW if noise_S1CTHW is None else noise_S1CTHW[0]
    assert sample is not None, "a sample is drawn or given"
    return sample


def _next(
    payload: ChunkDenoisePayload, sample_1CTHW: Tensor, velocity_1CTHW: Tensor, noise_S1CTHW: Tensor | None
) -> Tensor:
    """Return the sample at the next noise level."""
    if payload.next_sigma == 0.0:
        return predict_clean(sample_1CTHW, velocity_1CTHW, payload.sigma)
    if not payload.is_renoised:
        return follow_velocity(sample_1CTHW, velocity_1CTHW, payload.sigma, payload.next_sigma)
    fresh = payload.noise_1CTHW if noise_S1CTHW is None else noise_S1CTHW[payload.step_index + 1]
    assert fresh is not None, "the noises of a chunk are drawn by its first step"
    clean = predict_clean(sample_1CTHW, velocity_1CTHW, payload.sigma)
    return add_noise(clean, fresh.to(clean.device), payload.next_sigma)


def _guided(payloads: Sequence[ChunkDenoisePayload], outputs: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
    """Return the guided velocity of each stream, (1, C, T, H, W)."""
    if all(tuple(one) == (COND,) for one in outputs):
        return [one[COND] for one in outputs]
    if payloads[0].is_exact:
        return [
            payload.policy.combine(one, payload.guidance_scale, payload.step_index)
            for payload, one in zip(payloads, outputs, strict=True)
        ]
    rows = [BranchRow(index, branch) for index, one in enumerate(outputs) for branch in one]
    guided = combine_rows(
        [payload.policy for payload in payloads],
        rows,
        torch.cat([output for one in outputs for output in one.values()]),
        [payload.guidance_scale for payload in payloads],
        [payload.step_index for payload in payloads],
    )
    return guided.split(1)


def _read(
    transformer: CausalWanTransformer, payloads: Sequence[ChunkCommitPayload | ChunkRereadPayload], ctx: StepContext
) -> list[ChunkKeyValues]:
    """Return what clean chunks leave behind."""
    device = transformer.patch_embedding.weight.device
    samples = [payload.latents_1CTHW.to(device) for payload in payloads]
    _, contents = _velocities(transformer, payloads, samples, ctx)
    return [
        ChunkKeyValues(
            payload.component,
            {branch: _cut(content, payload, sample.shape[2]) for branch, content in one.items()},
        )
        for payload, sample, one in zip(payloads, samples, contents, strict=True)
    ]


def _cut(
    content: ChunkContent, payload: ChunkCommitPayload | ChunkRereadPayload, num_frames: int
) -> tuple[ChunkContent, ...]:
    """Cut what one pass has left behind into chunks, each with memory of its own."""
    if not isinstance(payload, ChunkRereadPayload):
        return (content,)
    num_tokens = content.key_Z1LNK.shape[2] // num_frames
    sizes = [num_tokens * size for size in payload.sizes]
    pairs = zip(content.key_Z1LNK.split(sizes, dim=2), content.value_Z1LNK.split(sizes, dim=2), strict=True)
    return tuple(ChunkContent(key.clone(), value.clone()) for key, value in pairs)


def _velocities(
    transformer: CausalWanTransformer,
    payloads: Sequence[Pass],
    samples: Sequence[Tensor],
    ctx: StepContext,
    *,
    blocks_runner: BlocksRunner = run_blocks,
) -> tuple[list[dict[str, Tensor]], list[dict[str, ChunkContent]]]:
    """Run one pass of each stream and branch; returns velocities, and what the chunks leave behind, by branch."""
    rows = [(index, branch) for index, payload in enumerate(payloads) for branch in payload.contexts]
    contexts = [payloads[index].contexts[branch] for index, branch in rows]
    windows = [_window(payloads[index], branch) for index, branch in rows]
    latents = torch.cat([samples[index] for index, _ in rows]).to(transformer.patch_embedding.weight.dtype)
    is_kept = not isinstance(payloads[0], ChunkDenoisePayload)
    if payloads[0].is_exact:
        attentions = [WindowAttention([window], None, is_kept=is_kept) for window in windows]
        velocities = torch.cat(
            [
                _exact_row(transformer, latents[[row]], payloads[index], contexts[row], attentions[row])
                for row, (index, _) in enumerate(rows)
            ]
        )
        contents = [attention.contents(0) for attention in attentions] if is_kept else []
    else:
        attention = WindowAttention(windows, _backend(transformer), is_kept=is_kept)
        velocities = transformer.forward_chunk(
            latents,
            torch.tensor([payloads[index].time for index, _ in rows], device=latents.device),
            stack_contexts(contexts),
            attention,
            turns=transformer.chunk_turns(latents, [payloads[index].first_frame for index, _ in rows]),
            blocks_runner=blocks_runner,
        )
        contents = [attention.contents(row) for row in range(len(rows))] if is_kept else []
    ctx.tap("rows.velocity", velocities)
    outputs: list[dict[str, Tensor]] = [{} for _ in payloads]
    left: list[dict[str, ChunkContent]] = [{} for _ in payloads]
    for row, (index, branch) in enumerate(rows):
        outputs[index][branch] = velocities[row : row + 1]
        if contents:
            left[index][branch] = contents[row]
    return outputs, left


def _exact_row(
    transformer: CausalWanTransformer,
    latents_1CTHW: Tensor,
    payload: Pass,
    context: TextContext,
    attention: WindowAttention,
) -> Tensor:
    """Return the velocity of one row in the reference's order of operations, with a timestep for each frame."""
    num_frames = latents_1CTHW.shape[2] // transformer.config.patch_size[0]
    times = torch.full((1, num_frames), payload.time, device=latents_1CTHW.device)
    velocity: Tensor = transformer(
        latents_1CTHW, times, context, exact=True, first_frame=payload.first_frame, attention=attention
    )
    return velocity


def _window(payload: Pass, branch: str) -> Window:
    return payload.sinks[branch] if isinstance(payload, ChunkRereadPayload) else payload.windows[branch]


def _backend(transformer: CausalWanTransformer) -> AttentionFunction | None:
    block = transformer.blocks[0]
    assert isinstance(block, WanBlock)
    return block.attn1.backend


def _decode(vae: WanVAE, payloads: Sequence[ChunkDecodePayload], ctx: StepContext) -> list[StepResult[ChunkFrames]]:
    if payloads[0].is_exact:
        decoded = [
            vae.decode_frames(_latents(vae, payload), payload.cache, is_exact=True, span=(payload.start, payload.stop))
            for payload in payloads
        ]
    else:
        decoded = vae.decode_many(
            [_latents(vae, payload)[:, :, payload.start : payload.stop] for payload in payloads],
            [payload.cache for payload in payloads],
        )
    return [
        _finish(payload, pixels, ChunkFrames(torch.empty(0, dtype=torch.uint8), cache), ctx)
        for payload, (pixels, cache) in zip(payloads, decoded, strict=True)
    ]


def _latents(vae: WanVAE, payload: ChunkDecodePayload) -> Tensor:
    weight = vae.post_quant_conv.weight
    return vae.denormalize(payload.latents_1CTHW.to(weight.device, weight.dtype))


def _finish(
    payload: ChunkDecodePayload, pixels_1PFYX: Tensor, nothing: ChunkFrames, ctx: StepContext
) -> StepResult[ChunkFrames]:
    """Turn frames into bytes and a piece of the stream."""
    try:
        frames = torch.from_numpy(pixels_to_frames(pixels_1PFYX[0]))
    except NonFiniteError:
        # The runtime ends the request instead, and says where.
        return StepResult(nothing, is_finite=False)
    ctx.tap("pixels", pixels_1PFYX)
    piece = make_media_chunk(
        frames,
        index=payload.index,
        num_frames_before=payload.num_frames_before,
        fps=payload.fps,
        is_final=payload.is_last,
    )
    return StepResult(ChunkFrames(frames, nothing.cache), is_finite=True, chunks=(piece,))
