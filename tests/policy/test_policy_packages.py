"""Each folder under packages/ is a complete distribution that the repository's settings know."""

from __future__ import annotations

import re
import shutil
import tomllib

import pytest


def find_gaps(folder, settings):
    """Yield what a package lacks, given the root's parsed pyproject.toml."""
    name, module = folder.name, folder.name.replace("-", "_")
    for needed in ("README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", f"src/{module}/py.typed"):
        if not (folder / needed).is_file():
            yield f"{needed} is missing"
            return
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    if project["name"] != name:
        yield f"the project is called {project['name']}"
    if not re.fullmatch(r"\d+\.\d+\.\d+", project.get("version", "")):
        yield "version is not of the form 1.2.3"
    elif f"## {project['version']}" not in (folder / "CHANGELOG.md").read_text():
        yield f"CHANGELOG.md has no heading for {project['version']}"
    if len((folder / "README.md").read_text().split()) < 30:
        yield "README.md says next to nothing"
    if [path.name for path in (folder / "src").iterdir() if path.suffix != ".egg-info"] != [module]:
        yield f"src/ holds more than {module}"
    yield from find_unknown(module, settings["tool"]["importlinter"])


def find_unknown(module, linter):
    """Yield the import contracts that do not know a package."""
    contracts = {contract["id"]: contract for contract in linter["contracts"]}
    if module not in linter["root_packages"]:
        yield "import-linter does not read it"
    if module != "fastvideo_core" and module not in contracts["core-no-plugin"]["forbidden_modules"]:
        yield "core may import it"
    if module != "fastvideo_core" and module not in contracts["plugins-independent"]["modules"]:
        yield "other plugin packages may import it"
    if module != "fastvideo_rl" and module not in contracts["nobody-imports-rl"]["source_modules"]:
        yield "it may import fastvideo_rl"


@pytest.fixture(scope="module")
def settings(root):
    return tomllib.loads((root / "pyproject.toml").read_text())


def test_every_package_is_complete_and_known(packages, settings, assert_none):
    assert len(packages) >= 3
    assert_none("package", ((folder.name, gap) for folder in packages for gap in find_gaps(folder, settings)))


def test_every_licence_is_the_repositorys(packages, root):
    text = (root / "LICENSE").read_text()
    assert "Apache License" in text
    assert all((folder / "LICENSE").read_text() == text for folder in packages)


@pytest.mark.parametrize(
    ("spoil", "gap"),
    [
        (lambda folder: (folder / "CHANGELOG.md").unlink(), "CHANGELOG.md is missing"),
        (lambda folder: (folder / "src/fastvideo_core/py.typed").unlink(), "src/fastvideo_core/py.typed is missing"),
        (lambda folder: (folder / "CHANGELOG.md").write_text("# Changelog\n"), "CHANGELOG.md has no heading for "),
        (lambda folder: (folder / "README.md").write_text("# Core\n"), "README.md says next to nothing"),
        (lambda folder: (folder / "src/other").mkdir(), "src/ holds more than fastvideo_core"),
    ],
)
def test_an_incomplete_package_is_caught(spoil, gap, root, settings, tmp_path):
    folder = tmp_path / "fastvideo-core"
    original = root / "packages/fastvideo-core"
    (folder / "src/fastvideo_core").mkdir(parents=True)
    for name in ("README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "src/fastvideo_core/py.typed"):
        shutil.copy(original / name, folder / name)
    assert list(find_gaps(folder, settings)) == []
    spoil(folder)
    (found,) = find_gaps(folder, settings)
    assert found.startswith(gap)


def test_a_package_that_the_contracts_do_not_know_is_caught(settings):
    assert len(list(find_unknown("fastvideo_new", settings["tool"]["importlinter"]))) == 4
