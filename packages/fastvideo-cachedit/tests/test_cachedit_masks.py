from __future__ import annotations

import pytest

from fastvideo_cachedit.masks import mask_from, mask_of


@pytest.mark.parametrize(("preset", "num_computed"), [("slow", 18), ("medium", 15), ("fast", 11), ("ultra", 8)])
def test_presets_compute_as_much_as_the_library_says_of_28_steps(preset, num_computed):
    mask = mask_of(preset, 28)
    assert (len(mask), sum(mask), mask[0], mask[-1]) == (28, num_computed, 1, 1)


@pytest.mark.parametrize("preset", ["slow", "medium", "fast", "ultra"])
@pytest.mark.parametrize("num_steps", [8, 9, 10, 15, 16, 27, 29, 50, 100, 1000])
def test_presets_are_there_for_any_number_of_steps(preset, num_steps):
    mask = mask_of(preset, num_steps)
    assert len(mask) == num_steps
    assert set(mask) <= {0, 1}
    assert mask[0] == 1
    assert sum(mask) < num_steps


def test_no_mask_is_none_and_a_list_is_itself():
    assert mask_of(None, 30) is None
    assert mask_of((1, 0, 1), 3) == (1, 0, 1)


@pytest.mark.parametrize(
    ("begin", "num_first", "expected"),
    [
        (0, 4, (1, 1, 1, 0, 0, 1, 0, 0)),
        (4, 4, (1, 1, 1, 0)),  # as many as the mask computes first
        (4, 2, (1, 1, 0, 0)),  # no more than the warm-up
        (7, 4, (1,)),  # what is left
    ],
)
def test_who_comes_in_later_computes_first(begin, num_first, expected):
    assert mask_from((1, 1, 1, 0, 0, 1, 0, 0), begin, num_first) == expected


def test_a_mask_that_computes_all_says_so_to_everybody():
    assert mask_from((1, 1, 1, 1), 1, 2) == (1, 1, 1)
