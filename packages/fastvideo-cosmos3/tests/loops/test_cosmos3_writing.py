"""Tokens chosen and text written, against the library's own filters and against plain text."""

from __future__ import annotations

import pytest
import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper

from fastvideo_cosmos3.loops.choosing import Choosing, choose_tokens, draw_uniforms
from fastvideo_cosmos3.loops.writing import Writing, text_chunks, write_token
from fastvideo_cosmos3.models.tokenizer import ChatTokenizer


@pytest.fixture(scope="module")
def tokenizer(folder):
    return ChatTokenizer.from_folder(folder / "text_tokenizer")


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.6), (8, 0.8), (1, 1.0), (0, 0.001)])
def test_draws_have_the_probabilities_of_the_filtered_logits(top_k, top_p):
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(0)) * 2
    filtered = logits / 0.7
    if top_k:
        filtered = TopKLogitsWarper(top_k)(None, filtered)
    if top_p < 1:
        filtered = TopPLogitsWarper(top_p)(None, filtered)
    expected = filtered.softmax(dim=-1)[0]
    choosing = Choosing(0.7, top_k, top_p)
    grid = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    drawn = torch.tensor([choose_tokens(logits, [choosing], [float(uniform)])[0] for uniform in grid])
    found = torch.bincount(drawn, minlength=20) / 1000
    torch.testing.assert_close(found, expected, rtol=0, atol=1.2e-3)
    assert set(drawn.tolist()) <= set(expected.nonzero().flatten().tolist())


def test_rows_are_chosen_each_in_its_own_way():
    logits = torch.tensor([[0.0, 5.0, 1.0], [3.0, 0.0, 0.0]])
    assert choose_tokens(logits, [Choosing(), Choosing(1.0)], [0.9, 0.999]) == [1, 2]


def test_the_first_number_that_is_drawn_does_not_depend_on_how_many_are():
    one, many = (draw_uniforms(torch.Generator().manual_seed(5), count) for count in (1, 300))
    assert one[0] == many[0]


def write(tokenizer, text, *, stops=(), max_tokens=1000, ends=True):
    writing = Writing((), max_tokens, tuple(stops))
    pieces = []
    for token in (*tokenizer.encode(text), *([tokenizer.eos_id] if ends else [])):
        after = write_token(tokenizer, writing, token)
        pieces += [chunk.data for chunk in text_chunks(writing, after)]
        writing = after
        if writing.finish:
            break
    return writing, pieces


def test_a_text_ends_at_its_end_token(tokenizer):
    writing, pieces = write(tokenizer, "a é 漢 b")
    assert (writing.text, writing.finish) == ("a é 漢 b", "eos")
    assert "".join(pieces) == writing.text
    assert writing.token_ids[-1] == tokenizer.eos_id


def test_a_stop_string_over_several_tokens_is_never_shown(tokenizer):
    writing, pieces = write(tokenizer, "one END two", stops=["END", "zzz"])
    assert (writing.text, writing.finish) == ("one ", "stop")
    assert "".join(pieces) == "one "
    assert all("E" not in piece for piece in pieces)


def test_what_only_looked_like_a_stop_string_is_shown_later(tokenizer):
    writing, pieces = write(tokenizer, "an ENTRY", stops=["END"])
    assert "".join(pieces) == writing.text == "an ENTRY"


def test_the_most_tokens_end_a_text_with_what_was_held_back(tokenizer):
    writing, pieces = write(tokenizer, "abEN", stops=["END"], max_tokens=4)
    assert (writing.text, writing.finish, len(writing.token_ids)) == ("abEN", "length", 4)
    assert "".join(pieces) == "abEN"


def test_half_a_character_at_the_end_is_shown_as_such(tokenizer):
    writing, _ = write(tokenizer, "a漢", max_tokens=2, ends=False)
    assert writing.text == "a\N{REPLACEMENT CHARACTER}"
