"""The transformer against diffusers' on checkpoints that diffusers saved."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint as recompute

from fastvideo_core.errors import ParameterError
from fastvideo_wan.models.config import WanTransformerConfig
from fastvideo_wan.models.context import stack_contexts
from fastvideo_wan.models.transformer import WanTransformer

VARIANTS = (
    "2.1-t2v",
    "2.1-i2v",
    "2.1-flf2v",
    "2.2-ti2v-5b",
    "2.2-t2v-a14b",
    "2.2-i2v-a14b",
    "wide-heads",
    "plain-cross-attention",
)
FAST_BOUND = 1e-5


def relative_error(value, expected):
    return ((value - expected).norm() / expected.norm()).item()


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("variant", VARIANTS)
def test_names_and_shapes_are_the_references(pair, variant):
    models = pair(variant)
    ours = {name: tensor.shape for name, tensor in models.model.state_dict().items()}
    assert ours == {name: tensor.shape for name, tensor in models.reference.state_dict().items()}


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_exact_mode_has_the_references_bits(pair, variant, per_token):
    models = pair(variant)
    call = models.draw(per_token=per_token)
    assert torch.equal(models.run(call, exact=True), models.expected(call))


def test_exact_mode_takes_fractional_timesteps(pair):
    models = pair("2.1-t2v")
    call = models.draw()
    call.timesteps = torch.tensor([937.5])
    assert torch.equal(models.run(call, exact=True), models.expected(call))


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_fast_mode_is_within_its_bound(pair, variant, per_token):
    models = pair(variant)
    call = models.draw(2, per_token=per_token)
    expected = models.expected(call)
    assert relative_error(models.run(call), expected) < FAST_BOUND
    with torch.enable_grad():
        assert relative_error(models.run(call), expected) < FAST_BOUND


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("variant", ["2.1-t2v", "2.1-i2v"])
def test_bfloat16_with_the_references_float32_parts(pair, variant, per_token):
    models = pair(variant)
    call = models.draw(per_token=per_token)
    full = models.expected(call)
    reference, model = copy.deepcopy(models.reference), copy.deepcopy(models.model)
    kept = [name for name in reference._keep_in_fp32_modules if name != "rope"]
    for name, parameter in [*reference.named_parameters(), *model.named_parameters()]:
        if not set(kept) & set(name.split(".")):
            parameter.data = parameter.data.bfloat16()
    call.latents, call.text = call.latents.bfloat16(), call.text.bfloat16()
    image = call.image = None if call.image is None else call.image.bfloat16()
    expected = reference(call.latents, call.timesteps, call.text, image, return_dict=False)[0]
    context = model.prepare_context(call.text, image, exact=True)
    assert torch.equal(model(call.latents, call.timesteps, context, exact=True), expected)
    fast = model(call.latents, call.timesteps, model.prepare_context(call.text, image))
    assert fast.dtype == torch.bfloat16
    assert relative_error(fast.float(), full) < 1.5 * relative_error(expected.float(), full)


def test_fast_mode_works_with_all_parts_in_bfloat16(pair):
    models = pair("wide-heads")
    call = models.draw(2)
    full = models.expected(call)
    model = copy.deepcopy(models.model).bfloat16()
    context = model.prepare_context(call.text.bfloat16())
    result = model(call.latents.bfloat16(), call.timesteps, context)
    assert relative_error(result.float(), full) < 0.05


@pytest.mark.parametrize("variant", ["2.1-t2v", "2.1-i2v", "wide-heads"])
def test_rows_of_a_stack_do_not_meet(pair, variant):
    models = pair(variant)
    call = models.draw(4)
    images = [None] * 4 if call.image is None else call.image.split(1)
    contexts = [models.model.prepare_context(*row) for row in zip(call.text.split(1), images, strict=True)]
    assert len({context.keys_ZBLNK.shape[2] for context in contexts}) > 1
    stacked = models.model(call.latents, call.timesteps, stack_contexts(contexts))
    assert relative_error(stacked, models.expected(call)) < FAST_BOUND
    for row, context in enumerate(contexts):
        alone = models.model(call.latents[row : row + 1], call.timesteps[row : row + 1], context)
        assert relative_error(stacked[row : row + 1], alone) < FAST_BOUND


@pytest.mark.parametrize("variant", ["2.1-t2v", "wide-heads"])
def test_stacked_exact_contexts_have_the_bits_of_one_batch(pair, variant):
    models = pair(variant)
    call = models.draw(2)
    parts = [models.model.prepare_context(text, exact=True) for text in call.text.split(1)]
    whole = models.model.prepare_context(call.text, exact=True)
    stacked = stack_contexts(parts)
    torch.testing.assert_close(stacked.keys_ZBLNK, whole.keys_ZBLNK)
    torch.testing.assert_close(stacked.values_ZBLNK, whole.values_ZBLNK)
    assert stacked.is_exact


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("rows", [[0, 0], [0, 0, 1], [0, 1, 1]])
def test_branches_may_share_their_latents(pair, rows, per_token):
    models = pair("2.1-t2v")
    call = models.draw(3, per_token=per_token)
    num_latents = max(rows) + 1
    shared = call.latents[:num_latents], call.timesteps[:num_latents]
    context = models.model.prepare_context(call.text[: len(rows)])
    call.latents, call.timesteps, call.text = call.latents[rows], call.timesteps[rows], call.text[: len(rows)]
    result = models.model(*shared, context, latents_rows=rows)
    assert relative_error(result, models.expected(call)) < FAST_BOUND


@pytest.mark.parametrize("exact", [True, False])
def test_timesteps_may_be_given_by_the_frame(pair, exact):
    models = pair("2.2-ti2v-5b")
    call = models.draw(1 if exact else 2, per_token=True)
    frames = call.timesteps[:, ::20]
    call.timesteps = frames.repeat_interleave(20, dim=1)
    expected = models.expected(call)
    call.timesteps = frames
    result = models.run(call, exact=exact)
    assert torch.equal(result, expected) if exact else relative_error(result, expected) < FAST_BOUND


def test_only_differences_of_positions_matter(pair):
    models = pair("2.1-t2v")
    call = models.draw()
    assert relative_error(models.run(call, first_frame=7), models.run(call)) < FAST_BOUND


@pytest.mark.parametrize("exact", [True, False])
def test_rotation_tables_may_be_kept(pair, exact):
    models = pair("2.1-t2v")
    call = models.draw()
    kept = models.model.rotary(call.latents)
    assert torch.equal(models.run(call, exact=exact, rotary=kept), models.run(call, exact=exact))


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_branches_of_an_exact_step_share_its_start(pair, variant, per_token):
    models = pair(variant)
    calls = [models.draw(seed=seed, per_token=per_token) for seed in (0, 1)]
    start = models.model.start_exact(calls[0].latents, calls[0].timesteps, rotary=models.model.rotary(calls[0].latents))
    for call in calls:
        call.latents, call.timesteps = calls[0].latents, calls[0].timesteps
        context = models.model.prepare_context(call.text, call.image, exact=True)
        assert torch.equal(models.model.finish_exact(start, context), models.expected(call))


def test_an_exact_step_that_was_started_refuses_what_does_not_fit(pair):
    models = pair("2.1-t2v")
    call = models.draw()
    start = models.model.start_exact(call.latents, call.timesteps)
    with pytest.raises(ParameterError, match="other mode"):
        models.model.finish_exact(start, models.model.prepare_context(call.text))
    with pytest.raises(ParameterError, match="rows"):
        models.model.finish_exact(start, models.model.prepare_context(call.text.repeat(2, 1, 1), exact=True))
    with pytest.raises(ParameterError, match="timesteps"):
        models.model.start_exact(call.latents, torch.zeros(2))


def test_a_runner_that_changes_the_stream_before_the_first_block_is_heard(pair):
    models = pair("2.1-t2v")
    call = models.draw()
    context = models.model.prepare_context(call.text, exact=True)

    def run_doubled(blocks, hidden, inputs):
        hidden = hidden * 2
        for block in blocks:
            hidden = block(hidden, inputs)
        return hidden

    started = models.model.finish_exact(
        models.model.start_exact(call.latents, call.timesteps), context, blocks_runner=run_doubled
    )
    whole = models.model(call.latents, call.timesteps, context, exact=True, blocks_runner=run_doubled)
    assert torch.equal(started, whole)
    assert not torch.equal(started, models.model(call.latents, call.timesteps, context, exact=True))


def test_gradients_are_the_references(pair):
    models = pair("2.1-t2v")
    call = models.draw(2)
    reference, model = copy.deepcopy(models.reference), copy.deepcopy(models.model)
    with torch.enable_grad():
        reference.requires_grad_(True)(call.latents, call.timesteps, call.text).sample.square().sum().backward()
        context = model.requires_grad_(True).prepare_context(call.text)
        model(call.latents, call.timesteps, context).square().sum().backward()
    expected = {name: parameter.grad for name, parameter in reference.named_parameters()}
    for name, parameter in model.named_parameters():
        # A key's bias moves all logits of a query alike, so that its gradient is rounding noise but for the norm.
        assert (parameter.grad - expected[name]).norm() < 1e-4 * expected[name].norm() + 1e-3, name


def test_blocks_can_be_recomputed_in_the_backward_pass(pair):
    models = pair("2.1-t2v")
    call = models.draw()

    def run_recomputing(blocks, hidden, inputs):
        for block in blocks:
            hidden = recompute(block, hidden, inputs, use_reentrant=False)
        return hidden

    gradients = []
    with torch.enable_grad():
        for options in ({}, {"blocks_runner": run_recomputing}):
            model = copy.deepcopy(models.model).requires_grad_(True)
            context = model.prepare_context(call.text)
            model(call.latents, call.timesteps, context, **options).square().sum().backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(*both) for both in zip(*gradients, strict=True))


@pytest.mark.parametrize("exact", [True, False])
def test_a_runner_sees_every_block_and_its_stream_stays(pair, exact):
    models = pair("2.2-t2v-a14b")
    call = models.draw()
    seen = []

    def record(blocks, hidden, inputs):
        for block in blocks:
            before = hidden.clone()
            after = block(hidden, inputs)
            assert torch.equal(hidden, before)
            seen.append(block.index)
            hidden = after
        return hidden

    assert torch.equal(models.run(call, exact=exact, blocks_runner=record), models.run(call, exact=exact))
    assert seen == [0, 1, 2]


def test_calls_leave_nothing_on_the_module(pair):
    models = pair("2.1-i2v")
    call = models.draw()

    def snapshot():
        return {name: (set(vars(module)), len(module._buffers)) for name, module in models.model.named_modules()}

    before = snapshot()
    first = models.run(call)
    models.run(models.draw(seed=1, grid=(1, 2, 2)))
    assert snapshot() == before
    assert torch.equal(models.run(call), first)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"timesteps": torch.zeros(2)}, "timesteps"),
        ({"timesteps": torch.zeros(1, 7)}, "timesteps"),
        ({"exact": True}, "exact"),
        ({"latents_rows": [0, 0]}, "context"),
        ({"latents_rows": [1]}, "latents_rows"),
        ({"latents_rows": [0], "exchange": lambda layer, key, value: (key, value)}, "latents_rows"),
        ({"latents": torch.zeros(1, 16, 3, 8, 9)}, "columns"),
        ({"latents": torch.zeros(1, 15, 3, 8, 10)}, "latents"),
        ({"latents": torch.zeros(1, 16, 1025, 2, 2)}, "frames"),
    ],
)
def test_what_does_not_fit_is_refused(pair, change, field):
    models = pair("2.1-t2v")
    call = models.draw()
    inputs = {"latents": call.latents, "timesteps": call.timesteps, **change}
    context = models.model.prepare_context(call.text)
    with pytest.raises(ParameterError) as caught:
        models.model(inputs.pop("latents"), inputs.pop("timesteps"), context, **inputs)
    assert caught.value.field == field


def test_image_weights_need_an_image_and_full_text(pair):
    call = pair("2.1-i2v").draw()
    model = pair("2.1-i2v").model
    with pytest.raises(ParameterError, match="image"):
        model.prepare_context(call.text)
    with pytest.raises(ParameterError, match="512"):
        model.prepare_context(call.text[:, :100], call.image)
    with pytest.raises(ParameterError, match="image"):
        pair("2.1-t2v").model.prepare_context(call.text, call.image)


def see_earlier_chunks(reference, tokens_a_chunk, num_tokens):
    """Put a block-causal mask into the reference's self-attention: a token sees its own chunk and all earlier ones."""
    from diffusers.models.transformers.transformer_wan import WanAttnProcessor

    chunk = torch.arange(num_tokens) // tokens_a_chunk
    mask = chunk.unsqueeze(1) >= chunk.unsqueeze(0)

    class Masked(WanAttnProcessor):
        def __call__(self, attention, hidden, text=None, attention_mask=None, rotary=None):
            return super().__call__(attention, hidden, text, mask, rotary)

    for block in reference.blocks:
        block.attn1.set_processor(Masked())
    return reference


@pytest.mark.parametrize("exact", [True, False])
def test_chunks_with_kept_keys_are_a_block_causal_video(pair, exact):
    models = pair("2.1-t2v")
    call = models.draw(grid=(6, 4, 5), per_token=True)
    call.timesteps = call.timesteps[:, ::20].repeat_interleave(20, dim=1)
    reference = see_earlier_chunks(copy.deepcopy(models.reference), 40, 120)
    expected = reference(call.latents, call.timesteps, call.text, return_dict=False)[0]
    kept = {}

    def exchange(layer, key, value):
        earlier = kept.get(layer, [])
        kept[layer] = [*earlier, (key.clone(), value.clone())]
        return tuple(torch.cat(parts, dim=1) for parts in zip(*kept[layer], strict=True))

    context = models.model.prepare_context(call.text, exact=exact)
    for first in range(0, 6, 2):
        latents, frames = call.latents[:, :, first : first + 2], call.timesteps[:, 20 * first :: 20][:, :2]
        chunk = models.model(latents, frames, context, exact=exact, first_frame=first, exchange=exchange)
        assert relative_error(chunk, expected[:, :, first : first + 2]) < FAST_BOUND
    assert {layer: len(chunks) for layer, chunks in kept.items()} == {0: 3, 1: 3}


PUBLISHED = {
    "Wan2.1-T2V-1.3B": (12, 8960, 30, 16, 16, {}),
    "Wan2.1-T2V-14B": (40, 13824, 40, 16, 16, {}),
    "Wan2.1-I2V-14B": (40, 13824, 40, 36, 16, {"image_dim": 1280, "added_kv_proj_dim": 5120}),
    "Wan2.2-TI2V-5B": (24, 14336, 30, 48, 48, {}),
    "Wan2.2-I2V-A14B": (40, 13824, 40, 36, 16, {}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_have_the_references_names(name):
    from diffusers import WanTransformer3DModel

    heads, ffn, layers, channels_in, channels_out, extra = PUBLISHED[name]
    raw = {
        "num_attention_heads": heads,
        "ffn_dim": ffn,
        "num_layers": layers,
        "in_channels": channels_in,
        "out_channels": channels_out,
        **extra,
    }
    with torch.device("meta"):
        reference = WanTransformer3DModel(**raw)
        model = WanTransformer(WanTransformerConfig.from_diffusers(raw))
    ours = {name: tensor.shape for name, tensor in model.state_dict().items()}
    assert ours == {name: tensor.shape for name, tensor in reference.state_dict().items()}
