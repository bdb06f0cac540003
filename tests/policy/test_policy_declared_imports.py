"""What a package's sources and tests import, its pyproject.toml declares."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib

import importlib_metadata
import pytest


def imported(source):
    """Return the top-level names that a source imports, also inside functions and under TYPE_CHECKING."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names)


def distributions(name):
    """Return the normalised names of the distributions that bring an import name; the name itself if none does."""
    return {normal(distribution) for distribution in all_distributions().get(name, [name])}


@functools.cache
def all_distributions():
    """Return the installed distributions by the import names that they bring."""
    return importlib_metadata.packages_distributions()


def normal(requirement):
    """Return a requirement's normalised name, without version and extras."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement).group()).lower()


def undeclared(sources, needs):
    """Return the imported names whose distribution is not among the needs."""
    declared = {normal(need) for need in needs}
    names = set().union(*map(imported, sources))
    return sorted(name for name in names if not distributions(name) & declared)


def needs_of(folder, *, for_tests):
    """Return what a package declares: to run, its extras included, and for its tests the `test` groups too."""
    table = tomllib.loads((folder / "pyproject.toml").read_text())
    needs = [table["project"]["name"], *table["project"]["dependencies"]]
    for extra in table["project"].get("optional-dependencies", {}).values():
        needs += extra
    if for_tests:
        root = tomllib.loads((folder.parents[1] / "pyproject.toml").read_text())
        needs += [*table["dependency-groups"]["test"], *root["dependency-groups"]["test"]]
    return needs


@pytest.mark.parametrize("part", ["src", "tests"])
def test_every_import_is_declared(part, packages, files, assert_none):
    assert_none(
        "declared-imports",
        (
            (f"{folder.name}/{part}", name)
            for folder in packages
            for name in undeclared(
                [path.read_text() for path in files if path.suffix == ".py" and path.is_relative_to(folder / part)],
                needs_of(folder, for_tests=part == "tests"),
            )
        ),
    )


def test_an_undeclared_import_is_caught():
    source = "import os\nimport yaml\ndef f():\n    from PIL import Image\n    import numpy.linalg\n"
    assert undeclared([source], ["numpy>=1.26"]) == ["PIL", "yaml"]
    assert undeclared([source], ["numpy", "pillow>=10", "PyYAML"]) == []
