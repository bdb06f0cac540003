from __future__ import annotations

import re

import pytest

from fastvideo_core.deploy.document import parse_scalar, read_document
from fastvideo_core.errors import ConfigError


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        path = tmp_path / "deploy.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_document(path)

    return read_text


def test_values_and_lines_are_those_of_the_file(read):
    document = read("# a comment\na: 1\nb:\n  c: [x, 2.5]\n  d: {e: null}\n\nf: 'yes'\n")
    assert document.content == {"a": 1, "b": {"c": ["x", 2.5], "d": {"e": None}}, "f": "yes"}
    assert document.lines[("a",)] == 2
    assert document.lines[("b", "c")] == 4
    assert document.lines[("b", "d", "e")] == 5
    assert document.lines[("f",)] == 7
    assert document.lines[("b", "c", "1")] == 4


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n"])
def test_an_empty_file_is_an_empty_config(text, read):
    assert read(text).content == {}


def test_an_alias_is_what_it_stands_for(read):
    assert read("a: &x {b: 1}\nc: *x\n").content == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("a: 1\nb: [2\n", 3, "line 3: not YAML: "),
        ("a: 1\n\tb: 2\n", 2, "line 2: not YAML: "),
        ("a: 1\nb: 2\na: 3\n", 3, "line 3: has the key 'a' twice, first in line 1"),
        ("a:\n  b: 1\n  b: 1\n", 3, "line 3: has the key 'b' twice, first in line 2"),
        ("a: 1\nyes: 2\n", 2, "line 2: has the key True; allowed: text, in quotes"),
        ("- a\n- b\n", 1, "holds a list; allowed: keys with values"),
        ("just text\n", 1, "holds a str; allowed: keys with values"),
        ("a: !!python/object:os.system x\n", 1, "line 1: cannot be read: could not determine a constructor"),
        ("a: 1\nb: &x [*x]\n", 2, "line 2: refers to itself, or has too many values"),
        ("a: 2026-13-45\n", 1, "line 1: cannot be read: month must be in 1..12"),
        (b"a: \xff\n", None, "deploy.yaml cannot be read: not UTF-8"),
        ("a: " + "[" * 3000, None, "not YAML: it is nested too deeply"),
    ],
)
def test_what_is_no_config_is_told_with_its_line(text, line, why, read):
    with pytest.raises(ConfigError, match=re.escape(why)) as caught:
        read(text)
    assert caught.value.line == line


def test_a_bomb_of_aliases_is_refused(read):
    levels = "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(8))
    with pytest.raises(ConfigError, match="too many values"):
        read(f"a: &a [{', '.join('x' * 10)}]\n{levels}")


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="gone.yaml cannot be read: No such file"):
        read_document(tmp_path / "gone.yaml")
    (tmp_path / "large.yaml").write_text("#" * (1 << 20) + "\n")
    with pytest.raises(ConfigError, match="more than 1 MiB"):
        read_document(tmp_path / "large.yaml")


@pytest.mark.parametrize(
    ("text", "value"), [("4", 4), ("true", True), ("8GiB", "8GiB"), ("[1, 2]", [1, 2]), ("[", "[")]
)
def test_a_text_means_what_yaml_reads_in_it(text, value):
    assert parse_scalar(text) == value
