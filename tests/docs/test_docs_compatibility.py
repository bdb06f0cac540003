"""The table of versions that work together says what the packages themselves say."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from fastvideo_core.extend import HOOK_VERSION

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guide" / "compatibility.md"


def stated(folder):
    """Return the row of a package as its own files say it."""
    table = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    (core,) = [need for need in table["dependencies"] if need.startswith("fastvideo-core")]
    modules = table.get("entry-points", {}).get("fastvideo.plugins", {}).values()
    hooks = {hook_versions(folder / "src" / f"{module.replace('.', '/')}.py") for module in modules}
    assert len(hooks) <= 1, f"{folder.name} was written for several versions of the hooks"
    assert None not in hooks, f"a plugin of {folder.name} does not state HOOK_VERSIONS"
    row = (table["name"], table["version"], core.removeprefix("fastvideo-core"), "".join(hooks) or "-")
    return (*row, table["requires-python"])


def hook_versions(path):
    """Return what a plugin's module states as HOOK_VERSIONS."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "HOOK_VERSIONS":
            return node.value.value
    return None


def rows_of(text):
    """Return the rows of the table."""
    return [
        tuple(cell.strip() for cell in line.strip("|").split("|")) for line in re.findall(r"^\| fast.*$", text, re.M)
    ]


def plugins(packages):
    return [folder for folder in packages if folder.name != "fastvideo-core"]


@pytest.fixture
def packages():
    return sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))


def test_every_packages_row_is_there(packages):
    missing = {stated(folder) for folder in plugins(packages)} - set(rows_of(PAGE.read_text()))
    assert not missing, f"not in {PAGE.name}, or otherwise: {sorted(missing)}"


def test_no_version_has_two_rows_and_no_row_is_of_nobody(packages):
    rows = rows_of(PAGE.read_text())
    assert len({row[:2] for row in rows}) == len(rows)
    assert {row[0] for row in rows} == {folder.name for folder in plugins(packages)}


def test_core_and_its_hooks_are_stated(packages):
    (core,) = [folder for folder in packages if folder.name == "fastvideo-core"]
    version = tomllib.loads((core / "pyproject.toml").read_text())["project"]["version"]
    text = " ".join(PAGE.read_text().split())
    assert f"`fastvideo-core` is {version} and has the hooks of version {HOOK_VERSION}." in text


def test_ranges_hold_todays_core_and_no_next_minor(packages):
    from packaging.specifiers import SpecifierSet

    (core,) = [folder for folder in packages if folder.name == "fastvideo-core"]
    version = tomllib.loads((core / "pyproject.toml").read_text())["project"]["version"]
    major, minor, _ = map(int, version.split("."))
    for folder in plugins(packages):
        allowed = SpecifierSet(stated(folder)[2])
        assert version in allowed and f"{major}.{minor}.99" in allowed, folder.name
        assert f"{major}.{minor + 1}.0" not in allowed, folder.name


def test_a_row_that_went_stale_is_seen(packages, tmp_path):
    folder = plugins(packages)[0]
    (tmp_path / "pyproject.toml").write_text(
        (folder / "pyproject.toml").read_text().replace('version = "', 'version = "9', 1)
    )
    (tmp_path / "src").symlink_to(folder / "src")
    assert stated(tmp_path) not in rows_of(PAGE.read_text())
