from __future__ import annotations

import json

import pytest

from fastvideo_core.cost import CostModel
from fastvideo_core.errors import StateError
from fastvideo_core.runtime.engine import RuntimeOptions
from fastvideo_observers.profiler_plugin import SPEC
from fastvideo_testing.samples import HOLD


def num_seen(costs):
    """Return how many calls of the denoiser a cost model has learnt from."""
    return sum(group.num_observations for group in costs.report().groups if group.key.loop_kind == "denoise")


def test_it_writes_a_trace_and_a_table(open_with, observer_of, tmp_path):
    trace, table = tmp_path / "trace.json", tmp_path / "table.txt"
    with open_with(SPEC, HOLD, trace=trace, table=table) as engine:
        engine.generate("x", num_inference_steps=4, seed=1)
        calls = [call for call in observer_of(engine).calls if call.loop_id == "denoise"]
    assert [call.step_indices for call in calls] == [(0,), (1,), (2,), (3,)]
    assert [call.num_computed for call in calls] == [1, 0, 1, 0]
    assert all(call.seconds > 0 and call.device_s >= 0 for call in calls)
    assert [call.began_s for call in calls] == sorted(call.began_s for call in calls)
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "M"} == {"process_name", "thread_name"}
    denoise = [event for event in events if event.get("cat") == "transformer"]
    assert {event["ph"] for event in denoise} == {"X"}
    assert [event["args"]["steps"] for event in denoise] == [[0], [1], [2], [3]]
    assert [event["args"]["device_ms"] for event in denoise] == [round(call.device_s * 1e3, 6) for call in calls]
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert {event["tid"] for event in denoise} <= named
    row = next(line for line in table.read_text().splitlines() if line.startswith("denoise"))
    assert row.split()[:4] == ["denoise", "transformer", "1", "4"]
    assert float(row.split()[4]) == pytest.approx(sum(call.seconds for call in calls), abs=5e-4)
    assert float(row.split()[5]) == pytest.approx(sum(call.device_s for call in calls), abs=5e-4)


def test_it_keeps_no_more_than_it_may(open_with, observer_of):
    with open_with(SPEC, max_calls=2) as engine:
        engine.generate("x", num_inference_steps=4, seed=1)
        observer = observer_of(engine)
    assert len(observer.calls) == 2
    assert "denoise" in observer.table()


def test_a_table_of_shared_calls_has_the_time_of_a_step(open_with, observer_of):
    with open_with(SPEC) as engine:
        with engine.paused():
            parameters = {"num_inference_steps": 4}
            handles = [
                engine.submit(engine.make_request("x", parameters={**parameters, "seed": seed})) for seed in (1, 2)
            ]
        for handle in handles:
            handle.result(60)
        observer = observer_of(engine)
    shared = [call for call in observer.calls if call.loop_id == "denoise" and len(call.requests) == 2]
    assert shared
    row = next(
        line.split() for line in observer.table().splitlines() if line.split()[:3] == ["denoise", "transformer", "2"]
    )
    assert float(row[7]) == pytest.approx(float(row[6]) / 2, abs=2e-3)


def test_it_feeds_the_cost_model(open_with, observer_of, tmp_path):
    path = tmp_path / "costs.json"
    with open_with(SPEC, HOLD, costs=path) as engine:
        engine.generate("x", num_inference_steps=4, seed=1)
        calls = [call for call in observer_of(engine).calls if call.loop_id == "denoise"]
        first = observer_of(engine).costs
    learnt = CostModel.load(path)
    assert {key.loop_kind for key in learnt.groups()} >= {"denoise"}
    # What an interceptor answered is no measure of the model: two of the four calls are a kind of work of their own.
    by_variant = {
        one.key.variant: one.num_observations for one in learnt.report().groups if one.key.loop_kind == "denoise"
    }
    assert by_variant == {"fast+hold": 2, "fast+hold/part": 2}
    assert sum(call.num_computed for call in calls) == 2
    assert first.device == learnt.device

    with open_with(SPEC, costs=path, engine={"options": RuntimeOptions(costs_file=path)}) as engine:
        engine.generate("x", num_inference_steps=4, seed=1)
        # The engine began with these calibrations, and the profiler went on with them.
        assert {key.loop_kind for key in engine.costs.groups()} >= {"denoise"}
        again = observer_of(engine).costs
    assert num_seen(again) == 8


def test_a_file_that_holds_no_costs_is_refused_before_the_model_is_loaded(open_with, tmp_path):
    (tmp_path / "costs.json").write_text("{}")
    with pytest.raises(StateError, match=r"costs\.json"):
        open_with(SPEC, costs=tmp_path / "costs.json")
