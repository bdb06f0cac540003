"""What the annotations of a state's fields allow: which kinds of value, and which annotations their parts have."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fastvideo_core.cache.base import is_stored
from fastvideo_core.errors import StateError

__all__ = ["allowed_classes", "check_literal", "field_types", "part_of", "taking_members"]

_ABSTRACT: dict[Any, tuple[type, ...]] = {Mapping: (dict,), Sequence: (list, tuple), float: (float, int)}
"""Annotations that take values of more classes than those derived from them."""


def field_types(cls: Any) -> Mapping[str, Any]:
    """Return the annotations of a dataclass's fields that are stored, by name.

    Raises:
        StateError: An annotation names something that does not exist at run time.
    """
    return _field_types(cls)


@cache
def _field_types(cls: Hashable) -> dict[str, Any]:
    kind = typing.cast("type[Any]", cls)
    try:
        hints = get_type_hints(kind)
    except NameError as error:
        raise StateError(f"the annotations of {kind.__qualname__} cannot be resolved: {error}") from error
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if is_stored(field)}


def allowed_classes(annotation: Any) -> list[type[Any]]:
    """Return the dataclasses that an annotation allows: those that it names, and all that derive from them."""
    return [cls for member in _members(annotation) for cls in _with_subclasses(get_origin(member) or member)]


def taking_members(annotation: Any, kind: type, path: str, *, length: int | None = None) -> tuple[Any, ...]:
    """Return the alternatives of an annotation that take a kind of value.

    Args:
        annotation: A resolved annotation.
        kind: Class of the value.
        path: Where the value is, for the error.
        length: Length of a tuple.

    Raises:
        StateError: None does.
    """
    found = _matching(annotation, kind, length)
    if not found:
        raise StateError(f"{path} holds a {kind.__qualname__}; its schema allows {_text(annotation)}")
    return found


def part_of(members: Sequence[Any], index: int) -> Any:
    """Return the annotation of an item of a list or tuple, or of a dict's keys (0) or values (1)."""
    parts = []
    for member in members:
        arguments = get_args(member)
        is_repeated = get_origin(member) in (list, Sequence) or (arguments and arguments[-1] is Ellipsis)
        parts.append(arguments[0 if is_repeated else index] if arguments else Any)
    return Union[tuple(parts)]  # noqa: UP007 - a union of types that are known only here


def check_literal(value: Any, members: Sequence[Any], path: str) -> None:
    """Refuse a value where only literals are allowed and it is none of them.

    Raises:
        StateError: With those that are allowed.
    """
    literals = [get_args(member) for member in members if get_origin(member) is Literal]
    if len(literals) == len(members) and not any(value in allowed for allowed in literals):
        raise StateError(f"{path} holds {value!r}; its schema allows {_text(Union[tuple(members)])}")  # noqa: UP007


@cache
def _matching(annotation: Hashable, kind: type, length: int | None) -> tuple[Any, ...]:
    return tuple(member for member in _members(annotation) if _takes(member, kind, length))


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, or the annotation itself."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for part in get_args(annotation) for member in _members(part))
    return (annotation,)


def _takes(member: Any, kind: type, length: int | None) -> bool:
    if member in (Any, object):
        return not dataclasses.is_dataclass(kind)
    arguments = get_args(member)
    if get_origin(member) is Literal:
        return any(type(value) is kind for value in arguments)
    wanted = get_origin(member) or member
    if wanted is tuple and kind is tuple and arguments and arguments[-1] is not Ellipsis:
        return len(arguments) == length
    return wanted in kind.__mro__ or kind in _ABSTRACT.get(wanted, ())


def _with_subclasses(cls: Any) -> list[type[Any]]:
    if not isinstance(cls, type) or cls in (Any, object):
        return []
    derived: list[type[Any]] = type.__subclasses__(cls)
    below = [sub for direct in derived for sub in _with_subclasses(direct)]
    return [cls, *below] if dataclasses.is_dataclass(cls) else below


def _text(annotation: Any) -> str:
    """Return an annotation as it is written."""
    text = annotation.__qualname__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    return text.replace("typing.", "")
