"""Runs the command line in process, and in processes of its own, on tiny checkpoints."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from fastvideo_core.cli.main import main
from fastvideo_core.extend import LoadedPlugin, PluginRegistry, hookimpl, load_plugins
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_testing.tiny import tiny_card, write_tiny_checkpoint
from fastvideo_testing.tiny.faults import faulty_card


@dataclass(frozen=True)
class Ran:
    """What a run gave."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that stderr holds, besides what is said while the model loads."""
        lines = [line for line in self.err.splitlines() if not line.startswith(("loading ", "loaded "))]
        assert len(lines) == 1, self.err
        return lines[0]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A tiny checkpoint, with its card beside the weights."""
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    write_tiny_checkpoint(folder)
    return folder


@pytest.fixture
def make_faulty(tmp_path):
    """Write a tiny checkpoint whose denoise steps fail or take long."""

    def make(**options):
        folder = tmp_path / "faulty"
        write_tiny_checkpoint(folder, make_card=lambda place: faulty_card(place, **options))
        return folder

    return make


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty working folder."""
    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("FASTVIDEO_DEBUG", raising=False)
    return folder


@pytest.fixture
def run(place, capfd):
    """Run the command line in this process, in an empty folder."""

    def run_main(*arguments):
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err
        return Ran(code, captured.out, captured.err)

    return run_main


@pytest.fixture
def generate(run, tiny):
    """Run `fastvideo generate` on the tiny checkpoint."""
    return lambda *arguments: run("generate", *arguments, "--card", tiny)


@pytest.fixture
def start(place):
    """Start the command line in a process of its own; `code` is run before it."""
    started = []

    def start_process(*arguments, code="", **options):
        script = f"import sys\n{code}\nfrom fastvideo_core.cli.main import main\nsys.exit(main())"
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        command = [sys.executable, "-c", script, *map(str, arguments)]
        process = subprocess.Popen(command, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}, **options)
        started.append(process)
        return process

    yield start_process
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def installed(tiny, monkeypatch):
    """Let the installed plugins be one with a tiny card, and one that does not load."""

    class Plugin:
        @hookimpl
        def model_cards(self):
            return [tiny_card(tiny), tiny_card(tiny.parent / "gone", model_id="tiny-gone")]

    registry = load_plugins(available=())
    registry.manager.register(Plugin())
    plugins = (
        LoadedPlugin("model.tiny", "tiny-plugin", "1.0"),
        LoadedPlugin("model.broken", "broken-plugin", "0.1", "ImportError: no module named nothing"),
    )
    catalog = Catalog(PluginRegistry(plugins, registry.manager))
    monkeypatch.setattr(Catalog, "installed", classmethod(lambda cls: catalog))
    return catalog


def files_in(folder):
    """Return every file below a folder, hidden ones included, as relative names."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def left(place):
    """Say which files a run has left."""
    return lambda: files_in(place)
