"""What the noxfile works out before it installs anything."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def noxfile():
    spec = importlib.util.spec_from_file_location("fastvideo_noxfile", ROOT / "noxfile.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_finds_every_package(noxfile):
    assert set(noxfile.PACKAGES) >= {"fastvideo-core", "fastvideo-testing", "fastvideo-wan"}


@pytest.mark.parametrize(
    ("requirement", "name"),
    [("fastvideo-core>=0.1,<0.2", "fastvideo-core"), ("PyYAML", "pyyaml"), ("cache_dit[x]==1", "cache_dit")],
)
def test_it_reads_names_of_requirements(noxfile, requirement, name):
    assert noxfile.distribution(requirement) == name


def test_a_package_brings_what_it_and_its_tests_need_from_here(noxfile):
    assert noxfile.local_closure(["fastvideo-wan"]) == ["fastvideo-core", "fastvideo-testing", "fastvideo-wan"]
    assert "fastvideo-wan" not in noxfile.local_closure(["fastvideo-core"])


def test_installs_are_editable_and_constrained(noxfile):
    arguments = noxfile.install_arguments(["fastvideo-core"], groups=["test"])
    assert arguments[:4] == ["-c", str(ROOT / "constraints.txt"), "-e", str(ROOT / "packages/fastvideo-core")]
    assert any(argument.startswith("pytest>=") for argument in arguments)


def test_the_fingerprint_follows_the_arguments(noxfile):
    assert noxfile.fingerprint(["a", "b"]) == noxfile.fingerprint(["a", "b"])
    assert noxfile.fingerprint(["a", "b"]) != noxfile.fingerprint(["ab"])


def test_every_declared_need_is_pinned(noxfile):
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in noxfile.CONSTRAINTS.read_text().splitlines()}
    needs = noxfile.group(ROOT, "dev")
    for folder in noxfile.PACKAGES.values():
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        needs += [*project["dependencies"], *noxfile.group(folder, "test")]
    names = {noxfile.distribution(need).replace("_", "-") for need in needs} - set(noxfile.PACKAGES)
    assert names <= pinned, f"not in constraints.txt: {sorted(names - pinned)}"
