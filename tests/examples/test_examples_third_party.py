"""A plugin that is not part of this repository's packages: installed with pip, enabled by config, checked, used.

The environment is a new one, in which nothing but the plugin is installed. What it requires, torch among it, is seen
from there in the environment of these tests, so that it need not be installed once more.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import site
import subprocess
import venv
from pathlib import Path

import av
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "fastvideo-drift"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of the new environment."""
    folder = tmp_path_factory.mktemp("fresh") / "env"
    venv.create(folder, with_pip=True)
    interpreter = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({place!r})\n" for place in site.getsitepackages()]
    (packages / "environment-of-the-tests.pth").write_text("".join(lines))
    example = shutil.copytree(EXAMPLE, folder.parent / "fastvideo-drift")
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", str(example)]
    done = subprocess.run([interpreter, *install], capture_output=True, text=True, env=environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    return interpreter


@pytest.fixture(scope="module")
def folder(python, tmp_path_factory):
    """A folder with a checkpoint that the plugin's own command has trained a little."""
    place = tmp_path_factory.mktemp("work")
    done = call(python, place, "drift", "train", "my-drift", "--steps", "30")
    assert done.stdout.splitlines() == ["my-drift"], done.stderr
    shutil.copy(EXAMPLE / "deploy.yaml", place)
    return place


def environment():
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}


def call(python, folder, *arguments, code=0):
    """Run the command line of the new environment."""
    command = [python, "-W", "error", "-m", "fastvideo_core.cli", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment(), timeout=600)
    assert done.returncode == code, f"{' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def test_it_is_no_part_of_what_is_installed_here():
    assert importlib.util.find_spec("fastvideo_drift") is None
    assert not list(ROOT.glob("packages/*drift*"))


def test_it_is_listed_with_its_distribution(python, folder):
    rows = json.loads(call(python, folder, "plugins", "list", "--json").stdout)["plugins"]
    (row,) = [row for row in rows if row["name"] == "model.drift"]
    assert (row["distribution"], row["version"], row["state"]) == ("fastvideo-drift", "0.1.0", "on")
    assert row["hooks"] == ["card_from_layout", "cli_commands"]
    assert "drift  " in call(python, folder, "--help").stdout


def test_its_config_is_good_and_a_video_is_made_with_it(python, folder):
    call(python, folder, "config", "check", "deploy.yaml")
    asked = ("generate", "a red bar drifting right", "--seed", "3", "--config", "deploy.yaml")
    file = folder / call(python, folder, *asked).stdout.strip()
    assert file.parent.name == "videos"
    with av.open(str(file)) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert [frame.shape for frame in frames] == [(32, 32, 3)] * 9
    steps = json.loads(file.with_suffix(".json").read_text())["parameters"]["num_inference_steps"]
    assert (steps["value"], steps["source"]) == (4, "deploy")


def test_its_own_words_are_warned_of(python, folder):
    told = call(python, folder, "generate", "a cat", "--card", "my-drift", "--seed", "1", "-o", "cat.mp4").stderr
    assert "no word of the prompt is known" in told


def test_it_passes_the_contract_suite(python, folder):
    report = json.loads(call(python, folder, "plugins", "check", "model.drift", "--card", "my-drift", "--json").stdout)
    assert report["passed"], [check for check in report["checks"] if not check["is_passed"]]
    names = {check["check"] for check in report["checks"]}
    assert {"the state is complete", "requests among others are as alone", "bad input is refused by its field"} <= names


def test_switched_off_it_is_not_there(python, folder):
    off = ("--set", "plugins.model.drift.enabled=false")
    told = call(python, folder, "generate", "a red bar", "--card", "my-drift", *off, code=1).stderr
    assert "no installed family knows 'DriftPipeline'" in told


def test_a_wrong_value_is_refused_with_the_nearest(python, folder):
    told = call(python, folder, "generate", "a red bar", "--card", "my-drift", "--height", "30", code=2).stderr
    assert "height=30" in told
    assert "nearest: 28" in told or "nearest: 32" in told
