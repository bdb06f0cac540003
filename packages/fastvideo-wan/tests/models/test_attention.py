"""Parameters that lie next to each other."""

from __future__ import annotations

import torch

from fastvideo_wan.models.attention import view_joined


def test_neighbours_are_seen_as_one():
    whole = torch.arange(24.0).view(6, 4)
    joined = view_joined(whole.chunk(3))
    assert torch.equal(joined, whole)
    whole[3, 1] = -1
    assert joined[3, 1] == -1


def test_others_are_not():
    first, second, third = torch.arange(24.0).view(6, 4).chunk(3)
    assert view_joined((first, third)) is None
    assert view_joined((second, first)) is None
    assert view_joined((first, second.clone())) is None
    assert view_joined(torch.arange(24.0).view(4, 6).t().chunk(3)) is None
