"""What the policy checks look at, and the one list of exceptions."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def packages(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob("packages/*/pyproject.toml"))


@pytest.fixture(scope="session")
def files(root: Path) -> list[Path]:
    """Every file that belongs to the repository: known to git, or new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=30)
    return [path for path in (root / line for line in sorted(set(listing.stdout.splitlines()))) if path.is_file()]


@pytest.fixture(scope="session")
def sources(files: list[Path], root: Path) -> list[Path]:
    """The Python files of the packages' src folders."""
    packaged = {path for path in files if path.relative_to(root).parts[::2][:2] == ("packages", "src")}
    return sorted(path for path in packaged if path.suffix == ".py")


@pytest.fixture
def assert_none(root: Path) -> Callable[[str, Iterable[tuple[str, str]]], None]:
    """Assert that a policy's findings, pairs of place and explanation, are just its listed exceptions."""

    def check(policy: str, findings: Iterable[tuple[str, str]]) -> None:
        listed = tomllib.loads((root / "tests/policy/exceptions.toml").read_text()).get("allow", [])
        allowed = [entry["where"] for entry in listed if entry["policy"] == policy and entry["reason"]]
        used: set[str] = set()
        unexpected = []
        for where, what in findings:
            matches = {pattern for pattern in allowed if fnmatch(where, pattern)}
            used |= matches
            if not matches:
                unexpected.append(f"{where}: {what}")
        assert not unexpected, f"{policy}:\n  " + "\n  ".join(unexpected)
        assert used == set(allowed), f"{policy}: no longer needed: {sorted(set(allowed) - used)}"

    return check
