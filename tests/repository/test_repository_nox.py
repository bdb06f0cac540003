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


def test_the_lowest_versions_are_those_that_all_allow(noxfile):
    core = noxfile.lowest_versions(["fastvideo-core"], groups=[])
    declared = noxfile.project(noxfile.PACKAGES["fastvideo-core"])["project"]["dependencies"]
    tests_need = ("accelerate", "diffusers", "scipy")
    assert all(f"{name}>={version}" in declared for name, version in core.items() if name not in tests_need)
    assert {need.partition(">=")[0] for need in declared} - {"torch"} <= set(core)
    both = noxfile.lowest_versions(["fastvideo-core", "fastvideo-wan"], groups=["test"])
    assert {"transformers", "pytest", "numpy"} <= set(both)
    assert not {"torch", *noxfile.PACKAGES} & set(both)


@pytest.mark.parametrize(("lower", "higher"), [("5.9", "5.9.5"), ("9", "10"), ("1.9.2", "1.10")])
def test_versions_are_ordered_by_their_numbers(lower, higher, noxfile):
    assert noxfile.version_key(lower) < noxfile.version_key(higher)


@pytest.mark.parametrize("versions", ["pinned", "lowest", "newest"])
def test_torch_is_the_pinned_one_whatever_else_is_installed(versions, noxfile, tmp_path):
    lines = noxfile.constraints_for(["fastvideo-core"], versions, tmp_path).read_text().splitlines()
    assert noxfile.pinned_torch() in lines
    pinned = {line.partition("==")[0]: line for line in lines if "==" in line}
    assert ("pluggy" in pinned) is (versions != "newest")
    if versions == "lowest":
        declared = noxfile.project(noxfile.PACKAGES["fastvideo-core"])["project"]["dependencies"]
        assert pinned["pluggy"].replace("==", ">=") in declared


def test_every_supported_python_is_in_the_matrix(noxfile):
    for folder in noxfile.PACKAGES.values():
        table = noxfile.project(folder)["project"]
        stated = [line.rpartition(" :: ")[2] for line in table["classifiers"] if ":: Python :: 3." in line]
        assert set(stated) == set(noxfile.PYTHONS)
        assert table["requires-python"] == f">={noxfile.PYTHONS[0]}"


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
