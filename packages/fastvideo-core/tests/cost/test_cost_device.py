from __future__ import annotations

import time

import pytest
import torch

from fastvideo_core.cost import CostModel, probe_device, this_device
from fastvideo_core.errors import StateError
from fastvideo_core.loop.work import BatchKey, ShapeSignature, StepCost

KEY = BatchKey("model", "transformer", "denoise", ShapeSignature.of(tokens=3), "float32")


def test_this_processor_is_named_with_its_threads():
    device = this_device("cpu")
    assert device.kind == "cpu"
    assert device.name
    assert device.num_threads == torch.get_num_threads()
    assert str(device) == f"{device.name} (cpu, {device.num_threads} threads)"


def test_the_quick_measurement_is_quick_and_sane():
    state = torch.get_rng_state()
    spent_s = []
    for _ in range(3):
        start = time.perf_counter()
        line = probe_device("cpu")
        spent_s.append(time.perf_counter() - start)
    # 18 ms by design; a busy machine may take a call's length longer a part.
    assert min(spent_s) < 0.06
    assert torch.equal(torch.get_rng_state(), state)
    assert 1e8 < 1 / line.flop_s < 1e13
    assert 1e7 < 1 / line.byte_s < 1e12
    assert 0 < line.plan_s < line.call_s < 0.1


def test_a_model_of_this_device_takes_up_its_file_and_refuses_that_of_another(tmp_path):
    path = tmp_path / "cost.json"
    model = CostModel.for_device("cpu", path)
    model.observe(KEY, StepCost(1e9), 1, 0.25)
    model.save(path)
    assert CostModel.for_device("cpu", path).predict(KEY, StepCost(1e9)) == 0.25
    other = CostModel(model.device._replace(name="Another CPU"))
    other.save(path)
    with pytest.raises(StateError, match="Another CPU"):
        CostModel.for_device("cpu", path)


@pytest.mark.gpu
def test_an_accelerator_is_measured():
    line = probe_device("cuda")
    assert 1e11 < 1 / line.flop_s < 1e16
    assert this_device("cuda").num_threads == 1
