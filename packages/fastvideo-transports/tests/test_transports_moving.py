"""Sessions move between processes: the stream goes on with the same bits, and whoever is killed, one side has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastvideo_transports.plugin import why_not

SOURCE = ("frozen", "sent", "installed", "saved", "handed over", "told")
TARGET = ("installed", "told", "going on")
SCENARIOS = [("nobody", "never"), *(("source", one) for one in SOURCE), *(("target", one) for one in TARGET)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What an undisturbed stream gives, and what became of each scenario."""
    if why_not() is not None:
        pytest.skip(why_not())
    folder = tmp_path_factory.mktemp("moving")
    names = [f"{side}:{point}" for side, point in SCENARIOS]
    command = [sys.executable, str(Path(__file__).with_name("moving_scenarios.py")), str(folder), *names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    alone, *rest = (json.loads(line) for line in done.stdout.splitlines())
    return alone, {(one["side"], one["point"]): one for one in rest}, done.stderr


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: "-".join(one).replace(" ", "-"))
def test_one_side_has_it_and_no_chunk_is_lost_or_comes_twice(outcomes, scenario):
    alone, found, stderr = outcomes
    one = found[scenario]
    side, point = scenario
    codes = dict(one["codes"])
    if side != "nobody":
        assert codes.pop(side) == -9, "it was to be killed"
    assert set(codes.values()) == {0}, stderr[-3000:]
    is_handed_over = side != "source" or point in ("handed over", "told")
    is_handed_over = is_handed_over and not (side == "target" and point == "installed" and one["owner"] == "source")
    assert one["owner"] == ("target" if is_handed_over else "source")
    assert len(one["chunks"]) == 8
    assert one["chunks"] == alone
    assert one["open"] == []
