from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastvideo_core.errors import StateError
from fastvideo_core.runtime.durable.sealed import seal, unseal

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
CONTENT = {"name": "ä\ud800", "number": 0.1, "list": [1, 2**70, None]}


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_content_comes_back(content):
    assert unseal("x/1", seal("x/1", content)) == content


def test_a_file_is_plain_json():
    assert json.loads(seal("x/1", CONTENT))["content"] == CONTENT


def test_every_flipped_byte_is_found():
    data = seal("x/1", {"text": "abc", "number": 12})
    for index in range(len(data) - 1):  # the last is the end of the line
        broken = bytearray(data)
        broken[index] ^= 1
        try:
            content = unseal("x/1", bytes(broken))
        except StateError:
            continue
        # Blanks and the like between values may change; what the file says may not.
        assert content == {"text": "abc", "number": 12}


def test_every_cut_is_found():
    data = seal("x/1", {"text": "abc"})
    for length in range(len(data) - 1):
        with pytest.raises(StateError):
            unseal("x/1", data[:length])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is corrupt or something else (0 bytes): JSONDecodeError"),
        (b"\x80\x04", "is corrupt or something else (2 bytes): UnicodeDecodeError"),
        (b"[1]", "is corrupt or something else (3 bytes): TypeError"),
        (b"{}", "is corrupt or something else (2 bytes): KeyError"),
        (b"[" * 100_000, "is corrupt or something else (100000 bytes): RecursionError"),
        (seal("x/2", {}), "is of format 'x/2'; this version reads 'x/1'"),
        (b'{"format": "x/1", "sha256": "", "content": 3}', "is corrupt (45 bytes): its digest differs"),
    ],
)
def test_something_else_is_refused(data, text):
    with pytest.raises(StateError) as caught:
        unseal("x/1", data)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}, b"x"])
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(StateError, match="cannot be stored as JSON"):
        seal("x/1", {"value": value})
