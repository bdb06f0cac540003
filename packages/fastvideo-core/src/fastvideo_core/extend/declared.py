"""Which hooks a plugin implements, read from its source: what is not on is not imported, and yet can be listed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib_metadata import EntryPoint

__all__ = ["declared_hooks"]

_MARK = "hookimpl"


def declared_hooks(entry: EntryPoint) -> tuple[str, ...]:
    """Return the hooks that a plugin's source marks with `hookimpl`, sorted; none where the source is not readable.

    A module's hooks are its functions; those of an object in it are methods of the class of that name. Hooks that are
    made in another way than by such a decorator are not seen.
    """
    path = _source_of(entry.module)
    if path is None:
        return ()
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()
    if entry.attr:
        body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == entry.attr), body)
    return tuple(sorted(node.name for node in _functions(body) if any(map(_is_mark, node.decorator_list))))


def _source_of(module: str) -> Path | None:
    """Return the file of a module. Nothing is imported: to ask for a submodule's spec would import its package."""
    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
        for name in rest:
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = _submodule(spec, name)
    except (ImportError, AttributeError, ValueError):
        return None
    if spec is None or not spec.has_location or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _submodule(package: ModuleSpec, name: str) -> ModuleSpec | None:
    assert package.submodule_search_locations is not None, "it is a package"
    return PathFinder.find_spec(f"{package.name}.{name}", list(package.submodule_search_locations))


def _functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    return (node for node in body if isinstance(node, ast.FunctionDef))


def _is_mark(decorator: ast.expr) -> bool:
    """Tell whether a decorator is `hookimpl`, bare, called, or reached through a module."""
    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", None)) == _MARK
