from __future__ import annotations

import json

import pytest

from fastvideo_fleet.costs import LinearChunkCost
from fastvideo_fleet.errors import FleetError
from fastvideo_fleet.fleet import FleetSpec, WorkerClass, calibrated_fleet
from fastvideo_fleet.fleet_file import read_fleet


def test_a_calibrated_fleet_takes_another_k():
    one = calibrated_fleet("h20-1.3b", 16, sessions_per_gpu=5).classes[0]
    assert (one.max_gpus, one.max_sessions, one.start_s) == (16, 5, 20.0)
    assert one.chunk_s == pytest.approx((0, 0.45, 0.6, 0.75, 0.9, 1.05))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_gpus": 0}, r"max_gpus=0.*allowed: a whole number from 1"),
        ({"max_gpus": -3}, "max_gpus=-3"),
        ({"max_gpus": 10**9}, "max_gpus=1000000000"),
        ({"max_gpus": 4, "sessions_per_gpu": 0}, r"sessions_per_gpu=0.*at least 1"),
    ],
)
def test_a_fleet_of_zero_and_k_below_one_are_refused(arguments, message):
    with pytest.raises(FleetError, match=message):
        calibrated_fleet("h20-1.3b", **arguments)


def test_a_fleet_needs_a_class_and_times_of_at_least_zero():
    with pytest.raises(FleetError, match="without workers"):
        FleetSpec(())
    worker = calibrated_fleet("h20-7b", 1).classes
    with pytest.raises(FleetError, match="migration_s=-1"):
        FleetSpec(worker, migration_s=-1.0)
    with pytest.raises(FleetError, match="price_per_hour=nan"):
        WorkerClass("x", "m", (0.0, 1.0), 1, float("nan"))


@pytest.mark.parametrize(("latency_s", "count"), [(0.1, 0), (0.45, 1), (1.2, 6), (1.3, 6), (9.0, 8)])
def test_sessions_within_a_latency(latency_s, count):
    assert calibrated_fleet("h20-1.3b", 1).classes[0].sessions_within(latency_s) == count


def test_models_keep_their_order(mixed_fleet):
    assert mixed_fleet.models == ("a", "b")
    assert mixed_fleet.num_slots == 7


FLEET = {
    "classes": [
        {"name": "h20", "model": "m", "max_gpus": 2, "price_per_hour": 1.5, "max_sessions": 2, "chunk_s": [0.4, 0.6]},
        {"name": "b300", "model": "m", "max_gpus": 1, "price_per_hour": 6, "max_sessions": 3}
        | {"base_s": 0.1, "per_session_s": 0.1},
    ]
}


def test_a_fleet_is_read_from_json(tmp_path):
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(FLEET))
    fleet = read_fleet(path)
    assert [one.name for one in fleet.classes] == ["h20", "b300"]
    assert fleet.classes[0].chunk_s == (0.0, 0.4, 0.6)
    assert fleet.classes[1].chunk_s == pytest.approx((0, 0.2, 0.3, 0.4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_gpus": 0}, r"classes\.0\.max_gpus"),
        ({"max_sessions": 0}, r"classes\.0\.max_sessions"),
        ({"base_s": 1.0, "per_session_s": 1.0}, "give chunk_s, or base_s"),
        ({"gpus": 3}, r"classes\.0\.gpus: Extra"),
    ],
)
def test_a_bad_fleet_file_names_the_field(tmp_path, change, message):
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps({"classes": [FLEET["classes"][0] | change]}))
    with pytest.raises(FleetError, match=message):
        read_fleet(path)


def test_no_file_and_no_json_are_refused(tmp_path):
    with pytest.raises(FleetError, match="cannot be read"):
        read_fleet(tmp_path / "missing.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(FleetError, match="is not a fleet"):
        read_fleet(tmp_path / "x.json")


def test_a_linear_cost_builds_a_class():
    one = WorkerClass.of("x", "m", LinearChunkCost(1.0, 0.5), max_sessions=2, max_gpus=1, price_per_hour=0)
    assert one.chunk_s == (0.0, 1.5, 2.0)
