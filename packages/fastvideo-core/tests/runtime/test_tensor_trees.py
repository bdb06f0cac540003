from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fastvideo_core.runtime.tensor_trees import NotATreeError, flatten_tree


@dataclass(frozen=True, slots=True)
class Pair:
    one: torch.Tensor
    rest: tuple[int, torch.Tensor | None]


def tree(fill=0.0, *, number=3, shape=(2, 3)):
    one = torch.full(shape, fill)
    return {"pair": Pair(one, (number, one + 1)), "list": [None, "text", one + 2]}


def test_a_structure_comes_apart_and_together():
    tensors, rebuild, _ = flatten_tree(tree())
    assert [float(tensor[0, 0]) for tensor in tensors] == [0.0, 1.0, 2.0]
    built = rebuild([tensor + 10 for tensor in tensors])
    assert built["pair"].rest[0] == 3
    assert built["list"][:2] == [None, "text"]
    assert [float(part[0, 0]) for part in (built["pair"].one, built["pair"].rest[1], built["list"][2])] == [10, 11, 12]


def test_shapes_are_equal_exactly_where_only_content_differs():
    shape = flatten_tree(tree())[2]
    assert flatten_tree(tree(5.0))[2] == shape
    assert flatten_tree(tree(number=4))[2] != shape
    assert flatten_tree(tree(shape=(3, 2)))[2] != shape
    assert flatten_tree([torch.zeros(1)])[2] != flatten_tree((torch.zeros(1),))[2]
    assert flatten_tree(torch.zeros(2, 3).t())[2] != flatten_tree(torch.zeros(3, 2))[2]
    assert flatten_tree([True])[2] != flatten_tree([1])[2]
    assert len({flatten_tree(tree())[2], shape}) == 1


def test_what_is_no_structure_of_tensors_is_refused():
    with pytest.raises(NotATreeError, match="a frozenset is no tensor"):
        flatten_tree([torch.zeros(1), frozenset()])
