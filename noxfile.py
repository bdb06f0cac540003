"""Development tasks. `nox` runs lint, types, tests and plugins; `nox -l` lists the others.

The checkout's own environment `.venv` serves everything that needs torch (types, tests, plugins, bench), so that it is
installed once. Sessions that have to start clean (alone, together, build) make environments of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import nox

ROOT = Path(__file__).parent
CONSTRAINTS = ROOT / "constraints.txt"
PACKAGES = {path.parent.name: path.parent for path in sorted(ROOT.glob("packages/*/pyproject.toml"))}
DEV_VENV = ROOT / ".venv"
PYTHONS = ("3.11", "3.12", "3.13")
"""Versions that the packages support; where an interpreter is missing, its sessions are skipped."""
VERSIONS = ("pinned", "lowest", "newest")
"""Which versions of dependencies are installed: those of constraints.txt, the lowest that the packages declare, or the
newest. torch is the pinned one in all of them."""

MAX_WORKERS = 8
"""Most processes that run tests: each takes about a gigabyte."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Processes that share the cores take one each; what a test starts inherits it."""

nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = False


def project(folder: Path) -> dict[str, Any]:
    """Return the parsed pyproject.toml of `folder`."""
    return nox.project.load_toml(folder / "pyproject.toml")


def group(folder: Path, name: str) -> list[str]:
    """Return a dependency group of `folder`, or nothing where it has none of that name."""
    table = project(folder)
    return list(nox.project.dependency_groups(table, name)) if name in table.get("dependency-groups", {}) else []


def local_closure(names: list[str]) -> list[str]:
    """Return `names` and every package of this repository that they and their tests need."""
    found: list[str] = []
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.append(name)
        needs = [*project(PACKAGES[name])["project"]["dependencies"], *group(PACKAGES[name], "test")]
        waiting += [need for need in map(distribution, needs) if need in PACKAGES]
    return sorted(found)


def distribution(requirement: str) -> str:
    """Return the distribution's name in a requirement such as `fastvideo-core>=0.1`."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return match.group().lower()


def install_arguments(names: list[str], *, groups: list[str], constraints: Path = CONSTRAINTS) -> list[str]:
    """Return pip's arguments for editable installs of `names` with their tests' needs, and root groups."""
    editable = [part for name in names for part in ("-e", str(PACKAGES[name]))]
    return ["-c", str(constraints), *editable, *outside_needs(names, groups=groups)]


def outside_needs(names: list[str], *, groups: list[str]) -> list[str]:
    """Return what the tests of `names` need of others, with root groups; what packages need, pip finds itself."""
    tests = [need for name in names for need in group(PACKAGES[name], "test")]
    root = [need for name in groups for need in group(ROOT, name)]
    return sorted({need for need in [*tests, *root] if distribution(need) not in PACKAGES})


def pinned_torch() -> str:
    """Return the line of the constraints that pins torch."""
    return next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))


def lowest_versions(names: list[str], *, groups: list[str]) -> dict[str, str]:
    """Return the lowest version of each direct dependency that all of `names` allow, torch excepted."""
    declared = [need for name in names for need in project(PACKAGES[name])["project"]["dependencies"]]
    lowest: dict[str, str] = {}
    for need in [*declared, *outside_needs(names, groups=groups)]:
        found = re.search(r">=\s*([\w.]+)", need)
        name = distribution(need).replace("_", "-")
        if found is None or name in PACKAGES or name == "torch":
            continue
        lowest[name] = max(lowest.get(name, "0"), found[1], key=version_key)
    return dict(sorted(lowest.items()))


def version_key(version: str) -> tuple[int, ...]:
    """Return what orders plain versions such as 5.9.5."""
    return tuple(int(part) for part in version.split("."))


def constraints_for(names: list[str], versions: str, folder: Path) -> Path:
    """Return a file of constraints for one of `VERSIONS`, written into `folder` unless it is the repository's own."""
    if versions == "pinned":
        return CONSTRAINTS
    lowest = lowest_versions(names, groups=["test"]) if versions == "lowest" else {}
    path = folder / f"{versions}.txt"
    path.write_text("\n".join([pinned_torch(), *(f"{name}=={version}" for name, version in lowest.items())]) + "\n")
    return path


def in_parallel(session: nox.Session) -> list[str]:
    """Return pytest's arguments: as many processes as there are cores, up to a number, unless `-n` says otherwise."""
    num_workers = min(os.cpu_count() or 1, MAX_WORKERS)
    # Files stay whole, for the sake of their fixtures; who is done early takes over files of others.
    return ["-n", str(num_workers), "--dist", "loadfile", *session.posargs]


def fingerprint(arguments: list[str]) -> str:
    """Return a digest of all that decides what an install gives."""
    digest = hashlib.sha256("\0".join([sys.version, *arguments]).encode())
    for path in [CONSTRAINTS, *(folder / "pyproject.toml" for folder in PACKAGES.values())]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def interpreter(venv: Path) -> Path:
    """Return the interpreter of an environment."""
    return venv / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def dev_python(session: nox.Session) -> str:
    """Return the interpreter of `.venv`; install what development needs unless it is there already."""
    python = str(interpreter(DEV_VENV))
    if not interpreter(DEV_VENV).exists():
        session.run(sys.executable, "-m", "venv", str(DEV_VENV), external=True)
    arguments = install_arguments(list(PACKAGES), groups=["dev"])
    stamp, wanted = DEV_VENV / "dev-install.sha256", fingerprint(arguments)
    if not stamp.exists() or stamp.read_text() != wanted:
        session.run(python, "-m", "pip", "install", "--quiet", *arguments, external=True)
        stamp.write_text(wanted)
    return python


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and who imports whom."""
    session.install("--quiet", "-c", str(CONSTRAINTS), *group(ROOT, "lint"))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    sources = os.pathsep.join(str(folder / "src") for folder in PACKAGES.values())
    session.run("lint-imports", "--no-logo", env={"PYTHONPATH": sources})


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Run mypy in strict mode on the sources."""
    session.run(dev_python(session), "-m", "mypy", *session.posargs, external=True)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run every package's tests and the repository's own; arguments after `--` go to pytest."""
    session.run(dev_python(session), "-m", "pytest", *in_parallel(session), external=True, env=ONE_THREAD)


@nox.session(venv_backend="none", default=False)
def dev(session: nox.Session) -> None:
    """Make or update `.venv`, with all packages editable and every tool."""
    dev_python(session)


@nox.session(venv_backend="none")
def plugins(session: nox.Session) -> None:
    """Check packages that others write: what `plugins new` makes, and the one in examples, installed with pip."""
    tests = ["packages/fastvideo-core/tests/extend/test_scaffold.py", "tests/examples/test_examples_third_party.py"]
    session.run(dev_python(session), "-m", "pytest", "-m", "slow", *tests, *session.posargs, external=True)


@nox.session(python=PYTHONS, default=False)
@nox.parametrize("versions", VERSIONS, ids=VERSIONS)
@nox.parametrize("package", list(PACKAGES), ids=list(PACKAGES))
def alone(session: nox.Session, package: str, versions: str) -> None:
    """Run one package's tests in an environment that holds no more than it declares."""
    run_tests(session, [package], versions)


@nox.session(python=PYTHONS, default=False)
@nox.parametrize("versions", VERSIONS, ids=VERSIONS)
def together(session: nox.Session, versions: str) -> None:
    """Run all packages' tests in one clean environment."""
    run_tests(session, list(PACKAGES), versions)


def run_tests(session: nox.Session, names: list[str], versions: str) -> None:
    """Install packages with one choice of versions, and run their tests."""
    if versions == "lowest" and session.python != PYTHONS[0]:
        session.skip(f"the lowest versions are for the lowest Python, {PYTHONS[0]}")
    closure = local_closure(names)
    constraints = constraints_for(closure, versions, Path(session.create_tmp()))
    session.install("--quiet", *install_arguments(closure, groups=["test"], constraints=constraints))
    session.run("python", "-m", "pip", "check")
    session.run("pytest", *(str(PACKAGES[name] / "tests") for name in names), *session.posargs)


@nox.session(venv_backend="none", default=False)
def bench(session: nox.Session) -> None:
    """Run the benchmarks, or those named after `--`, and print their JSON lines."""
    python = dev_python(session)
    scripts = session.posargs or sorted(path.stem for path in ROOT.glob("benchmarks/[!_]*.py"))
    for script in scripts:
        session.run(python, str(ROOT / "benchmarks" / f"{script}.py"), "--json", external=True)


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Build each package's wheel and sdist, make a video from the wheels in a clean environment, and move a version."""
    session.install("--quiet", "-c", str(CONSTRAINTS), "build", "hatchling")
    dist = ROOT / "dist"
    for old in dist.glob("fastvideo_*"):
        old.unlink()
    for folder in PACKAGES.values():
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(dist), str(folder), silent=True)
    wheels = sorted(dist.glob("*.whl"))
    check_wheels(session, wheels)
    python = check_install(session, wheels)
    check_versions(session, python)


def check_wheels(session: nox.Session, wheels: list[Path]) -> None:
    """Fail unless every source file that git knows is in its package's wheel."""
    for wheel, folder in zip(wheels, PACKAGES.values(), strict=True):
        listing = session.run("git", "ls-files", str(folder / "src"), external=True, silent=True)
        prefix = f"{(folder / 'src').relative_to(ROOT).as_posix()}/"
        tracked = {line.removeprefix(prefix) for line in str(listing).splitlines()}
        with zipfile.ZipFile(wheel) as archive:
            missing = sorted(tracked - set(archive.namelist()))
        if missing:
            session.error(f"{wheel.name} lacks {', '.join(missing)}")


def check_install(session: nox.Session, wheels: list[Path]) -> str:
    """Install the wheels into a new environment and use them from outside the repository; return its interpreter."""
    place = Path(session.create_tmp()).resolve()
    venv = place / "clean"
    session.run(sys.executable, "-m", "venv", "--clear", str(venv), external=True)
    python = str(interpreter(venv))
    command = str(interpreter(venv).with_name("fastvideo"))
    example = str(ROOT / "examples" / "fastvideo-drift")
    session.run(
        python, "-m", "pip", "install", "--quiet", "-c", str(CONSTRAINTS), *map(str, wheels), example, external=True
    )
    session.run(python, "-m", "pip", "check", external=True)
    with session.chdir(place):
        modules = ", ".join(name.replace("-", "_") for name in PACKAGES)
        session.run(python, "-c", f"import {modules}", external=True)
        session.run(command, "--help", external=True, silent=True)
        session.run(command, "plugins", "list", external=True)
        session.run(command, "generate", "a red circle moving right", external=True)
    return python


def check_versions(session: nox.Session, python: str) -> None:
    """Fail unless packages go on with a later core of their range, and refuse one beyond it by name."""
    place = Path(session.create_tmp()).resolve()
    current = project(PACKAGES["fastvideo-core"])["project"]["version"]
    major, minor, patch = map(int, current.split("."))
    for version, is_allowed in ((f"{major}.{minor}.{patch + 1}", True), (f"{major}.{minor + 1}.0", False)):
        copy = place / f"core-{version}"
        shutil.copytree(PACKAGES["fastvideo-core"], copy, dirs_exist_ok=True)
        settings = copy / "pyproject.toml"
        settings.write_text(settings.read_text().replace(f'version = "{current}"', f'version = "{version}"', 1))
        session.run(python, "-m", "pip", "install", "--quiet", "--no-deps", str(copy), external=True, silent=True)
        listing = session.run(
            python, "-m", "fastvideo_core.cli", "plugins", "list", "--json", external=True, silent=True
        )
        rows = [row for row in json.loads(str(listing))["plugins"] if not row["state"].startswith("off")]
        refused = [row["name"] for row in rows if f"installed: fastvideo-core {version}" in row["state"]]
        if refused != ([] if is_allowed else [row["name"] for row in rows]):
            session.error(f"with fastvideo-core {version} these refuse to load: {', '.join(refused) or 'none'}")
