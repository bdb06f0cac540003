"""What each node that only computes makes of its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from fastvideo_comfy.fold.expression import ExpressionError, evaluate_expression

__all__ = ["FOLDS", "SWITCH", "Fold", "FoldError"]

Fold = Callable[[Mapping[str, Any]], tuple[Any, ...]]
"""From a node's inputs, all of them values, to its outputs."""

SWITCH = "ComfySwitchNode"


class FoldError(ValueError):
    """A node's value cannot be computed; names the input."""

    def __init__(self, message: str, *, input_name: str = "", got: Any = None, allowed: str = "") -> None:
        self.input_name = input_name
        self.got = got
        self.allowed = allowed
        super().__init__(message)


def _primitive(kinds: tuple[type, ...], allowed: str) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    def fold(inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        value = inputs.get("value")
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise FoldError("not a value of its type", input_name="value", got=value, allowed=allowed)
        return (value,)

    return fold


def _whole(inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    value = inputs.get("value")
    if isinstance(value, float) and value.is_integer():
        return (int(value),)
    if not isinstance(value, int) or isinstance(value, bool):
        raise FoldError("not a whole number", input_name="value", got=value, allowed="an integer")
    return (value,)


def _maths(inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Give the value as float, rounded towards the ground as int, and as truth."""
    text = inputs.get("expression")
    if not isinstance(text, str):
        raise FoldError("no expression", input_name="expression", got=text, allowed="text")
    values = {}
    for name, value in inputs.items():
        if name == "expression" or value is None:
            continue
        if not isinstance(value, (int, float)):
            raise FoldError("not a number", input_name=name, got=value, allowed="a number")
        values[name.removeprefix("values.")] = value
    try:
        result = evaluate_expression(text, values)
    except ExpressionError as error:
        raise FoldError(str(error), input_name="expression", got=text) from None
    if not math.isfinite(result):
        raise FoldError("the expression has no finite value", input_name="expression", got=text)
    return (float(result), int(result), bool(result))


def _texts(inputs: Mapping[str, Any], *names: str) -> list[str]:
    texts = []
    for name in names:
        value = inputs.get(name, "")
        if not isinstance(value, str):
            raise FoldError("not a text", input_name=name, got=value, allowed="text")
        texts.append(value)
    return texts


def _join(inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    first, second, delimiter = _texts(inputs, "string_a", "string_b", "delimiter")
    return (delimiter.join((first, second)),)


def _replace(inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    text, find, replace = _texts(inputs, "string", "find", "replace")
    return (text.replace(find, replace),)


_TEXT = _primitive((str,), "text")

FOLDS: Mapping[str, Fold] = {
    "PrimitiveInt": _whole,
    "PrimitiveFloat": _primitive((int, float), "a number"),
    "PrimitiveBoolean": _primitive((bool,), "true or false"),
    "PrimitiveString": _TEXT,
    "PrimitiveStringMultiline": _TEXT,
    "ComfyMathExpression": _maths,
    "StringConcatenate": _join,
    "StringReplace": _replace,
}
"""The compiler's own, by node type; the switch is apart, being lazy."""
