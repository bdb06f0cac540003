from __future__ import annotations

import json

import pytest

from fastvideo_core.cost import CostLine, CostModel, DeviceIdentity
from fastvideo_core.errors import StateError
from fastvideo_core.loop.work import BatchKey, ShapeSignature, StepCost

KEY = BatchKey("model", "transformer", "denoise", ShapeSignature.of(tokens=3), "float32")


@pytest.fixture
def saved(tmp_path):
    model = CostModel(DeviceIdentity("cpu", "Test CPU", 2), prior=CostLine(1e-3, 0.0, 1e-11, 0.0))
    model.observe(KEY, StepCost(1e9, 5.0, 7.0), 2, 0.125)
    model.save(tmp_path / "cost.json")
    return tmp_path / "cost.json"


def test_a_file_says_what_it_holds(saved):
    body = json.loads(saved.read_text())["calibrations"]
    assert body["format"] == "fastvideo-cost/1"
    (group,) = body["groups"]
    assert group["points"][0] | {"recent_s": None} == {
        "shape": [["tokens", 3]],
        "num_plans": 2,
        "flops": 1e9,
        "weight_bytes": 5.0,
        "activation_bytes": 7.0,
        "mean_s": 0.125,
        "num_seen": 1,
        "recent_s": None,
    }


def test_saving_replaces_the_old_file_and_leaves_nothing_else(saved):
    model = CostModel.load(saved)
    model.observe(KEY, StepCost(2e9), 2, 0.5)
    model.save(saved)
    assert [path.name for path in saved.parent.iterdir()] == ["cost.json"]
    assert CostModel.load(saved).predict(KEY, StepCost(2e9), 2) == 0.5


def test_a_failed_write_is_told_and_keeps_the_old_file(saved, monkeypatch):
    old = saved.read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StateError, match=r"cannot be written to .*cost\.json: No space left"):
        CostModel.load(saved).save(saved)
    assert saved.read_bytes() == old
    assert [path.name for path in saved.parent.iterdir()] == ["cost.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe\x00", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[1, 2]", "another kind of file"),
        (b'{"tokens": 3}', "another kind of file"),
        (b'{"calibrations": {}, "sha256": "0"}', "digest differs"),
    ],
)
def test_corrupt_and_foreign_files_are_refused_by_name(saved, content, message):
    saved.write_bytes(content)
    with pytest.raises(StateError, match=rf"cost\.json.*{message}"):
        CostModel.load(saved)


def test_a_changed_figure_is_found(saved):
    saved.write_text(saved.read_text().replace("0.125", "0.126"))
    with pytest.raises(StateError, match=r"cost\.json is corrupt: its digest differs"):
        CostModel.load(saved)


def test_every_truncation_is_found(saved):
    whole = saved.read_bytes()
    for length in range(0, len(whole), 37):
        saved.write_bytes(whole[:length])
        with pytest.raises(StateError, match=r"cost\.json"):
            CostModel.load(saved)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(StateError, match=r"cannot be read from .*none\.json: No such file"):
        CostModel.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "fastvideo-cost/2"}, "format 'fastvideo-cost/2'"),
        ({"device": ["abacus", "x", 1]}, "corrupt: device"),
        ({"prior": [-1.0, 0.0, 0.0, 0.0]}, "at least 0"),
        ({"groups": [{"key": ["model"]}]}, "corrupt: groups"),
        ({"extra": 1}, "corrupt: extra"),
    ],
)
def test_documents_that_do_not_fit_are_refused(saved, change, message):
    document = CostModel.load(saved).to_json()
    with pytest.raises(StateError, match=message):
        CostModel.from_json({**document, **change})


def test_other_values_are_no_document():
    with pytest.raises(StateError, match="holds no calibrations"):
        CostModel.from_json([])  # type: ignore[arg-type]
