"""Which chunks are attended to, against what the releases keep."""

from __future__ import annotations

import pytest
import torch

from fastvideo_core.errors import ParameterError
from fastvideo_wan.models.chunk_masks import chunk_mask, spread_mask
from fastvideo_wan.models.chunks import ChunkRule

SELF_FORCING = ChunkRule(chunk_frames=3, window_frames=21)
LONGLIVE = ChunkRule(chunk_frames=3, window_frames=12, sink_frames=3)
TWO_EXPERTS = ChunkRule(chunk_frames=3, window_frames=21, first_frames=1)


@pytest.mark.parametrize(
    ("rule", "chunk", "past"),
    [
        (SELF_FORCING, 0, ()),
        (SELF_FORCING, 6, (0, 1, 2, 3, 4, 5)),
        (SELF_FORCING, 7, (1, 2, 3, 4, 5, 6)),
        (LONGLIVE, 1, (0,)),
        (LONGLIVE, 3, (0, 1, 2)),
        (LONGLIVE, 4, (0, 2, 3)),
        (LONGLIVE, 40, (0, 38, 39)),
        (TWO_EXPERTS, 6, (0, 1, 2, 3, 4, 5)),
        (TWO_EXPERTS, 7, (1, 2, 3, 4, 5, 6)),
    ],
)
def test_a_chunk_attends_to_the_sink_and_to_the_latest(rule, chunk, past):
    assert rule.past(chunk) == past


def kept_frames(rule, num_chunks):
    """Keep frames as the releases do: append, and when there are too many drop the oldest behind the sink."""
    kept, history, position = [], [], 0
    for chunk in range(num_chunks):
        kept += range(position, position + rule.num_frames(chunk))
        position += rule.num_frames(chunk)
        if len(kept) > rule.window_frames:
            kept = kept[: rule.sink_frames] + kept[rule.sink_frames + len(kept) - rule.window_frames :]
        history.append(list(kept))
    return history


@pytest.mark.parametrize(
    "rule",
    [SELF_FORCING, LONGLIVE, ChunkRule(1, 5, 2), ChunkRule(8, 32, 8), ChunkRule(3, 21, 0, 1), ChunkRule(3, 13, 1, 1)],
)
def test_the_frames_are_those_of_a_cache_that_shifts(rule):
    for chunk, kept in enumerate(kept_frames(rule, 12)):
        own = [*rule.past(chunk), chunk]
        frames = [rule.start(c) + i for c in own for i in range(rule.num_frames(c))]
        assert frames == kept


def test_the_mask_says_the_same_as_the_list():
    mask = chunk_mask(LONGLIVE, 6)
    assert [row.nonzero().flatten().tolist() for row in mask] == [[*LONGLIVE.past(c), c] for c in range(6)]
    spread = spread_mask(chunk_mask(TWO_EXPERTS, 3), TWO_EXPERTS.frame_sizes(3))
    assert spread.shape == (7, 7)
    assert torch.equal(spread[0], torch.tensor([True] + [False] * 6))
    assert torch.equal(spread[3], torch.tensor([True] * 4 + [False] * 3))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"chunk_frames": 0, "window_frames": 3}, "chunk_frames"),
        ({"chunk_frames": 3, "window_frames": 0}, "window_frames"),
        ({"chunk_frames": 3, "window_frames": 3, "sink_frames": 3}, "window_frames"),
        ({"chunk_frames": 3, "window_frames": 12, "sink_frames": 4}, "sink_frames"),
        ({"chunk_frames": 3, "window_frames": 12, "first_frames": 0}, "first_frames"),
        ({"chunk_frames": 3, "window_frames": 13}, "window_frames"),
    ],
)
def test_impossible_rules_are_refused(options, field):
    with pytest.raises(ParameterError, match=field):
        ChunkRule(**options)


@pytest.mark.parametrize(
    ("rule", "chunk", "reread", "sink"),
    [
        (SELF_FORCING, 0, [], []),
        (SELF_FORCING, 3, [0, 1, 2], []),
        (SELF_FORCING, 9, [2, 3, 4, 5, 6, 7, 8], []),
        (LONGLIVE, 4, [0, 1, 2, 3], []),
        (LONGLIVE, 5, [2, 3, 4], [0]),
        (LONGLIVE, 30, [27, 28, 29], [0]),
        (ChunkRule(3, 12, 6), 5, [3, 4], [0, 1]),
        (TWO_EXPERTS, 9, [2, 3, 4, 5, 6, 7, 8], []),
    ],
)
def test_what_is_read_anew_fills_the_window_beside_the_sink(rule, chunk, reread, sink):
    assert list(rule.reread(chunk)) == reread
    assert list(rule.kept_sink(rule.reread(chunk))) == sink
