"""Short contexts: merged padding and stacks of unequal lengths, against plain attention in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fastvideo_wan.models.attention import attend
from fastvideo_wan.models.context import TextContext, merge_padding, split_context, stack_contexts


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attention(query, key, value):
    """Softmax attention of one head from its definition."""
    logits = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    weights = logits.exp() / logits.exp().sum(dim=-1, keepdim=True)
    return weights @ value


def test_merged_padding_keeps_the_attention():
    text = draw(3, 40, 8)
    for row, num_real in enumerate((12, 1, 40)):
        text[row, num_real:] = 0
    query = draw(3, 5, 8, seed=1)
    expected = attention(query, text.sin(), text + 1)
    short, bias = merge_padding(text)
    heads = (query.unsqueeze(2), short.sin().unsqueeze(2), (short + 1).unsqueeze(2))
    torch.testing.assert_close(attend(*heads, bias_BL=bias.double()), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("num_real", "num_kept", "log_count"), [(20, 21, 492.0), (0, 1, 512.0), (511, 512, 1.0), (512, 512, 1.0)]
)
def test_merged_padding_is_one_token(num_real, num_kept, log_count):
    text = torch.zeros(1, 512, 4)
    text[0, :num_real] = torch.arange(1, num_real + 1).unsqueeze(1)
    short, bias = merge_padding(text)
    assert short.shape == (1, num_kept, 4)
    assert torch.equal(bias[0, -1].exp().round(), torch.tensor(log_count))
    assert not bias[0, :-1].any()


def test_zero_rows_inside_a_text_are_no_padding():
    text = torch.tensor([[1.0, 0.0, 0.0, 2.0, 0.0, 0.0]]).unsqueeze(-1)
    short, bias = merge_padding(text)
    assert short.squeeze().tolist() == [1, 0, 0, 2, 0]
    torch.testing.assert_close(bias, torch.tensor([[0, 0, 0, 0, 2.0]]).where(bias == 0, torch.tensor(2.0).log()))


def short_context(num_tokens, seed, *, has_outputs):
    return TextContext(
        keys_ZBLNK=draw(2, 1, num_tokens, 3, 4, seed=seed),
        values_ZBLNK=draw(2, 1, num_tokens, 3, 4, seed=seed + 1),
        bias_BL=draw(1, num_tokens, seed=seed + 2),
        outputs_ZBNLD=draw(2, 1, 3, num_tokens, 12, seed=seed + 3) if has_outputs else None,
    )


def test_a_stack_gives_each_row_its_own_tokens():
    contexts = [short_context(5, 0, has_outputs=True), short_context(2, 10, has_outputs=True)]
    stacked = stack_contexts(contexts)
    assert stacked.num_rows == 2
    assert stacked.bias_BL[1, 2:].tolist() == [float("-inf")] * 3
    query = draw(2, 6, 3, 4, seed=20)
    for index in range(2):
        layer = stacked.layer(index)
        mixed = attend(query, layer.key_BLNK, layer.value_BLNK, bias_BL=layer.bias_BL)
        for row, context in enumerate(contexts):
            own = context.layer(index)
            alone = attend(query[row : row + 1], own.key_BLNK, own.value_BLNK, bias_BL=own.bias_BL)
            torch.testing.assert_close(mixed[row : row + 1], alone)
            num_tokens = own.key_BLNK.shape[1]
            assert torch.equal(layer.output_BNLD[row, :, :num_tokens], own.output_BNLD[0])
            assert not layer.output_BNLD[row, :, num_tokens:].any()


def test_a_stack_has_what_all_its_contexts_have():
    stacked = stack_contexts([short_context(5, 0, has_outputs=True), short_context(5, 10, has_outputs=False)])
    assert stacked.outputs_ZBNLD is None


def test_a_stack_of_one_is_the_context_itself():
    context = short_context(3, 0, has_outputs=False)
    assert stack_contexts([context]) is context


def test_exact_and_short_contexts_do_not_mix():
    exact = TextContext(draw(2, 1, 5, 3, 4), draw(2, 1, 5, 3, 4))
    with pytest.raises(AssertionError, match="do not mix"):
        stack_contexts([exact, short_context(5, 0, has_outputs=False)])


def test_a_split_undoes_a_stack_and_shares_no_memory():
    contexts = [short_context(5, seed, has_outputs=True) for seed in (0, 10, 20)]
    stacked = stack_contexts(contexts)
    first, rest = split_context(stacked, [1, 2])
    for part, expected in ((first, contexts[0]), (rest, stack_contexts(contexts[1:]))):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            assert (
                value is None
                if getattr(expected, field.name) is None
                else torch.equal(value, getattr(expected, field.name))
            )
            if value is not None:
                assert value.untyped_storage().data_ptr() != getattr(stacked, field.name).untyped_storage().data_ptr()


def test_padding_may_be_merged_to_a_given_length():
    text = draw(2, 40, 8)
    text[0, 12:], text[1, 3:] = 0, 0
    query = draw(2, 5, 8, seed=1)
    expected = attention(query, text.sin(), text + 1)
    short, bias = merge_padding(text, 16)
    assert short.shape == (2, 16, 8)
    heads = (query.unsqueeze(2), short.sin().unsqueeze(2), (short + 1).unsqueeze(2))
    torch.testing.assert_close(attend(*heads, bias_BL=bias.double()), expected, rtol=0, atol=1e-6)


def test_a_context_holds_tensors_only():
    context = short_context(3, 0, has_outputs=True)
    values = [getattr(context, field.name) for field in dataclasses.fields(context)]
    assert all(value is None or isinstance(value, torch.Tensor) for value in values)
    assert not hasattr(context, "__dict__")
