"""Pages of keys and values: texts grow by new pages, share old ones, and become rows of one call."""

from __future__ import annotations

import torch

from fastvideo_cosmos3.loops.pages import PAGE_TOKENS, TextPages, append_tokens, num_pages, stack_pages


def tokens(count, seed):
    return torch.randn(3, 2, count, 2, 4, generator=torch.Generator().manual_seed(seed))


def test_a_text_grows_by_pages_and_leaves_what_was_there_alone():
    first, more = tokens(20, 0), tokens(15, 1)
    text = append_tokens(TextPages(), first, 20)
    pages = [page.clone() for page in text.pages]
    longer = append_tokens(text, more, 35)
    assert [page.shape[2] for page in longer.pages] == [16, 16, 3]
    assert (longer.num_tokens, longer.next_position, num_pages(35)) == (35, 35, 3)
    assert torch.equal(stack_pages([longer])[:, :, 0], torch.cat([first, more], dim=2))
    assert all(torch.equal(page, before) for page, before in zip(text.pages, pages, strict=True))
    assert longer.pages[0] is text.pages[0]
    assert longer.pages[1] is not text.pages[1]


def test_a_full_page_is_shared_when_the_text_goes_on():
    text = append_tokens(TextPages(), tokens(PAGE_TOKENS, 0), PAGE_TOKENS)
    longer = append_tokens(text, tokens(1, 1), PAGE_TOKENS + 1)
    assert longer.pages[0] is text.pages[0]
    assert longer.pages[1].shape[2] == 1


def test_texts_of_unequal_length_become_rows():
    parts = [tokens(5, 0), tokens(19, 1)]
    texts = [append_tokens(TextPages(), part, 0) for part in parts]
    rows = stack_pages([*texts, TextPages()], room=2)
    assert rows.shape == (3, 2, 3, 21, 2, 4)
    assert torch.equal(rows[:, :, 0, :5], parts[0])
    assert torch.equal(rows[:, :, 1, :19], parts[1])
    assert not rows[:, :, 0, 5:19].any()
    assert not rows[:, :, 2, :19].any()
    assert stack_pages([TextPages(), TextPages()]) is None


def test_pages_do_not_keep_the_call_alive_that_made_them():
    own = tokens(40, 0)
    text = append_tokens(TextPages(), own[:, :, :24], 24)
    assert all(page.untyped_storage().data_ptr() != own.untyped_storage().data_ptr() for page in text.pages)
    assert sum(page.untyped_storage().nbytes() for page in text.pages) == own[:, :, :24].numel() * 4
