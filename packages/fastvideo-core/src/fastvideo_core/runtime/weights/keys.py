"""Renaming of tensor names, from the layout of a file to that of a module.

A rename is a plain function. It must not send two names of a file to one name of the module; everything that goes
wrong is reported by the name in the file, which is the one that people can look up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from fastvideo_core.errors import CardError, CheckpointError

Rename = Callable[[str], str]
"""From a name in a file to a name in a module."""

NamePredicate = Callable[[str], bool]


def keep_name(name: str) -> str:
    """Rename nothing: the file has the module's own names."""
    return name


def no_name(_name: str) -> bool:
    """Match nothing."""
    return False


def rename_by_rules(rules: Sequence[tuple[str, str]]) -> Rename:
    r"""Return a rename that applies regular expressions one after the other.

    Args:
        rules: Pairs of an expression and what its matches become, as for `re.sub`: `(r"^vision_model\.", "")`.

    Raises:
        CardError: If an expression or its replacement is not valid.
    """
    compiled = [(_compile(pattern, replacement), replacement) for pattern, replacement in rules]

    def rename(name: str) -> str:
        for pattern, replacement in compiled:
            name = pattern.sub(replacement, name)
        return name

    return rename


def names_matching(patterns: Iterable[str]) -> NamePredicate:
    """Return a predicate that is true for names in which one of the regular expressions is found.

    Raises:
        CardError: If an expression is not valid.
    """
    compiled = [_compile(pattern, "") for pattern in patterns]
    return lambda name: any(pattern.search(name) for pattern in compiled)


def rename_all(names: Iterable[str], rename: Rename) -> dict[str, str]:
    """Return the file's name for every name that the module will see.

    Raises:
        CheckpointError: If two names of the file become one.
    """
    originals: dict[str, str] = {}
    for name in names:
        target = rename(name)
        if target in originals:
            raise CheckpointError(f"the key map sends both {originals[target]!r} and {name!r} to {target!r}")
        originals[target] = name
    return originals


def _compile(pattern: str, replacement: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
        # Compiles the replacement against the pattern's groups; a match is not needed for that.
        compiled.sub(replacement, "")
    except (re.error, IndexError) as error:
        raise CardError(f"not a valid rule: {error}", field="key_map", value=(pattern, replacement)) from error
    return compiled
