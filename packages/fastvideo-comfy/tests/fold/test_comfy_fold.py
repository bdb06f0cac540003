"""Folding: expressions against Python's own values, lazy switches, depth, cycles."""

from __future__ import annotations

import math
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastvideo_comfy.fold import Folder
from fastvideo_comfy.fold.expression import ExpressionError, evaluate_expression
from fastvideo_comfy.graph import Link, flatten, parse_document


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("floor(a * b) + 1", {"a": 5, "b": 16}, 81),
        ("max(5, round(a * 24)) + (5 - (max(5, round(a * 24)) % 17)) % 17", {"a": 2}, 56),
        ("a & ~1", {"a": 37}, 36),
        ("a & -8", {"a": 37}, 32),
        ("(a // 32) * 32", {"a": 100}, 96),
        ("4 * ceil((a - b * c + c - 1) / 4) + 1", {"a": 81, "b": 3, "c": 2}, 77),
        ("a % b if b > 0 else 0", {"a": 7, "b": 0}, 0),
        ("(a % 4 == 1) and ((b - 1) % 4 == 0)", {"a": 5, "b": 9}, True),
        ("a > 2048", {"a": 2048}, False),
        ("1 < a < 3", {"a": 2}, True),
        ("ceil(1.5 * log2(max(a, b))) + 2", {"a": 1024, "b": 512}, 17),
        ("not a or b", {"a": 1, "b": 4}, 4),
        ("round (a * 24)", {"a": 1.5}, 36),
        ("pi", {}, math.pi),
    ],
)
def test_expressions_have_their_values(text, values, expected):
    got = evaluate_expression(text, values)
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    "text",
    [
        "", "a +", "b", "a.real", "a[0]", "__import__('os')", "(lambda: 1)()", "a / 0", "10 ** 99",
        "1 << 999", "'x' * 9",
        "[1]", "a if", "f'{a}'", "max(*a)", "max(a, key=1)", "open('x')", "sqrt(-1)",
        "1e300 * 1e300",
        "9" * 5000, "(" * 300 + "1" + ")" * 300, "+".join("a" * 1000), "log(0)", "1_000_000_000_000_000_000_0",
        "a @ a", "None",
        "min()", "~1.5",
    ],
)  # fmt: skip
def test_everything_else_is_refused(text):
    with pytest.raises(ExpressionError):
        evaluate_expression(text, {"a": 3})


OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "/": operator.truediv,
    "<": operator.lt,
    ">=": operator.ge,
    "&": operator.and_,
    "|": operator.or_,
}


@given(st.integers(-1000, 1000), st.integers(1, 50), st.sampled_from(sorted(OPERATORS)))
def test_operators_are_pythons(a, b, sign):
    assert evaluate_expression(f"a {sign} b", {"a": a, "b": b}) == OPERATORS[sign](a, b)


def build(nodes):
    flat = flatten(
        parse_document({key: {"class_type": kind, "inputs": inputs} for key, (kind, inputs) in nodes.items()})
    )
    return flat, Folder(flat)


def test_the_other_side_of_a_switch_is_never_looked_at():
    flat, folder = build(
        {
            "s": ("ComfySwitchNode", {"switch": ["t", 0], "on_true": ["a", 0], "on_false": ["bad", 0]}),
            "t": ("PrimitiveBoolean", {"value": True}),
            "a": ("LoadImage", {}),
            "bad": ("ComfyMathExpression", {"expression": "1 / 0"}),
        }
    )
    assert folder.link(Link("s", 0)).source == Link("a", 0)
    assert folder.folded == {"s", "t"}
    assert flat.problems == []


def test_a_switch_on_what_runs_is_a_problem():
    flat, folder = build(
        {"s": ("ComfySwitchNode", {"switch": ["a", 0], "on_true": 1, "on_false": 2}), "a": ("LoadImage", {})}
    )
    assert folder.link(Link("s", 0)).is_broken
    assert [(one.node, one.input) for one in flat.problems] == [("s", "switch")]


def test_values_may_depend_on_each_other_ten_thousand_deep():
    nodes = {
        str(k): ("ComfyMathExpression", {"expression": "a + 1", "values.a": [str(k - 1), int(k > 1)]})
        for k in range(1, 10_000)
    }
    _, folder = build({"0": ("PrimitiveInt", {"value": 0}), **nodes})
    assert folder.link(Link("9999", 1)).value == 9999


def test_a_cycle_ends():
    flat, folder = build(
        {
            "1": ("ComfyMathExpression", {"expression": "a", "values.a": ["2", 0]}),
            "2": ("ComfyMathExpression", {"expression": "a", "values.a": ["1", 0]}),
        }
    )
    assert folder.link(Link("1", 0)).is_broken
    assert "cycle" in {one.code for one in flat.problems}


@pytest.mark.parametrize(
    ("kind", "inputs", "slot", "expected"),
    [
        ("StringConcatenate", {"string_a": "x", "string_b": "y", "delimiter": ", "}, 0, "x, y"),
        ("StringReplace", {"string": "aXb", "find": "X", "replace": "-"}, 0, "a-b"),
        ("ComfyMathExpression", {"expression": "a / 2", "values.a": 5}, 1, 2),
        ("ComfyMathExpression", {"expression": "a / 2", "values.a": 5}, 0, 2.5),
        ("ComfyMathExpression", {"expression": "a - 5", "values.a": 5}, 2, False),
        ("PrimitiveFloat", {"value": 2}, 0, 2),
    ],
)
def test_nodes_fold(kind, inputs, slot, expected):
    flat, folder = build({"1": (kind, inputs)})
    assert folder.link(Link("1", slot)).value == expected
    assert flat.problems == []


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("PrimitiveInt", {"value": 1.5}), ("PrimitiveInt", {"value": True}), ("PrimitiveBoolean", {"value": "yes"}),
        ("ComfyMathExpression", {"expression": 5}), ("ComfyMathExpression", {"expression": "a", "values.a": "x"}),
        ("StringReplace", {"string": 1}), ("PrimitiveString", {}), ("PrimitiveInt", {"value": []}),
    ],
)  # fmt: skip
def test_wrong_values_name_the_node(kind, inputs):
    flat, folder = build({"1": (kind, inputs)})
    assert folder.link(Link("1", 0)).is_broken
    assert [one.node for one in flat.problems] == ["1"]
