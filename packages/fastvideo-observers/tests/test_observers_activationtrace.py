from __future__ import annotations

import csv
import json
import math

import pytest
import torch

from fastvideo_core.loop.hooks import StepView
from fastvideo_core.loop.work import BatchKey, ShapeSignature, StepCost
from fastvideo_observers.activationtrace import ActivationTrace
from fastvideo_observers.activationtrace_plugin import SPEC
from fastvideo_observers.options import ActivationTraceOptions

KEY = BatchKey("m", "transformer", "denoise", ShapeSignature.of(tokens=1), "float32")


def step(index=0):
    return StepView("a", "denoise", index, 4, KEY, "denoise", StepCost(1.0))


@pytest.mark.parametrize(
    ("value", "figures"),
    [
        (torch.tensor([1.0, 2.0, 3.0, 4.0, math.nan, math.inf]), (2.5, math.sqrt(1.25), 1.0, 4.0, 2)),
        (torch.tensor([[3e4, 3e4]], dtype=torch.float16), (30000.0, 0.0, 30000.0, 30000.0, 0)),
        (torch.tensor([3.0 + 1.0j]), (2.0, 1.0, 1.0, 3.0, 0)),
        (torch.tensor([True, False]), (0.5, 0.5, 0.0, 1.0, 0)),
        (torch.tensor([math.nan]), (None, None, None, None, 1)),
        (torch.empty(0, 3), (None, None, None, None, 0)),
    ],
)
def test_figures_are_of_finite_values(value, figures):
    trace = ActivationTrace(ActivationTraceOptions())
    trace.tensor("x", step(), value)
    (row,) = trace.rows
    got = (row.mean, row.std, row.min, row.max, row.num_bad)
    assert got == (figures if None in figures else pytest.approx(figures, rel=1e-12))
    assert (row.shape, row.dtype) == (tuple(value.shape), str(value.dtype)[6:])


def test_it_sees_every_tensor_of_a_run(open_with, observer_of, tmp_path):
    with open_with(SPEC, file=tmp_path / "rows.jsonl", taps=("vel*", "pixels"), every=2) as engine:
        engine.generate("x", num_inference_steps=4, seed=1, height=16, width=16)
        rows = observer_of(engine).rows
    denoise = [row for row in rows if row.node_id == "denoise"]
    assert [row.step_index for row in denoise] == [0, 2]
    assert {row.tensor for row in rows} == {"velocity", "pixels"}
    written = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["tensor"], row["mean"]) for row in written] == [(row.tensor, row.mean) for row in rows]


def test_it_writes_a_table(tmp_path):
    trace = ActivationTrace(ActivationTraceOptions(file=tmp_path / "rows.csv"))
    trace.tensor("x", step(), torch.tensor([[1.0, 3.0]]))
    trace.close()
    with (tmp_path / "rows.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["tensor"], row["shape"], float(row["mean"]), float(row["std"])) == ("x", "1x2", 2.0, 1.0)


def test_it_keeps_no_more_than_it_may_and_says_so(caplog):
    trace = ActivationTrace(ActivationTraceOptions(max_rows=2))
    for index in range(5):
        trace.tensor("x", step(index), torch.zeros(1))
    trace.close()
    assert [row.step_index for row in trace.rows] == [0, 1]
    assert "3 tensors were left out: max_rows is 2" in caplog.text
