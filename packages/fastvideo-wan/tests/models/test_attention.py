"""Attention and rotation against their definitions in float64."""

from __future__ import annotations

import pytest
import torch

from fastvideo_wan.models.attention import attend, rotate
from fastvideo_wan.models.rope import rotary_tables


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("scale", [None, 1.0])
def test_attend(has_bias, scale):
    query, key, value = draw(2, 5, 3, 4), draw(2, 7, 3, 4, seed=1), draw(2, 7, 3, 4, seed=2)
    bias = draw(2, 7, seed=3) if has_bias else None
    logits = torch.einsum("bsnk,blnk->bnsl", query, key) * (0.5 if scale is None else scale)
    weights = (logits if bias is None else logits + bias[:, None, None]).exp()
    weights = weights / weights.sum(dim=-1, keepdim=True)
    expected = torch.einsum("bnsl,blnk->bsnk", weights, value).reshape(2, 5, 12)
    torch.testing.assert_close(attend(query, key, value, bias_BL=bias, scale=scale), expected)


def test_rotated_pairs_are_turned_complex_numbers():
    heads = draw(2, 6, 3, 12)
    tables = rotary_tables((1, 2, 3), 12)
    turns = torch.complex(tables.cos_S1K[..., ::2].double(), tables.sin_S1K[..., ::2].double())
    expected = torch.view_as_real(torch.view_as_complex(heads.unflatten(-1, (6, 2))) * turns).flatten(-2)
    torch.testing.assert_close(rotate(heads, tables), expected)
