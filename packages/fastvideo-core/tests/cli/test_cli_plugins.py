from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

needs_wan = pytest.mark.skipif(find_spec("fastvideo_wan") is None, reason="looks at the plugin of fastvideo-wan")


@needs_wan
def test_installed_plugins_are_listed_with_what_is_on(run):
    ran = run("plugins", "list", "--json")
    rows = {row["name"]: row for row in json.loads(ran.out)["plugins"]}
    wan = rows["model.wan"]
    assert (wan["distribution"], wan["state"]) == ("fastvideo-wan", "on")
    assert "model_cards" in wan["hooks"]
    assert "model.wan" in run("plugins", "list").out


@needs_wan
def test_what_the_config_switches_off_is_said(run, place):
    (place / "a.yaml").write_text("plugins: {model.wan: {enabled: false}, observer.gone: }\n")
    rows = {
        row["name"]: row for row in json.loads(run("plugins", "list", "--json", "--config", "a.yaml").out)["plugins"]
    }
    assert rows["model.wan"]["state"] == "off: the config says so"
    assert rows["observer.gone"]["state"] == "not installed"


def test_the_list_is_quick_and_light():
    code = (
        "import sys; from fastvideo_core.cli.main import main; main(['plugins', 'list']);"
        "print('heavy:', *({'torch', 'numpy', 'transformers', 'pydantic'} & set(sys.modules)))"
    )
    best_s = 9.0
    for _ in range(3):
        started_at = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        best_s = min(best_s, time.perf_counter() - started_at)
    assert done.stdout.splitlines()[-1] == "heavy:"
    # Half a second is what a person waits at most; a machine that is busy with something else may take longer.
    assert best_s < 0.5 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@needs_wan
def test_one_plugin_is_described(run):
    ran = run("plugins", "info", "model.wan")
    assert ran.code == 0
    assert "fastvideo_wan.plugin" in ran.out and "wan-shapes" in ran.out
    document = json.loads(run("plugins", "info", "model.wan", "--json").out)
    assert document["error"] is None
    assert any(text.startswith("fastvideo-core") for text in document["requires"])


@needs_wan
def test_an_unknown_plugin_is_refused_with_the_nearest(run):
    ran = run("plugins", "info", "model.wann")
    assert ran.code == 2
    assert ran.error.startswith("error: plugin='model.wann': no such plugin is installed; allowed: ")
    assert ran.error.endswith("nearest: model.wan")


def test_hooks_are_listed_and_explained(run):
    ran = run("plugins", "hooks")
    assert "hooks of version 1.0" in ran.out
    assert "interceptors" in ran.out
    assert "Conflicts, too few steps" in run("plugins", "hooks", "interceptors").out
    document = json.loads(run("plugins", "hooks", "--json").out)
    assert {"name", "since", "documentation"} <= set(document["hooks"][0])
    assert run("plugins", "hooks", "interceptor").error.endswith("nearest: interceptors")


def test_a_broken_config_is_told(run, place):
    (place / "a.yaml").write_text("limits: {max: 1}\n")
    assert "limits.max=1: a.yaml, line 1: no such key" in run("plugins", "list", "--config", "a.yaml").error
    assert "limits.max=3: --set limits.max: no such key" in run("plugins", "list", "--set", "limits.max=3").error


def test_a_new_plugin_is_written_and_checked(run, place):
    ran = run("plugins", "new", "observer", "tally", "-o", "made")
    assert ran.code == 0
    assert "made/src/fastvideo_tally/plugin.py" in ran.out.split()
    assert run("plugins", "new", "observer", "tally", "-o", "made").error.startswith("error: output='made': exists")
    # What pip would write, so that it is installed where this folder is on the path.
    info = place / "made/src/fastvideo_tally-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fastvideo-tally\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[fastvideo.plugins]\nobserver.tally = fastvideo_tally.plugin\n")
    environment = os.environ | {"PYTHONPATH": str(place / "made/src")}

    def command(*arguments):
        program = [sys.executable, "-m", "fastvideo_core.cli", *arguments]
        return subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=100)

    rows = {row["name"]: row for row in json.loads(command("plugins", "list", "--json").stdout)["plugins"]}
    assert rows["observer.tally"]["state"] == "off: the config does not name it"
    done = command("plugins", "check", "observer.tally", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["passed"]) == (0, True)
    assert {"loads", "it changes nothing", "off means absent"} <= {check["check"] for check in report["checks"]}
    (place / "made/src/fastvideo_tally/observer.py").write_text("raise ValueError('spoilt')\n")
    done = command("plugins", "check", "observer.tally")
    assert done.returncode == 1
    assert "ValueError: spoilt" in done.stdout
