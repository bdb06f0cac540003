from __future__ import annotations

import json

import pytest
import torch

from fastvideo_core.errors import NonFiniteError
from fastvideo_observers.nanwatch_plugin import SPEC
from fastvideo_testing.tiny.faults import faulty_card


def test_it_names_the_first_tensor(open_with, observer_of, tmp_path):
    with open_with(SPEC, file=tmp_path / "found.jsonl") as engine:
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


def test_it_names_the_step_where_no_tensor_was_seen(tiny_card, open_with, observer_of):
    with open_with(SPEC, card=faulty_card(tiny_card.checkpoint.source, fault="nan")) as engine:
        with pytest.raises(NonFiniteError):
            engine.generate("x")
        (finding,) = observer_of(engine).findings.values()
    assert (finding.step_index, finding.tensor, finding.num_values) == (1, "result", None)
