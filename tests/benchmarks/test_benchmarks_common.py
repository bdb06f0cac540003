"""The helper that all benchmarks share."""

from __future__ import annotations

import json
import math
import time

import pytest

import _common


def test_parser_has_the_shared_options_and_refuses_no_rounds(capsys):
    parser = _common.make_parser("Measure something.", num_rounds=7)
    assert parser.parse_args([]).rounds == 7
    assert parser.parse_args(["--json", "--rounds", "3"]).json is True
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(["--rounds", "0"])
    assert stop.value.code == 2
    assert "0 is below 1" in capsys.readouterr().err


def test_interleaved_runs_every_case_each_round_in_turning_order():
    calls = []
    cases = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = _common.interleaved(cases, num_rounds=3, num_warmups=1)
    assert "".join(calls) == "abc" + "abc" + "bca" + "cab"
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_interleaved_measures_wall_time_in_seconds():
    times = _common.interleaved({"sleep": lambda: time.sleep(0.02)}, num_rounds=1, num_warmups=0)
    assert 0.02 <= times["sleep"][0] < 1


def test_ratio_is_of_medians():
    times = {"ours": [1.0, 2.0, 90.0], "theirs": [4.0, 4.0, 0.1]}
    assert _common.ratio(times, "ours", "theirs") == 0.5


def test_paired_ratios_are_of_rounds():
    times = {"ours": [1.0, 2.0, 90.0], "theirs": [4.0, 4.0, 180.0]}
    assert _common.paired_ratios(times, "ours", "theirs") == [0.25, 0.5, 0.5]


def test_yardstick_is_in_microseconds():
    assert 1 < _common.yardstick_us(11) < 10_000


def test_machine_tells_cores_and_versions():
    facts = _common.machine()
    assert facts["num_cores"] >= 1
    assert facts["memory_gib"] > 0
    assert facts["torch"].startswith("2.")


def test_report_prints_one_json_line(capsys):
    _common.report({"ratio": 1 / 3, "equal": True}, as_json=True)
    (line,) = capsys.readouterr().out.splitlines()
    parsed = json.loads(line)
    assert math.isclose(parsed["ratio"], 0.3333)
    assert parsed["equal"] is True
    assert parsed["yardstick_us"] > 0
    assert parsed["machine"] == _common.machine()


def test_report_prints_a_table(capsys):
    _common.report({"ratio": 0.25}, as_json=False)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.split() == ["ratio", "0.25"]
    assert last.startswith("machine")
