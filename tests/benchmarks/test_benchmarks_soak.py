"""The soak: a short one of the tiny family, and whether it would notice what it looks for."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import soak
from _soak import FAULTS, Faults, Tally, tiny_wishes
from fastvideo_testing.tiny import write_tiny_checkpoint


@pytest.fixture(scope="module")
def faults():
    return Faults()


@pytest.fixture(scope="module")
def target(tmp_path_factory, faults):
    card = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    target = soak.make_target("tiny", card, tiny_wishes(), faults)
    yield target
    target.engine.close()


def test_a_short_soak_loses_nothing_and_gets_nothing_wrong(target, faults, monkeypatch, caplog):
    monkeypatch.setattr(soak, "LOST_EVERY_S", 0.5)
    figures = soak.soak([target], seconds=2.5, warmup_s=1.0)
    assert (figures["lost"], figures["wrong"], figures["is_healthy"]) == (0, 0, True)
    assert figures["memory_growth_ratio"] < 1.5
    assert set(faults.num_struck) == set(FAULTS)
    assert figures["ends"]["completed"] > 20
    assert {"cancelled", "NonFiniteError", "OutOfMemoryError", "ExecutionError"} <= set(figures["ends"])
    assert any("the device is lost" in record.message for record in caplog.records)


@pytest.mark.parametrize(("num_events", "num_lost"), [(0, 1), (1, 0), (2, 1)])
def test_a_request_that_does_not_end_once_is_counted(num_events, num_lost):
    tally = Tally()
    listener = tally.listener()
    for _ in range(num_events):
        listener(SimpleNamespace(type="request.completed", request_id="a"))
    listener(SimpleNamespace(type="request.progress", request_id="a"))
    tally.judge_events("a")
    assert tally.lost == num_lost


def test_a_result_that_differs_is_counted(target):
    exact, fast = (next(w for w in target.wishes if w.is_exact is is_exact) for is_exact in (True, False))
    expected = target.expected[target.wishes.index(exact)]

    def differing(by):
        latents = replace(expected.latents, latents=expected.latents.latents * np.float32(1 + by))
        return replace(expected, artifacts={**expected.artifacts, "latents": latents})

    for wish, by, num_wrong in ((exact, 0.0, 0), (exact, 1e-6, 1), (fast, 1e-6, 0), (fast, 1e-3, 1)):
        tally = Tally()
        tally.judge_result(differing(by), expected, wish, max_error=1e-5)
        assert tally.wrong == num_wrong, (wish.is_exact, by)
