"""Reading files: what is a workflow, and what is refused at the door."""

from __future__ import annotations

import json

import pytest

from fastvideo_comfy.errors import WorkflowError
from fastvideo_comfy.graph import parse_document, read_document

NODE = {"class_type": "A", "inputs": {}}


@pytest.mark.parametrize(
    ("content", "form"),
    [({"nodes": [], "links": []}, "ui"), ({"1": NODE}, "api"), ({"prompt": {"1": NODE}, "client_id": "x"}, "api")],
)
def test_both_forms_are_told_apart(content, form):
    assert parse_document(json.dumps(content)).form == form


@pytest.mark.parametrize(
    "data",
    ["", "[]", "3", "{", '{"a": 1}', "{}", '{"prompt": {}}', '{"__proto__": 1}', "[" * 100_000, b"\xff\xfe\x00", '"x"'],
)
def test_anything_else_is_refused(data):
    with pytest.raises(WorkflowError):
        parse_document(data)


def test_ids_that_stand_twice_are_seen():
    text = '{"1": {"class_type": "A", "inputs": {}}, "1": {"class_type": "B", "inputs": {}}}'
    assert parse_document(text).doubled == ("1",)
    assert parse_document('{"1": {"class_type": "A", "inputs": {"1": {"a": 1}, "a": 1}}}').doubled == ()


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(WorkflowError, match="cannot be read"):
            read_document(path)


def test_prototype_like_keys_are_names_like_others():
    document = parse_document('{"__proto__": {"class_type": "constructor", "inputs": {"__class__": 1}}}')
    assert list(document.content) == ["__proto__"]
