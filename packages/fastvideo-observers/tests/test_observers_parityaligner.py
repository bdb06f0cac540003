from __future__ import annotations

import json

import pytest
import torch

from fastvideo_core.errors import ParameterError, ParityError, StateError
from fastvideo_observers.parityaligner_plugin import SPEC
from fastvideo_observers.recordings import read_recording, read_step

STEPS = {"num_inference_steps": 3, "height": 16, "width": 16}


@pytest.fixture
def run(open_with, observer_of):
    """Run requests with some seeds, and return their observer; `spoil` may change the model first."""

    def run_all(*seeds, spoil=None, ids=(), parameters=STEPS, **options):
        with open_with(SPEC, **options) as engine:
            if spoil is not None:
                with torch.no_grad():
                    spoil(engine.instance)
            observer = observer_of(engine)
            for index, seed in enumerate(seeds):
                name = {"request_id": ids[index]} if ids else {}
                engine.submit(engine.make_request("x", parameters={**parameters, "seed": seed}, **name)).result(60)
        return observer

    return run_all


def shift_velocity(instance):
    instance.component("transformer").to_velocity.bias += 0.5


def test_a_run_is_recorded_by_request_and_step(run, tmp_path):
    observer = run(1, 2, record=tmp_path / "before", ids=("a", "b"))
    first, second = read_recording(tmp_path / "before")
    assert (first.request_id, second.request_id) == ("a", "b")
    assert [key.step_index for key in sorted(first.steps) if key.node_id == "denoise"] == [0, 1, 2]
    taps = {key: [row.name for row in read_step(path)] for key, path in first.steps.items()}
    assert {name for names in taps.values() for name in names} == {"embeds", "pixels", "velocity"}
    assert observer.report()["is_aligned"] is None
    assert observer.alignments["a"].num_steps == len(first.steps)


def test_the_same_run_again_is_equal_to_the_bit(run, tmp_path):
    run(1, 2, record=tmp_path / "before", ids=("a", "b"))
    observer = run(2, 1, compare=tmp_path / "before", report=tmp_path / "report.json", ids=("b", "a"))
    assert all(one.parting is None and one.max_relative == 0.0 for one in observer.alignments.values())
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["is_aligned"] is True
    assert [one["reference_id"] for one in report["requests"]] == ["b", "a"]
    # The prompt is the same, so that whichever comes first encodes it for both.
    assert "text" in {key.node_id for key in read_recording(tmp_path / "before")[0].steps}
    assert report["requests"][0]["num_tensors"] == observer.alignments["b"].num_tensors > 3


def test_the_first_tensor_that_differs_is_named_with_its_step(run, tmp_path, caplog):
    run(1, record=tmp_path / "before", ids=("a",))
    observer = run(1, compare=tmp_path / "before", spoil=shift_velocity)
    (one,) = observer.alignments.values()
    assert one.reference_id == "a"  # another id, so the one that came first then
    assert (one.parting.node_id, one.parting.step_index, one.parting.tensor) == ("denoise", 0, "velocity")
    # All that comes before agrees; a bias moves what it is added to by itself.
    assert one.max_relative == 0.0
    assert one.parting.max_absolute == pytest.approx(0.5, rel=1e-5)
    assert "denoise step 1: tap" in caplog.text


def test_bounds_by_name_let_differences_pass(run, tmp_path):
    run(1, record=tmp_path / "before")
    wide = run(1, compare=tmp_path / "before", spoil=shift_velocity, max_relative=1e3)
    assert [one.parting for one in wide.alignments.values()] == [None]
    assert next(iter(wide.alignments.values())).max_relative > 0
    named = run(1, compare=tmp_path / "before", spoil=shift_velocity, tolerances={"vel*": 1e3})
    assert next(iter(named.alignments.values())).parting.tensor == "pixels"
    only = run(1, compare=tmp_path / "before", spoil=shift_velocity, taps=("embeds",))
    assert [one.parting for one in only.alignments.values()] == [None]


def test_a_request_may_be_stopped_where_it_differs(run, tmp_path):
    run(1, record=tmp_path / "before")
    with pytest.raises(ParityError, match=r"parts from the recording at denoise step 1: tap 0 \(velocity\) is off by"):
        run(1, compare=tmp_path / "before", spoil=shift_velocity, stop=True)


@pytest.mark.parametrize(
    ("seeds", "steps", "reason"),
    [
        ((1,), 2, "recorded steps not taken"),
        ((1,), 4, "is off by"),  # another schedule
        ((1, 1), 3, "the recording has no such request"),
    ],
)
def test_other_requests_than_the_recorded_are_told(seeds, steps, reason, run, tmp_path):
    run(1, record=tmp_path / "before", max_relative=None)
    taps = ("embeds",) if steps == 2 else ("*",)
    observer = run(*seeds, compare=tmp_path / "before", taps=taps, parameters={**STEPS, "num_inference_steps": steps})
    assert reason in str(list(observer.alignments.values())[-1].parting)
    assert observer.report()["is_aligned"] is False


def test_a_recorded_request_that_did_not_run_is_told(run, tmp_path):
    run(1, 2, record=tmp_path / "before", ids=("a", "b"))
    report = run(1, compare=tmp_path / "before", ids=("a",)).report()
    assert report["requests_that_did_not_run"] == ["b"]
    assert report["is_aligned"] is False


def test_what_cannot_be_recorded_or_compared_is_refused_before_the_model_is_loaded(run, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(ParameterError, match="holds something already"):
        run(record=tmp_path / "full")
    with pytest.raises(StateError, match="holds no recording"):
        run(compare=tmp_path / "nothing")
    with pytest.raises(ParameterError, match="give one of them"):
        run(record=tmp_path / "a", compare=tmp_path / "b")
    (tmp_path / "0000").mkdir()
    (tmp_path / "0000" / "denoise.00000.safetensors").write_bytes(b"no tensors")
    with pytest.raises(StateError, match="cannot be read"):
        run(compare=tmp_path)


def test_of_a_step_that_runs_again_the_last_run_counts(open_with, observer_of, tmp_path):
    from fastvideo_core.loop.hooks import ResultView, StepView
    from fastvideo_core.loop.work import BatchKey, ShapeSignature, StepCost

    key = BatchKey("m", "transformer", "denoise", ShapeSignature.of(tokens=1), "float32")
    step = StepView("a", "denoise", 0, 1, key, "denoise", StepCost(1.0))
    with open_with(SPEC, record=tmp_path / "before") as engine:
        observer = observer_of(engine)
        for value in (1.0, 2.0):
            observer.step_started([step])
            observer.tensor("velocity", step, torch.tensor([value]))
        observer.step_finished([step], [ResultView(True, True, {})], 0.1)
    (request,) = read_recording(tmp_path / "before")
    (path,) = request.steps.values()
    assert [(row.name, row.value.tolist()) for row in read_step(path)] == [("velocity", [2.0])]
