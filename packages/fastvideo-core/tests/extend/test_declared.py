from __future__ import annotations

import sys

import pytest
from importlib_metadata import EntryPoint

from fastvideo_core.extend.declared import declared_hooks
from fastvideo_core.extend.hookspecs import ENTRY_POINT_GROUP
from fastvideo_core.extend.plugins import find_plugins, load_plugins

SOURCE = """
raise SystemExit("imported")
from fastvideo_core import extend
from fastvideo_core.extend import hookimpl

@hookimpl
def model_cards(): ...

@extend.hookimpl(tryfirst=True)
def observers(): ...

def samplers(): ...

class Plugin:
    @hookimpl
    def interceptors(self): ...
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "unread" / "deep"
    folder.mkdir(parents=True)
    (tmp_path / "unread" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (folder / "__init__.py").touch()
    (folder / "plugin.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def hooks(value):
    return declared_hooks(EntryPoint(name="x.y", value=value, group=ENTRY_POINT_GROUP))


def test_hooks_are_read_and_nothing_is_imported(package):
    assert hooks("unread.deep.plugin") == ("model_cards", "observers")
    assert hooks("unread.deep.plugin:Plugin") == ("interceptors",)
    assert not any(name.startswith("unread") for name in sys.modules)


@pytest.mark.parametrize("content", [b"def (", b"\x00", b"\xff\xfe", b"(" * 5000, None])
def test_what_cannot_be_read_has_none(content, package):
    if content is None:
        (package / "plugin.py").unlink()
    else:
        (package / "plugin.py").write_bytes(content)
    assert hooks("unread.deep.plugin") == ()


@pytest.mark.parametrize("value", ["gone", "gone.plugin", "sys", "math", "json.gone.plugin"])
def test_what_is_not_there_has_none(value):
    assert hooks(value) == ()


@pytest.mark.skipif(not find_plugins(), reason="no plugin is installed")
def test_what_is_read_is_what_loading_finds():
    entries = find_plugins()
    kinds = {entry.name.split(".")[0] for entry in entries}
    loaded = {plugin.name: plugin for plugin in load_plugins(kinds).plugins}
    for entry in entries:
        if loaded[entry.name].error is None:
            assert declared_hooks(entry) == tuple(sorted(loaded[entry.name].hooks))
