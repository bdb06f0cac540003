"""What a plugin needs, compared with what is there: versions of distributions, and of the hooks."""

from __future__ import annotations

from typing import Any

import importlib_metadata

from fastvideo_core.extend.hookspecs import HOOK_VERSION

__all__ = ["hook_problem", "requirement_problem"]


def requirement_problem(distribution: Any) -> str | None:
    """Return what a distribution requires and is not installed, or not in such a version; None if all is there.

    Args:
        distribution: A distribution of `importlib_metadata`; None, or one that says nothing, requires nothing.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    for text in getattr(distribution, "requires", None) or ():
        try:
            needed = Requirement(text)
        except InvalidRequirement:
            return f"its distribution states a requirement that cannot be read: {text!r}"
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib_metadata.version(needed.name)
        except importlib_metadata.PackageNotFoundError:
            return f"it needs {_text(needed)}, which is not installed"
        if not needed.specifier.contains(version, prereleases=True):
            return f"it needs {_text(needed)}; installed: {needed.name} {version}"
    return None


def hook_problem(stated: Any) -> str | None:
    """Return why a module was not written for these hooks; None if it was.

    Args:
        stated: Its `HOOK_VERSIONS`, a version range; None stands for any of the first major version.
    """
    if stated is None:
        return None if HOOK_VERSION.startswith("1.") else f"it was written for hooks of version 1; here: {HOOK_VERSION}"
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        wanted = SpecifierSet(stated)
    except (InvalidSpecifier, TypeError, AttributeError):
        return f"its HOOK_VERSIONS is {stated!r}; allowed: a version range such as '>=1.0,<2'"
    if HOOK_VERSION not in wanted:
        return f"it was written for hooks {stated}; this fastvideo-core has {HOOK_VERSION}"
    return None


def _text(needed: Any) -> str:
    return f"{needed.name}{needed.specifier}"
