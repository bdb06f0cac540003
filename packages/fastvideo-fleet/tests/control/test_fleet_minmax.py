from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastvideo_fleet.control.minmax import min_max_plan


def tables(speeds, most):
    """Return batch times of workers of some speeds, infinite beyond K."""
    lines = [[0.0, *(speed * (0.3 + 0.15 * n) for n in range(1, most + 1)), np.inf] for speed in speeds]
    return np.array(lines)


def exhaustive(count, chunk_s, num_new, max_moves):
    """Try every vector of counts."""
    most, best = chunk_s.shape[1] - 2, None
    for placed in product(range(most + 1), repeat=len(count)):
        leaving = sum(max(before - after, 0) for before, after in zip(count, placed, strict=True))
        if sum(placed) != sum(count) + num_new or leaving > max_moves:
            continue
        worst = max(chunk_s[worker, number] for worker, number in enumerate(placed))
        best = worst if best is None else min(best, worst)
    return best


@given(
    count=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    speeds=st.lists(st.sampled_from([0.5, 1.0, 1.6]), min_size=4, max_size=4),
    num_new=st.integers(0, 3),
    max_moves=st.integers(0, 5),
)
def test_it_is_the_exhaustive_optimum(count, speeds, num_new, max_moves):
    chunk_s = tables(speeds[: len(count)], 4)
    plan = min_max_plan(np.array(count), chunk_s, num_new=num_new, max_moves=max_moves)
    best = exhaustive(count, chunk_s, num_new, max_moves)
    if sum(count) + num_new == 0:
        assert plan is None
        return
    assert (plan is None) == (best is None)
    if plan is not None:
        assert plan.worst_s == best
        placed = plan.placed(np.array(count), num_new)
        assert placed.sum() == sum(count) + num_new
        assert np.maximum(np.array(count) - placed, 0).sum() == plan.num_moves <= max_moves
        assert max(chunk_s[worker, number] for worker, number in enumerate(placed)) <= best


def test_more_moves_never_hurt(rng):
    count = rng.integers(0, 9, 20)
    chunk_s = tables(rng.choice([0.6, 1.0, 1.7], 20), 8)
    worst = [min_max_plan(count, chunk_s, max_moves=moves).worst_s for moves in range(30)]
    assert worst == sorted(worst, reverse=True)
    assert worst[-1] < worst[0]


def test_too_many_sessions_have_no_placement():
    assert min_max_plan(np.array([4, 4]), tables([1.0, 1.0], 4), num_new=1, max_moves=9) is None


@pytest.mark.parametrize(("count", "moves", "caps"), [([4, 0], 2, [2, 2]), ([4, 0], 1, [3, 3]), ([3, 2], 5, [3, 3])])
def test_small_cases_by_hand(count, moves, caps):
    plan = min_max_plan(np.array(count), tables([1.0, 1.0], 4), max_moves=moves)
    assert plan.caps.tolist() == caps
