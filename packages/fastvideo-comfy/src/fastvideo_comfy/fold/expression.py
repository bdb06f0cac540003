"""The expressions of ComfyUI's maths node: numbers, names, operators and a few functions; nothing else runs.

The language is Python's expression syntax. It is parsed, not executed, and the size of numbers and of the expression is
bounded, so that a file cannot keep the compiler busy.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["ExpressionError", "evaluate_expression"]

_MAX_LENGTH = 4096
_MAX_NODES = 400
_MAX_MAGNITUDE = 1e18
_MAX_POWER = 64


class ExpressionError(ValueError):
    """An expression that cannot be evaluated."""


def _power(base: float, exponent: float) -> Any:
    if abs(exponent) > _MAX_POWER:
        raise ExpressionError(f"the power {exponent} is out of bounds; allowed: -{_MAX_POWER} to {_MAX_POWER}")
    return base**exponent


def _shift(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def shift(value: Any, count: Any) -> Any:
        if not 0 <= count <= _MAX_POWER:
            raise ExpressionError(f"the shift {count} is out of bounds; allowed: 0 to {_MAX_POWER}")
        return function(value, count)

    return shift


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: _shift(operator.lshift),
    ast.RShift: _shift(operator.rshift),
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "int": int,
    "float": float,
    "bool": bool,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "max": max,
    "min": min,
    "round": round,
    "sqrt": math.sqrt,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "exp": math.exp,
    "pow": _power,
}
_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e}


def evaluate_expression(text: str, values: Mapping[str, float]) -> Any:
    """Evaluate an expression.

    Args:
        text: The expression.
        values: Numbers by name.

    Returns:
        An int, a float or a bool.

    Raises:
        ExpressionError: It is no expression of this language, or has no finite value.
    """
    if len(text) > _MAX_LENGTH:
        raise ExpressionError(f"the expression has {len(text)} characters; allowed: {_MAX_LENGTH}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"not an expression: {error.__class__.__name__}") from None
    if sum(1 for _ in ast.walk(tree)) > _MAX_NODES:
        raise ExpressionError(f"the expression has too many parts; allowed: {_MAX_NODES}")
    names = {**_CONSTANTS, **values}
    try:
        return _bounded(_evaluate(tree.body, names))
    except (ArithmeticError, TypeError, ValueError, RecursionError) as error:
        raise error if isinstance(error, ExpressionError) else ExpressionError(f"it has no value: {error}") from None


def _bounded(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if not isinstance(value, (int, float)) or not abs(value) <= _MAX_MAGNITUDE:
        raise ExpressionError(f"{str(value)[:40]} is no number up to {_MAX_MAGNITUDE:g}")
    return value


def _evaluate(node: ast.expr, names: Mapping[str, float]) -> Any:
    handler = _HANDLERS.get(type(node))
    if handler is None:
        raise ExpressionError(f"{type(node).__name__} is not part of the expressions")
    return _bounded(handler(node, names))


def _name(node: ast.Name, names: Mapping[str, float]) -> Any:
    if node.id not in names:
        raise ExpressionError(f"{node.id!r} is not connected; connected: {', '.join(sorted(names))}")
    return names[node.id]


def _binary(node: ast.BinOp, names: Mapping[str, float]) -> Any:
    function = _BINARY.get(type(node.op))
    if function is None:
        raise ExpressionError(f"{type(node.op).__name__} is not part of the expressions")
    return function(_evaluate(node.left, names), _evaluate(node.right, names))


def _boolean(node: ast.BoolOp, names: Mapping[str, float]) -> Any:
    is_and, value = isinstance(node.op, ast.And), None
    for part in node.values:
        value = _evaluate(part, names)
        if bool(value) != is_and:
            break
    return value


def _compare(node: ast.Compare, names: Mapping[str, float]) -> bool:
    left = _evaluate(node.left, names)
    for kind, part in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(part, names)
        function = _COMPARE.get(type(kind))
        if function is None:
            raise ExpressionError(f"{type(kind).__name__} is not part of the expressions")
        if not function(left, right):
            return False
        left = right
    return True


def _call(node: ast.Call, names: Mapping[str, float]) -> Any:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in _FUNCTIONS or node.keywords:
        raise ExpressionError(f"no such function {name!r}; there are {', '.join(sorted(_FUNCTIONS))}")
    return _FUNCTIONS[name](*(_evaluate(argument, names) for argument in node.args))


_HANDLERS: Mapping[type[ast.expr], Callable[[Any, Mapping[str, float]], Any]] = {
    ast.Constant: lambda node, names: node.value,  # noqa: ARG005 - all handlers are called alike
    ast.Name: _name,
    ast.BinOp: _binary,
    ast.UnaryOp: lambda node, names: _UNARY[type(node.op)](_evaluate(node.operand, names)),
    ast.BoolOp: _boolean,
    ast.Compare: _compare,
    ast.IfExp: lambda node, names: _evaluate(node.body if _evaluate(node.test, names) else node.orelse, names),
    ast.Call: _call,
}
