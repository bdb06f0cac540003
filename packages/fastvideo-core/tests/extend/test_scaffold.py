from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest

from fastvideo_core.errors import InputError, OutputError
from fastvideo_core.extend.scaffold import PLUGIN_KINDS, write_plugin


@pytest.mark.parametrize("kind", PLUGIN_KINDS)
def test_a_package_is_whole(kind, tmp_path):
    folder = tmp_path / "made"
    written = write_plugin(kind, "skip-two", folder)
    assert sorted(written) == sorted(path for path in folder.rglob("*") if path.is_file())
    table = tomllib.loads((folder / "pyproject.toml").read_text())
    assert table["project"]["name"] == "fastvideo-skip-two"
    assert table["project"]["entry-points"]["fastvideo.plugins"] == {f"{kind}.skip-two": "fastvideo_skip_two.plugin"}
    for path in written:
        text = path.read_text()
        assert "@" not in text.replace("@dataclass", "").replace("@hookimpl", "").replace("@pytest", "").replace(
            "@supports_hooks", ""
        ), path
        if path.suffix == ".py":
            compile(text, str(path), "exec")
    assert {"README.md", "CHANGELOG.md"} <= {path.name for path in written}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", PLUGIN_KINDS)
def test_a_package_passes_the_suite_as_it_is(kind, tmp_path):
    folder = tmp_path / "made"
    write_plugin(kind, "skip-two", folder)
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        ("intercepter", "x", "kind='intercepter': .*allowed: model, interceptor, observer, transport; nearest: interc"),
        ("model", "My_Model", "name='My_Model': .*nearest: my-model"),
        ("model", "class", "name='class'"),
        ("model", "", "name=''"),
        ("model", "../escape", "name='../escape': .*nearest: escape"),
    ],
)
def test_what_cannot_be_begun_is_refused(kind, name, why, tmp_path):
    with pytest.raises(InputError, match=why):
        write_plugin(kind, name, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_nothing_is_written_over(tmp_path):
    with pytest.raises(OutputError, match="exists already"):
        write_plugin("model", "x", tmp_path)
