"""No file names a machine's folders, a package registry's host, or an entry of an issue list."""

from __future__ import annotations

import re

import pytest

# The sources of these patterns do not match themselves, so this file needs no exception.
PATTERNS = {
    "a folder of one machine": r"(?<![\w.:/~-])/(?:home|root|Users|workspace|work|mnt|srv)/\w|\b[A-Z]:\\Users\b",
    "a registry's host": (
        r"\bpypi\.org|pythonhosted\.org|download\.pytorch\.org|registry\.npmjs|deb\.debian\.org|[/.]crates\.io"
        r"|proxy\.golang\.org|conda\.anaconda\.org|--(?:extra-)?index-ur[l]|--find-link[s]"
    ),
    "an issue's number": r"\b[Ii]ssues? #?\d",
}


def find_names(text):
    """Yield (line number, kind) for each foreign name in a text."""
    for number, line in enumerate(text.splitlines(), start=1):
        for kind, pattern in PATTERNS.items():
            if re.search(pattern, line):
                yield number, kind


def read_text(path):
    """Return a file's text, or nothing for a binary file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def test_no_file_has_a_foreign_name(files, root, assert_none):
    assert_none(
        "foreign-name",
        (
            (path.relative_to(root).as_posix(), f"line {number} names {kind}")
            for path in files
            for number, kind in find_names(read_text(path))
        ),
    )


@pytest.mark.parametrize(
    "line",
    [
        "see " + "/ho" + "me/somebody/file",
        "open('" + "/wo" + "rk/main/x')",
        "C:" + "\\Users\\somebody",
        "https://py" + "pi.org/simple",
        "pip install " + "--index-" + "url x",
        "fixes iss" + "ue 12",
    ],
)
def test_a_foreign_name_is_caught(line):
    assert [number for number, _ in find_names(f"fine\n{line}\n")] == [2]


@pytest.mark.parametrize("line", ["/tmp/x", "/usr/share/doc", "~/work/x", "a/home/b", "https://host.example/work/x"])
def test_other_paths_are_fine(line):
    assert list(find_names(line)) == []
