from __future__ import annotations

import argparse

import pytest

from fastvideo_core.cli.parser import Parser, assignment, count, number
from fastvideo_core.errors import InputError, ParameterError


@pytest.fixture
def parser():
    parser = Parser(prog="p", description="", epilog="")
    parser.add_argument("text")
    parser.add_argument("-o", "--output")
    parser.add_argument("--shift", type=number)
    return parser


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("-7", -7), ("7.5", 7.5), ("1e3", 1000.0), ("seven", "seven"), ("", ""), ("9" * 30, int("9" * 30))],
)
def test_numbers_are_read_and_other_text_is_left_to_the_card(text, value):
    assert number(text) == value
    assert type(number(text)) is type(value)


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("12", 12)])
def test_counts(text, value):
    assert count(text) == value


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "", "²"])
def test_what_is_no_count_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="whole number of at least 1"):
        count(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1", ("a", 1)),
        ("a=1.5", ("a", 1.5)),
        ("a=true", ("a", True)),
        ("a=null", ("a", None)),
        ("a=[1, 2]", ("a", [1, 2])),
        ('a="1"', ("a", "1")),
        ("a=euler", ("a", "euler")),
        ("a=b=c", ("a", "b=c")),
        ("a=", ("a", "")),
    ],
)
def test_assignments_hold_json_or_text(text, value):
    assert assignment(text) == value


@pytest.mark.parametrize("text", ["a", "", "=1"])
def test_what_is_no_assignment_is_refused(text):
    with pytest.raises(ParameterError, match="allowed: name=value"):
        assignment(text)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["x", "-o", "f"], {"output": "f"}),
        (["x", "-of"], {"output": "f"}),
        (["x", "--output=f"], {"output": "f"}),
        (["x", "--shift", "-1"], {"shift": -1}),
        (["x", "--shift=-1e3"], {"shift": -1000.0}),
        (["-a text with spaces"], {"text": "-a text with spaces"}),
        (["--", "--unknown"], {"text": "--unknown"}),
    ],
)
def test_what_argparse_reads_is_not_taken_for_an_unknown_flag(arguments, expected, parser):
    parsed = vars(parser.parse(arguments))
    assert {name: parsed[name] for name in expected} == expected


@pytest.mark.parametrize("flag", ["--outputs", "--out", "-x", "--shif=1"])
def test_shortened_and_unknown_flags_are_refused(flag, parser):
    with pytest.raises(InputError, match=f"p has no flag {flag.partition('=')[0]}"):
        parser.parse(["x", flag])


@pytest.mark.parametrize(
    ("flag", "near"), [("--steps", "--num-steps"), ("--sets", "--set"), ("--num-step", "--num-steps")]
)
def test_an_unknown_flag_names_the_one_that_was_meant(flag, near, parser):
    parser.add_argument("--set")
    parser.add_argument("--num-steps", type=number)
    with pytest.raises(InputError, match=f"p has no flag {flag}; nearest: {near}$"):
        parser.parse(["x", flag, "4"])
