from __future__ import annotations

import json

import pytest
import torch

from fastvideo_core.errors import NonFiniteError
from fastvideo_core.runtime.engine import Engine
from fastvideo_observers import nanwatch_plugin, profiler_plugin
from fastvideo_testing.samples import HOLD, extensions_of
from fastvideo_testing.tiny.faults import faulty_card


def open_with(card, spec, *others, **options):
    return Engine.open(card, extensions=extensions_of(spec, *others, options={f"observer.{spec.name}": options}))


def observer_of(engine):
    (observer,) = engine.instance.hooks.observers.values()
    return observer


def test_nanwatch_names_the_first_tensor(tiny_card, tmp_path):
    with open_with(tiny_card, nanwatch_plugin.SPEC, file=tmp_path / "found.jsonl") as engine:
        with torch.no_grad():
            engine.instance.component("transformer").to_velocity.bias[0] = float("inf")
        bad = engine.make_request("x", request_id="bad", parameters={"seed": 1, "height": 16, "width": 16})
        with pytest.raises(NonFiniteError):
            engine.submit(bad).result(30)
        (finding,) = observer_of(engine).findings.values()
    assert (finding.request_id, finding.loop_id, finding.component) == ("bad", "denoise", "transformer")
    assert (finding.step_index, finding.tensor) == (0, "velocity")
    assert finding.num_nan + finding.num_inf == finding.num_values / 4  # one of four channels
    assert "denoise step 1, transformer: velocity is the first that is not finite" in str(finding)
    (line,) = (tmp_path / "found.jsonl").read_text().splitlines()
    assert json.loads(line)["tensor"] == "velocity"


def test_nanwatch_names_the_step_where_no_tensor_was_seen(tiny_card):
    card = faulty_card(tiny_card.checkpoint.source, fault="nan")
    with open_with(card, nanwatch_plugin.SPEC) as engine:
        with pytest.raises(NonFiniteError):
            engine.generate("x")
        (finding,) = observer_of(engine).findings.values()
    assert (finding.step_index, finding.tensor, finding.num_values) == (1, "result", None)


def test_the_profiler_writes_a_trace_and_a_table(tiny_card, tmp_path):
    trace, table = tmp_path / "trace.json", tmp_path / "table.txt"
    with open_with(tiny_card, profiler_plugin.SPEC, HOLD, trace=trace, table=table) as engine:
        engine.generate("x", num_inference_steps=4, seed=1)
        calls = [call for call in observer_of(engine).calls if call.loop_id == "denoise"]
    assert [call.step_indices for call in calls] == [(0,), (1,), (2,), (3,)]
    assert [call.num_computed for call in calls] == [1, 0, 1, 0]
    assert all(call.seconds > 0 for call in calls)
    assert [call.began_s for call in calls] == sorted(call.began_s for call in calls)
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["cat"] == "transformer"]
    assert {event["ph"] for event in events} == {"X"}
    assert [event["args"]["steps"] for event in events] == [[0], [1], [2], [3]]
    row = next(line for line in table.read_text().splitlines() if line.startswith("denoise"))
    assert row.split()[:4] == ["denoise", "transformer", "1", "4"]


def test_the_profiler_keeps_no_more_than_it_may(tiny_card):
    with open_with(tiny_card, profiler_plugin.SPEC, max_calls=2) as engine:
        engine.generate("x", num_inference_steps=4, seed=1)
        observer = observer_of(engine)
    assert len(observer.calls) == 2
    assert "denoise" in observer.table()
