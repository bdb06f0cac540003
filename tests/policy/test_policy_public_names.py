"""What a module lists in `__all__` exists, and every package says what it offers."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import types

import pytest


def listed_names(source):
    """Return the content of a source's `__all__`, or None where it has none."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == "__all__" for target in node.targets):
            return list(ast.literal_eval(node.value))
    return None


def find_faults(names, module):
    """Yield what is wrong with a list of public names."""
    yield from (f"{name} is listed twice" for name in sorted({name for name in names if names.count(name) > 1}))
    yield from (f"{name} is private" for name in names if name.startswith("_") and not name.startswith("__"))
    yield from (f"{name} does not exist" for name in names if not hasattr(module, name) and not has_part(module, name))


def has_part(module, name):
    """Say whether a package has a module of that name."""
    return hasattr(module, "__path__") and importlib.util.find_spec(f"{module.__name__}.{name}") is not None


def module_name(path):
    """Return the dotted name of a source file below src/."""
    parts = path.with_suffix("").parts
    dotted = parts[parts.index("src") + 1 :]
    return ".".join(dotted[:-1] if dotted[-1] == "__init__" else dotted)


def test_listed_names_exist(sources, root, assert_none):
    lists = {path: listed_names(path.read_text()) for path in sources}
    assert_none(
        "public-names",
        (
            (path.relative_to(root).as_posix(), fault)
            for path, names in lists.items()
            if names
            for fault in find_faults(names, importlib.import_module(module_name(path)))
        ),
    )


def test_every_package_lists_its_public_names(packages, assert_none):
    fronts = {folder.name: folder / "src" / folder.name.replace("-", "_") / "__init__.py" for folder in packages}
    assert_none(
        "package-front",
        ((name, "no __all__") for name, path in fronts.items() if listed_names(path.read_text()) is None),
    )


@pytest.mark.parametrize("name", ["missing", "_private"])
def test_a_wrong_name_is_caught(name):
    module = types.SimpleNamespace(present=1, _private=2)
    assert list(find_faults(["present"], module)) == []
    assert len(list(find_faults(["present", name], module))) == 1


def test_a_name_listed_twice_is_caught():
    assert list(find_faults(["a", "a"], types.SimpleNamespace(a=1))) == ["a is listed twice"]


def test_a_missing_list_is_seen():
    assert listed_names("x = 1") is None
    assert listed_names("__all__ = ['x']") == ["x"]
