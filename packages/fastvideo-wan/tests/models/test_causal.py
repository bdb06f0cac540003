"""Chunk by chunk against one masked pass, and both against diffusers' transformer with the mask put into it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from fastvideo_core.errors import ParameterError
from fastvideo_wan.models.causal import CausalWanTransformer
from fastvideo_wan.models.chunk_masks import chunk_mask, spread_mask
from fastvideo_wan.models.chunks import ChunkRule
from fastvideo_wan.models.context import context_row, select_rows, stack_contexts
from fastvideo_wan.models.past import ListedPast

BOUND = 1e-5
NUM_CHUNKS = 5
RULES = (
    ChunkRule(chunk_frames=2, window_frames=10),
    ChunkRule(chunk_frames=2, window_frames=4),
    ChunkRule(chunk_frames=2, window_frames=6, sink_frames=2),
    ChunkRule(chunk_frames=2, window_frames=6, first_frames=1),
)


def relative_error(value, expected):
    return ((value - expected).norm() / expected.norm()).item()


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def causal(pair):
    models = pair("2.1-t2v")
    model = CausalWanTransformer(models.model.config).requires_grad_(False)
    model.load_state_dict(models.model.state_dict())
    return model


def masked_reference(pair, mask_tokens):
    """Return diffusers' transformer whose self-attention sees what the mask allows."""
    from diffusers.models.transformers.transformer_wan import WanAttnProcessor

    class Masked(WanAttnProcessor):
        def __call__(self, attention, hidden, text=None, attention_mask=None, rotary=None):
            return super().__call__(attention, hidden, text, mask_tokens, rotary)

    reference = copy.deepcopy(pair("2.1-t2v").reference)
    for block in reference.blocks:
        block.attn1.set_processor(Masked())
    return reference


def draw(pair, rule, num_rows=1, seed=0):
    """Draw a video, a noise level for each chunk of each row, and these spread over frames."""
    num_frames = sum(rule.frame_sizes(NUM_CHUNKS))
    call = pair("2.1-t2v").draw(num_rows, grid=(num_frames, 2, 3), seed=seed)
    levels = torch.randint(0, 1000, (num_rows, NUM_CHUNKS), generator=torch.Generator().manual_seed(seed))
    times = levels.repeat_interleave(torch.tensor(rule.frame_sizes(NUM_CHUNKS)), dim=1)
    return call, levels, times


def roll(model, rule, latents, levels, context):
    """Go through a video chunk by chunk, each at its noise level, keeping keys and values."""
    past, results = ListedPast(rule), []
    for chunk in range(NUM_CHUNKS):
        first, count = rule.start(chunk), rule.num_frames(chunk)
        part = latents[:, :, first : first + count]
        turns = model.chunk_turns(part, [first] * len(part))
        results.append(model.forward_chunk(part, levels[:, chunk], context, past, turns=turns))
        past.commit()
    return torch.cat(results, dim=2)


@pytest.mark.parametrize("rule", RULES)
def test_one_masked_pass_is_the_references(pair, causal, rule):
    call, _, times = draw(pair, rule)
    mask = spread_mask(chunk_mask(rule, NUM_CHUNKS), rule.frame_sizes(NUM_CHUNKS))
    tokens = mask.repeat_interleave(6, 0).repeat_interleave(6, 1)
    expected = masked_reference(pair, tokens)(
        call.latents, times.repeat_interleave(6, dim=1), call.text, return_dict=False
    )[0]
    got = causal.forward_masked(call.latents, times, causal.prepare_context(call.text), mask)
    assert relative_error(got, expected) < BOUND


@pytest.mark.parametrize("rule", RULES)
def test_rolling_keys_and_values_are_one_pass_under_the_mask(pair, causal, rule):
    call, levels, times = draw(pair, rule, num_rows=2)
    context = causal.prepare_context(call.text)
    mask = spread_mask(chunk_mask(rule, NUM_CHUNKS), rule.frame_sizes(NUM_CHUNKS))
    expected = causal.forward_masked(call.latents, times, context, mask)
    assert relative_error(roll(causal, rule, call.latents, levels, context), expected) < BOUND


def test_a_window_without_its_sink_is_told_apart(pair, causal):
    rule = RULES[2]
    call, levels, times = draw(pair, rule)
    context = causal.prepare_context(call.text)
    mask = spread_mask(chunk_mask(rule, NUM_CHUNKS), rule.frame_sizes(NUM_CHUNKS))
    expected = causal.forward_masked(call.latents, times, context, mask)
    wrong = roll(causal, ChunkRule(2, 6), call.latents, levels, context)
    assert relative_error(wrong, expected) > 100 * BOUND


def test_chunks_at_different_places_share_a_pass(pair, causal):
    """Two videos of one call, one at its first chunk and one at its fourth: each is what it is alone."""
    rule = RULES[0]
    call, levels, _ = draw(pair, rule, num_rows=2, seed=3)
    context = causal.prepare_context(call.text)
    rows = [context_row(context, row) for row in range(2)]
    alone = [roll(causal, rule, call.latents[[r]], levels[[r]], rows[r]) for r in range(2)]
    past = ListedPast(rule)
    for chunk in range(3):
        part = call.latents[[1], :, 2 * chunk : 2 * chunk + 2]
        turns = causal.chunk_turns(part, [2 * chunk])
        causal.forward_chunk(part, levels[[1], chunk], rows[1], past, turns=turns)
        past.commit()
    both = (ListedPast(rule), past)

    def attention(layer, query, key, value):
        return torch.cat([both[r](layer, query[[r]], key[[r]], value[[r]]) for r in range(2)])

    parts = torch.stack([call.latents[0, :, :2], call.latents[1, :, 6:8]])
    times = torch.stack([levels[0, 0], levels[1, 3]])
    got = causal.forward_chunk(parts, times, context, attention, turns=causal.chunk_turns(parts, [0, 6]))
    assert relative_error(got[0], alone[0][0, :, :2]) < BOUND
    assert relative_error(got[1], alone[1][0, :, 6:8]) < BOUND


def test_runs_of_frames_read_their_own_prompts(pair, causal):
    rule = RULES[0]
    call, levels, times = draw(pair, rule, num_rows=2)
    two = causal.prepare_context(call.text)
    contexts = stack_contexts([context_row(two, row) for row in (0, 1, 0, 0, 1)])
    mask = spread_mask(chunk_mask(rule, NUM_CHUNKS), rule.frame_sizes(NUM_CHUNKS))
    got = causal.forward_masked(call.latents[:1], times[:1], contexts, mask)
    chosen = causal.forward_masked(call.latents[:1], times[:1], select_rows(two, torch.tensor([0, 1, 0, 0, 1])), mask)
    assert torch.equal(got, chosen)
    past, expected = ListedPast(rule), []
    for chunk, row in enumerate((0, 1, 0, 0, 1)):
        part = call.latents[:1, :, 2 * chunk : 2 * chunk + 2]
        turns = causal.chunk_turns(part, [2 * chunk])
        prompt = context_row(two, row)
        expected.append(causal.forward_chunk(part, levels[:1, chunk], prompt, past, turns=turns))
        past.commit()
    assert relative_error(got, torch.cat(expected, dim=2)) < BOUND


def test_a_clean_copy_at_the_same_places_is_the_kept_past(pair, causal):
    """Training's form: a clean copy beside a noisy one, each noisy chunk attending to clean ones before it."""
    rule = RULES[2]
    call, levels, times = draw(pair, rule)
    context = causal.prepare_context(call.text)
    noisy = torch.randn(call.latents.shape, generator=torch.Generator().manual_seed(1))
    chunks = chunk_mask(rule, NUM_CHUNKS)
    own, none = torch.eye(NUM_CHUNKS, dtype=torch.bool), torch.zeros(NUM_CHUNKS, NUM_CHUNKS, dtype=torch.bool)
    both = torch.cat([torch.cat([chunks, none], dim=1), torch.cat([chunks & ~own, own], dim=1)])
    num_frames = call.latents.shape[2]
    got = causal.forward_masked(
        torch.cat([call.latents, noisy], dim=2),
        torch.cat([torch.zeros_like(times), times], dim=1),
        context,
        spread_mask(both, rule.frame_sizes(NUM_CHUNKS) * 2),
        positions=[*range(num_frames), *range(num_frames)],
    )[:, :, num_frames:]
    past = ListedPast(rule)
    for chunk in range(NUM_CHUNKS):
        span = slice(2 * chunk, 2 * chunk + 2)
        turns = causal.chunk_turns(call.latents[:, :, span], [2 * chunk])
        expected = causal.forward_chunk(noisy[:, :, span], levels[:, chunk], context, past, turns=turns)
        assert relative_error(got[:, :, span], expected) < BOUND
        causal.forward_chunk(call.latents[:, :, span], levels[:, chunk] * 0, context, past, turns=turns)
        past.commit()


def test_gradients_reach_every_weight_that_a_video_uses(pair, causal):
    rule = RULES[1]
    model = copy.deepcopy(causal).requires_grad_(True)
    call, _, times = draw(pair, rule)
    mask = spread_mask(chunk_mask(rule, NUM_CHUNKS), rule.frame_sizes(NUM_CHUNKS))
    with torch.enable_grad():
        context = model.prepare_context(call.text)
        model.forward_masked(call.latents, times, context, mask).square().sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def test_what_does_not_fit_is_refused(pair, causal):
    rule = RULES[0]
    call, levels, times = draw(pair, rule)
    context = causal.prepare_context(call.text)
    mask = spread_mask(chunk_mask(rule, NUM_CHUNKS), rule.frame_sizes(NUM_CHUNKS))
    with pytest.raises(ParameterError, match="mask"):
        causal.forward_masked(call.latents, times, context, mask[:4, :4])
    with pytest.raises(ParameterError, match="timesteps"):
        causal.forward_masked(call.latents, times[:, :3], context, mask)
    with pytest.raises(ParameterError, match="positions"):
        causal.forward_masked(call.latents, times, context, mask, positions=[0, 1])
    with pytest.raises(ParameterError, match="context"):
        causal.forward_masked(call.latents, times, select_rows(context, torch.tensor([0, 0, 0])), mask)
    part = call.latents[:, :, :2]
    turns = causal.chunk_turns(part, [0])
    with pytest.raises(ParameterError, match="context"):
        two = select_rows(context, torch.tensor([0, 0]))
        causal.forward_chunk(part, levels[:, 0], two, ListedPast(rule), turns=turns)
    with pytest.raises(ParameterError, match="timesteps"):
        causal.forward_chunk(part, levels[0, :5], context, ListedPast(rule), turns=turns)


def test_the_masked_attention_is_the_librarys(causal):
    from fastvideo_wan.models.causal import MaskedAttention

    generator = torch.Generator().manual_seed(0)
    heads = [torch.randn(2, 6, 2, 4, generator=generator) for _ in range(3)]
    mask = torch.tensor([[True, False], [True, True]])
    got = MaskedAttention(mask, 3)(0, *heads)
    first = scaled_dot_product_attention(*(h[:, :3].transpose(1, 2) for h in heads)).transpose(1, 2)
    whole = scaled_dot_product_attention(*(h.transpose(1, 2) for h in heads)).transpose(1, 2)
    assert torch.allclose(got[:, :3], first, atol=1e-6)
    assert torch.allclose(got[:, 3:], whole[:, 3:], atol=1e-6)
