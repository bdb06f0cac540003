from __future__ import annotations

import json
import re

import pytest

from fastvideo_core.extend import PluginRegistry, load_plugins
from fastvideo_core.runtime.catalog import Catalog


def test_the_list(run, installed, tiny):
    ran = run("cards")
    header, first, second = ran.out.splitlines()
    assert header.split() == ["id", "tasks", "size", "from", "licence", "title"]
    row = rf"tiny +text_to_video, image_to_video +29\.\d kB +folder {tiny} +Apache-2.0 +Coloured noise, for tests"
    assert re.fullmatch(row, first)
    assert re.match(r"tiny-gone +\S+ \S+ +\? +folder", second)
    assert ran.code == 0


def test_a_plugin_that_failed_is_named(run, installed):
    assert run("cards").err == (
        "warning: model.broken (broken-plugin 0.1) failed to load: ImportError: no module named nothing\n"
    )


def test_as_json(run, installed, tiny):
    first, second = json.loads(run("cards", "--json").out)["cards"]
    assert first["id"] == "tiny"
    assert first["tasks"] == ["text_to_video", "image_to_video"]
    assert (first["source"], first["location"]) == ("folder", str(tiny))
    # The weights of the three modules, with their files' headers.
    assert first["size_bytes"] == sum(path.stat().st_size for path in tiny.glob("*/*.safetensors"))
    assert second["size_bytes"] is None


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_no_cards_at_all(flags, run, monkeypatch):
    registry = PluginRegistry((), load_plugins(available=()).manager)
    monkeypatch.setattr(Catalog, "installed", classmethod(lambda cls: Catalog(registry)))
    ran = run("cards", *flags)
    assert (ran.code, ran.err) == (0, "no cards: install a package that brings some, such as fastvideo-wan\n")


def test_listing_needs_no_torch(start):
    process = start("cards", code="import atexit; atexit.register(lambda: print('torch' in sys.modules))")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.splitlines()[-1] == "False"
