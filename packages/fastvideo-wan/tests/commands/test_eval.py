"""`fastvideo eval` prints a table with intervals, as text and as JSON, and refuses bad input before any work."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fastvideo_core.cli.main import main
from fastvideo_wan.shapes.evaluation import ATTRIBUTES, wilson_interval

SMALL = ("--num-prompts", "2", "--steps", "2", "--num-frames", "1", "--quiet")


def test_a_table_and_a_sheet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sheet = tmp_path / "sheet.png"
    assert main(["eval", "wan-shapes", *SMALL, "-o", str(sheet)]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["attribute", "right", "part"]
    assert [line.split()[0] for line in lines[1:]] == list(ATTRIBUTES)
    assert all(re.search(r" [012]/2 +\d+\.\d% +\d+\.\d% to \d+\.\d%$", line) for line in lines[1:])
    assert sheet.read_bytes().startswith(b"\x89PNG")


def test_json_has_every_attribute_with_its_interval(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "wan-shapes", *SMALL, "--json", "--set", "flow_shift=4.5"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["card"] == "wan-shapes" and report["num_prompts"] == 2
    assert report["parameters"]["num_inference_steps"] == 2
    assert report["parameters"]["flow_shift"] == 4.5
    assert "seed" not in report["parameters"]
    for name in ("colour", "shape", "direction", "all"):
        row = report[name]
        assert row["interval_95"] == pytest.approx(wilson_interval(row["right"], row["n"]), abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["wan-shape"], "card='wan-shape': no such card"),
        (["wan-shapes", "--steps", "0"], "num_inference_steps=0"),
        (["wan-shapes", "--num-frames", "6"], "num_frames=6"),
        (["wan-shapes", "--set", "seed=3"], "seed=3: not to be set"),
        (["wan-shapes", "--num-prompts", "0"], "'0' is not a whole number"),
        (["wan-shapes", "--device", "gpu"], "device='gpu'"),
        (["wan-shapes", "-o", "sheet.mp4"], "output='sheet.mp4'"),
        (["wan-shapes", "--step", "3"], "no flag --step; nearest: --steps"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *arguments]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ") and text in line
