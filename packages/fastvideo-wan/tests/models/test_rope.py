"""Rotation tables against diffusers' and against the angles' definition."""

from __future__ import annotations

import math

import pytest
import torch

from fastvideo_wan.models.rope import rotary_tables


@pytest.mark.parametrize("head_dim", [12, 24, 32, 64, 128])
@pytest.mark.parametrize("grid", [(1, 1, 1), (3, 4, 5), (21, 30, 52)])
def test_tables_have_the_references_bits(head_dim, grid):
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

    reference = WanRotaryPosEmbed(head_dim, (1, 2, 2), 1024)
    frames, rows, columns = grid
    cos, sin = reference(torch.empty(1, 16, frames, 2 * rows, 2 * columns))
    tables = rotary_tables(grid, head_dim)
    # The reference holds every angle twice, once for each number of a pair.
    assert torch.equal(tables.cos_S1K, cos[0])
    assert torch.equal(tables.sin_S1K, sin[0])


def test_every_position_of_an_axis_has_the_same_bits_whatever_the_length():
    whole = rotary_tables((1024, 1, 1), 128)
    for length in (1, 2, 3, 7, 8, 100, 513):
        assert torch.equal(rotary_tables((length, 1, 1), 128).cos_S1K, whole.cos_S1K[:length])
        assert torch.equal(rotary_tables((length, 1, 1), 128).sin_S1K, whole.sin_S1K[:length])


def test_a_later_chunk_has_the_rows_of_the_whole_video():
    whole = rotary_tables((9, 2, 3), 24)
    chunk = rotary_tables((3, 2, 3), 24, first_frame=6)
    assert torch.equal(chunk.cos_S1K, whole.cos_S1K[36:])
    assert torch.equal(chunk.sin_S1K, whole.sin_S1K[36:])


def test_angles_are_position_times_frequency_on_each_axis():
    # Head width 12: rows and columns have 2 pairs of angles each, time the other 2.
    frame, row, column = 2, 1, 3
    token = (frame * 2 + row) * 4 + column
    tables = rotary_tables((3, 2, 4), 12)
    angles = [position * 10000 ** (-pair / 2) for position in (frame, row, column) for pair in range(2)]
    angles = [angle for angle in angles for _ in range(2)]
    assert tables.cos_S1K[token, 0].tolist() == pytest.approx([math.cos(angle) for angle in angles])
    assert tables.sin_S1K[token, 0].tolist() == pytest.approx([math.sin(angle) for angle in angles])
