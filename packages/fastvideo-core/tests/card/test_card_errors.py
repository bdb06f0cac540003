from __future__ import annotations

import inspect

import pytest

from fastvideo_core import errors
from fastvideo_core.errors import FastVideoError, InputError, ParameterError, describe_failure

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if kind.__module__ == errors.__name__ and not issubclass(kind, Warning)
]


def test_the_tree_in_the_docstring_is_the_tree():
    drawn = {}
    path = []
    for line in errors.__doc__.splitlines()[2:]:
        if not line.strip():
            break
        name = line.replace("├──", "   ").replace("└──", "   ").replace("│", " ").split()[0]
        depth = line.index(name) // 4
        path = [*path[: depth - 1], name]
        drawn[name] = path[-2] if len(path) > 1 else "Exception"
    assert drawn == {kind.__name__: kind.__base__.__name__ for kind in KINDS}


def test_bad_input_ends_with_two_and_failures_with_one():
    assert {kind.__name__: kind.exit_code for kind in KINDS} == {
        kind.__name__: 2 if issubclass(kind, InputError) else 1 for kind in KINDS
    }


def test_a_message_says_what_was_got_and_what_is_allowed():
    error = ParameterError("off the grid", field="num_frames", value=10, allowed="4k + 1", nearest=9)
    assert str(error) == "num_frames=10: off the grid; allowed: 4k + 1; nearest: 9"
    assert (error.field, error.value, error.allowed, error.nearest) == ("num_frames", 10, "4k + 1", 9)


class Wide:
    def __repr__(self):
        return "[[0 0]\n [0 0]]"


@pytest.mark.parametrize(("value", "text"), [(Wide(), "x=[[0 0] [0 0]]: bad"), ("a" * 900, "… (902 characters): bad")])
def test_a_message_stays_one_short_line(value, text):
    message = str(InputError("bad", field="x", value=value))
    assert text in message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FastVideoError("plain"), "plain"),
        (ValueError("two\nlines"), "ValueError: two lines"),
        (KeyError(), "KeyError"),
    ],
)
def test_any_failure_is_described_in_one_line(error, text):
    assert describe_failure(error) == text
