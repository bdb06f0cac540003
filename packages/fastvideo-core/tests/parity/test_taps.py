from __future__ import annotations

import pytest
import torch

from fastvideo_core.parity import TapRecorder, first_divergence
from fastvideo_core.runtime.engine import Engine
from fastvideo_testing.tiny import write_tiny_checkpoint


def record(*rows):
    recorder = TapRecorder()
    for name, value in rows:
        recorder.record(name, torch.as_tensor(value))
    return recorder.rows


ROWS = record(("embeds", [1.0, 2.0]), ("block.0", [4.0]), ("block.1", [-8.0]))


def test_equal_recordings_do_not_part():
    assert first_divergence(ROWS, record(*((row.name, row.value) for row in ROWS))) is None
    assert first_divergence([], []) is None


@pytest.mark.parametrize(
    ("rows", "index", "name", "reason"),
    [
        ((("embeds", [1.0, 2.0]), ("block.0", [4.5]), ("block.1", [0.0])), 1, "block.0", "is off by 0.125 relative"),
        ((("embeds", [1.0, float("nan")]), ("block.0", [4.0])), 0, "embeds", "is off by inf relative"),
        ((("embeds", [1.0]),), 0, "embeds", "is off by inf relative"),
        ((("embeds", [1.0, 2.0]), ("block.1", [-8.0])), 1, "block.1", "is 'block.1'; the reference has 'block.0'"),
        ((("embeds", [1.0, 2.0]), ("block.0", [4.0])), 2, "", "2 taps; the reference has 3"),
    ],
)
def test_the_first_place_where_they_part_is_told(rows, index, name, reason):
    found = first_divergence(record(*rows), ROWS)
    assert (found.index, found.name) == (index, name)
    assert reason in found.reason
    assert (found.comparison is None) == ("is off" not in reason)


def test_a_bound_lets_small_differences_pass():
    rows = record(("embeds", [1.0, 2.0]), ("block.0", [4.0 + 1e-6]), ("block.1", [-8.5]))
    assert first_divergence(rows, ROWS).index == 1
    found = first_divergence(rows, ROWS, max_relative=1e-5)
    assert (found.index, found.reason) == (2, "tap 2 (block.1) is off by 0.0625 relative; wanted: 1e-05 relative")
    assert first_divergence(rows, ROWS, max_relative=0.1) is None


def test_each_tap_may_have_a_bound_of_its_own():
    rows = record(("embeds", [1.0, 2.0]), ("block.0", [4.5]), ("block.1", [-8.5]))

    def bound(name):
        return 0.2 if name == "block.0" else None

    found = first_divergence(rows, ROWS, max_relative=bound)
    assert (found.index, found.reason) == (2, "tap 2 (block.1) is off by 0.0625 relative; wanted: equal bits")


def test_what_is_recorded_is_a_copy():
    value = torch.ones(2, requires_grad=True)
    recorder = TapRecorder(keep=lambda name: name.startswith("block."))
    recorder.record("block.0", value)
    recorder.record("embeds", value)
    value.detach().zero_()
    assert [(row.name, row.value.tolist(), row.value.requires_grad) for row in recorder.rows] == [
        ("block.0", [1, 1], False)
    ]


def test_an_engine_shows_the_taps_of_its_steps_in_order(tmp_path):
    card = write_tiny_checkpoint(tmp_path)
    recordings = []
    for _ in range(2):
        recorder = TapRecorder()
        with Engine.open(card, tap=recorder.tap) as engine:
            engine.generate("x", seed=1, num_inference_steps=2, num_frames=1)
        recordings.append(recorder.rows)
    assert [row.name for row in recordings[0]] == ["embeds", "embeds", "velocity", "velocity", "pixels"]
    assert first_divergence(*recordings) is None
