from __future__ import annotations

import pytest

from fastvideo_core.cost import CostModel, DeviceIdentity
from fastvideo_core.loop.work import BatchKey, ShapeSignature, StepCost
from fastvideo_fleet.costs import CALIBRATIONS, LinearChunkCost, TableChunkCost, calibration, chunk_table
from fastvideo_fleet.costs.model import ChunkCall, ModelChunkCost
from fastvideo_fleet.errors import FleetError

KEY = BatchKey("i", "transformer", "denoise", ShapeSignature.of(frames=5), "float32")
COST = StepCost(1e9, 1e6, 1e5)


@pytest.mark.parametrize(
    ("name", "sessions", "seconds", "price"),
    [
        ("h20-1.3b", 8, 0.30 + 0.15 * 8, 1.5),
        ("h20-7b", 4, 0.35 + 0.30 * 4, 1.5),
        ("b300-1.3b", 16, 0.25 + 0.06 * 16, 6.0),
        ("b300-7b", 10, 0.30 + 0.12 * 10, 6.0),
    ],
)
def test_the_calibrations_are_the_fixed_ones(name, sessions, seconds, price):
    known = calibration(name)
    assert (known.max_sessions, known.price_per_hour) == (sessions, price)
    assert known.cost.chunk_seconds(sessions) == pytest.approx(seconds)
    assert len(CALIBRATIONS) == 4


def test_an_unknown_calibration_is_refused_with_the_nearest():
    with pytest.raises(FleetError, match=r"calibration='h20-13b'.*nearest: h20-1.3b"):
        calibration("h20-13b")


def test_a_table_goes_on_with_its_last_slope():
    cost = TableChunkCost((1.0, 1.5, 2.5))
    assert [cost.chunk_seconds(n) for n in (1, 3, 5)] == [1.0, 2.5, 4.5]
    assert TableChunkCost((2.0,)).chunk_seconds(3) == 6.0


def test_the_chunk_table_begins_with_an_empty_worker():
    assert chunk_table(LinearChunkCost(0.5, 0.25), 2) == (0.0, 0.75, 1.0)


@pytest.mark.parametrize("times", [(1.0, 0.5), (0.0, 1.0), (float("nan"),), (-1.0,), (float("inf"),)])
def test_times_that_make_no_sense_are_refused(times):
    with pytest.raises(FleetError, match="the cost model gives"):
        chunk_table(TableChunkCost(times), len(times))


def test_the_cost_model_is_asked_each_time():
    model = CostModel(DeviceIdentity("cpu", "x", 2))
    cost = ModelChunkCost(model, [ChunkCall(KEY, COST, 3)])
    for _ in range(8):
        model.observe(KEY, COST, 1, 0.1)
        model.observe(KEY, COST, 2, 0.16)
    assert cost.chunk_seconds(1) == pytest.approx(0.3)
    assert cost.chunk_seconds(2) == pytest.approx(0.48)
    for _ in range(40):
        model.observe(KEY, COST, 2, 0.2)
    assert cost.chunk_seconds(2) == pytest.approx(0.6, rel=0.05)


def test_a_larger_batch_is_never_faster():
    class Crossing:
        def predict(self, key, cost, num_plans=1):
            return {1: 1.0, 2: 3.0, 3: 2.0}[num_plans]

    cost = ModelChunkCost(Crossing(), [ChunkCall(KEY, COST)])
    assert [cost.chunk_seconds(n) for n in (1, 2, 3)] == [1.0, 3.0, 3.0]


def test_a_chunk_needs_a_call():
    with pytest.raises(FleetError, match="without calls"):
        ModelChunkCost(CostModel(DeviceIdentity("cpu", "x", 2)), [])
