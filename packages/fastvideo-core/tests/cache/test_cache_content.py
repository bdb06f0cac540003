from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastvideo_core.cache import content_hash, held_bytes, input_hashes
from fastvideo_core.errors import ParameterError


@dataclass(frozen=True, slots=True)
class Tokens:
    ids: tuple[int, ...]
    length: int


@dataclass(frozen=True, slots=True)
class Words:
    ids: tuple[int, ...]
    length: int


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(max_size=3), part, max_size=3),
    max_leaves=8,
)


def tagged(value):
    """Tell apart what Python calls equal, and lists from nothing else."""
    if isinstance(value, list):
        return ("list", tuple(tagged(part) for part in value))
    if isinstance(value, dict):
        return ("dict", frozenset((key, tagged(part)) for key, part in value.items()))
    return (type(value).__name__, struct.pack("<d", value) if isinstance(value, float) else value)


@given(VALUES, VALUES)
def test_digests_are_equal_exactly_for_equal_values(one, other):
    assert (content_hash(one) == content_hash(other)) == (tagged(one) == tagged(other))


def test_the_digest_of_a_text_is_that_of_its_tagged_bytes():
    expected = hashlib.sha256(b"s" + struct.pack("<Q", 3) + b"\xc3\xa9a").hexdigest()
    assert content_hash("éa") == expected


def test_parts_do_not_run_into_each_other():
    assert content_hash(["ab", "c"]) != content_hash(["a", "bc"])
    assert content_hash([["a"], "b"]) != content_hash(["a", ["b"]])
    assert content_hash([]) != content_hash({})
    assert content_hash((1, 2)) == content_hash([1, 2])
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})


def test_tensors_count_by_format_shape_and_bits():
    tensor = torch.arange(6, dtype=torch.int64).reshape(2, 3)
    assert content_hash(tensor) == content_hash(tensor.t().contiguous().t())
    assert content_hash(tensor) == content_hash(torch.nn.Parameter(tensor.float(), requires_grad=True).long())
    others = [tensor.reshape(3, 2), tensor.to(torch.int32), tensor.float(), tensor + 1, tensor.tolist()]
    assert len({content_hash(other) for other in [tensor, *others]}) == 6
    assert content_hash(torch.zeros(0, 3)) != content_hash(torch.zeros(3, 0))
    assert content_hash(torch.tensor(1.0)) != content_hash(torch.tensor([1.0]))
    assert content_hash(torch.ones(2, dtype=torch.bfloat16)) != content_hash(torch.ones(2, dtype=torch.float16))


def test_arrays_and_dataclasses_have_digests():
    assert content_hash(np.zeros((2, 2), np.uint8)) == content_hash(np.zeros((2, 4), np.uint8)[:, ::2])
    assert content_hash(np.zeros(4, np.uint8)) != content_hash(np.zeros((2, 2), np.uint8))
    assert content_hash(Tokens((1, 2), 2)) == content_hash(Tokens((1, 2), 2))
    assert content_hash(Tokens((1, 2), 2)) != content_hash(Words((1, 2), 2))


@pytest.mark.parametrize("value", [object(), {1, 2}, Tokens, torch.zeros(1, device="meta"), lambda: None])
def test_what_has_no_content_is_refused(value):
    with pytest.raises(ParameterError, match=r"value\['inputs'\]\[0\]="):
        content_hash({"inputs": [value]})


def test_named_inputs_are_sorted():
    assert input_hashes(text="a", image=None) == (("image", content_hash(None)), ("text", content_hash("a")))


def test_shared_memory_counts_once_and_views_as_all_of_theirs():
    base = torch.zeros(100, dtype=torch.float32)
    assert held_bytes(base[:3]) == 400
    assert held_bytes({"a": [base, base[5:]], "b": (base.reshape(10, 10), 3)}) == 400
    assert held_bytes([torch.zeros(2, dtype=torch.float64), Tokens((torch.zeros(4, dtype=torch.uint8),), 3)]) == 20
    assert held_bytes("text") == 0
