"""`node.input=value` as people write it."""

from __future__ import annotations

import json
from typing import Any

from fastvideo_core.errors import ParameterError

__all__ = ["parse_place", "parse_value", "parse_values"]

_FORM = "NODE.INPUT=VALUE, for instance 3.seed=7; a node in a subgraph is OUTER:INNER"


def parse_place(text: str) -> tuple[str, str]:
    """Return node and input of `node.input`; the input's name may itself have dots.

    Raises:
        ParameterError: It is of another form.
    """
    node, dot, name = text.strip().partition(".")
    if not dot or not node or not name:
        raise ParameterError("not a place in the workflow", field="set", value=text, allowed=_FORM)
    return node, name


def parse_values(texts: list[str]) -> dict[tuple[str, str], Any]:
    """Return values by node and input; a value is JSON, or text where it is no JSON.

    Raises:
        ParameterError: One is of another form, or two set the same input.
    """
    values: dict[tuple[str, str], Any] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        if not equals:
            raise ParameterError("no value", field="set", value=text, allowed=_FORM)
        key = parse_place(place)
        if key in values:
            raise ParameterError("set twice", field=place, value=value, allowed="once")
        values[key] = parse_value(value)
    return values


def parse_value(text: str) -> Any:
    """Return a value that is JSON, or text where it is no JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    # Numbers that JSON cannot hold, lists and objects are no values of an input.
    return value if isinstance(value, (bool, int, str)) or (isinstance(value, float) and value - value == 0) else text
