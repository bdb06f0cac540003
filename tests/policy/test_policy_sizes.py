"""Files stay under 500 lines and functions under 60."""

from __future__ import annotations

import ast

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60


def find_functions(source):
    """Yield (name, lines) for each function, decorators and docstring included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield node.name, (node.end_lineno or node.lineno) - first + 1


def test_files_are_short(sources, root, assert_none):
    sizes = {path.relative_to(root).as_posix(): len(path.read_text().splitlines()) for path in sources}
    assert_none("file-lines", ((where, f"{size} lines") for where, size in sizes.items() if size >= MAX_FILE_LINES))


def test_functions_are_short(sources, root, assert_none):
    assert_none(
        "function-lines",
        (
            (f"{path.relative_to(root).as_posix()}::{name}", f"{size} lines")
            for path in sources
            for name, size in find_functions(path.read_text())
            if size >= MAX_FUNCTION_LINES
        ),
    )


def test_the_count_takes_in_decorators_and_nested_functions():
    source = "@wrap\n@wrap\ndef outer():\n    def inner():\n        return 1\n    return inner\n"
    assert dict(find_functions(source)) == {"outer": 6, "inner": 2}


def test_a_long_function_is_over_the_limit():
    source = "async def long():\n" + "    x = 1\n" * MAX_FUNCTION_LINES
    assert dict(find_functions(source))["long"] >= MAX_FUNCTION_LINES
