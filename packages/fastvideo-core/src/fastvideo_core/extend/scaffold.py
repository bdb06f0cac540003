"""Writes the beginning of a plugin package: one that works, and passes the contract suite as it is."""

from __future__ import annotations

import keyword
import re
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

import importlib_metadata

from fastvideo_core.errors import InputError, OutputError
from fastvideo_core.extend.hookspecs import HOOK_VERSION

__all__ = ["PLUGIN_KINDS", "write_plugin"]

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

PLUGIN_KINDS = {
    "model": ("card", "checkpoint", "loop", "model"),
    "interceptor": ("interceptor", "options"),
    "observer": ("observer", "options"),
    "transport": ("transport",),
}
"""Kinds that can be begun so, with the modules that they have besides `plugin`."""

_SUMMARIES = {
    "model": "A small model family for FastVideo.",
    "interceptor": "A step interceptor for FastVideo.",
    "observer": "An observer for FastVideo.",
    "transport": "A transport backend for FastVideo.",
}
_USES = {
    "model": (
        "A checkpoint to try it on, and a video:\n\n```bash\npython -m @MODULE@.checkpoint checkpoint\n"
        'fastvideo generate "a red circle" --card checkpoint\n```'
    ),
    "interceptor": "It is on where the deploy config names it:\n\n```yaml\nplugins:\n  @KIND@.@NAME@:\n```",
    "observer": "It is on where the deploy config names it:\n\n```yaml\nplugins:\n  @KIND@.@NAME@:\n```",
    "transport": "It is there where the deploy config names it:\n\n```yaml\nplugins:\n  @KIND@.@NAME@:\n```",
}


def write_plugin(kind: str, name: str, folder: Path) -> list[Path]:
    """Write a package into a folder that does not exist yet.

    Args:
        kind: One of `PLUGIN_KINDS`.
        name: Name of the plugin: lower case letters, digits and hyphens; the distribution is `fastvideo-NAME`.
        folder: Where.

    Returns:
        The files that were written.

    Raises:
        InputError: No such kind, or no such name.
        OutputError: The folder exists, or cannot be written.
    """
    if kind not in PLUGIN_KINDS:
        near = get_close_matches(kind, PLUGIN_KINDS, n=1, cutoff=0.4)
        raise InputError(
            "no such kind of plugin can be begun", field="kind", value=kind, allowed=", ".join(PLUGIN_KINDS),
            nearest=next(iter(near), None),
        )  # fmt: skip
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise InputError(
            "no name of a plugin", field="name", value=name, allowed="lower case letters, digits and single hyphens",
            nearest=_nearest_name(name),
        )  # fmt: skip
    if folder.exists():
        raise OutputError("exists already", field="output", value=str(folder), allowed="a new folder")
    words = _words(kind, name)
    written = []
    try:
        for target, template in _targets(kind, words["MODULE"]).items():
            path = folder / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_filled(template, words), encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", field="output", value=str(folder)) from error
    return written


def _words(kind: str, name: str) -> dict[str, str]:
    module = f"fastvideo_{name.replace('-', '_')}"
    words = {
        "KIND": kind,
        "NAME": name,
        "DIST": f"fastvideo-{name}",
        "MODULE": module,
        "CLASS": "".join(part.capitalize() for part in name.split("-")),
        "CORE": ".".join(importlib_metadata.version("fastvideo-core").split(".")[:2]),
        "HOOKS": HOOK_VERSION,
        "SUMMARY": _SUMMARIES[kind],
    }
    return words | {"USE": _replaced(_USES[kind], words)}


def _targets(kind: str, module: str) -> dict[str, str]:
    """Return which template makes which file."""
    source = f"src/{module}"
    targets = {
        "pyproject.toml": "common/pyproject.toml",
        "README.md": "common/README.md",
        "CHANGELOG.md": "common/CHANGELOG.md",
        ".gitignore": "common/gitignore",
        f"{source}/__init__.py": "common/init.py",
        f"{source}/py.typed": "",
        "tests/test_contract.py": f"{kind}/test_contract.py",
    }
    return targets | {f"{source}/{name}.py": f"{kind}/{name}.py" for name in ("plugin", *PLUGIN_KINDS[kind])}


def _filled(template: str, words: dict[str, str]) -> str:
    if not template:
        return ""
    text = files("fastvideo_core.extend").joinpath("templates", f"{template}.txt").read_text(encoding="utf-8")
    return _replaced(text, words)


def _replaced(text: str, words: dict[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda found: words[found[1]], text)


def _nearest_name(name: str) -> str | None:
    near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")
    return near if _NAME.fullmatch(near) and not keyword.iskeyword(near) else None
