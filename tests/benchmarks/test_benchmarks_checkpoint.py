"""The benchmark of checkpoints, on the tiny family."""

from __future__ import annotations

import pytest

import checkpoint_cost
from fastvideo_core.runtime.loading import load_instance
from fastvideo_testing.tiny import write_tiny_checkpoint


@pytest.fixture
def runs(tmp_path):
    instance = load_instance(write_tiny_checkpoint(tmp_path / "tiny"), device="cpu")
    states = tmp_path / "states"
    states.mkdir()
    return checkpoint_cost.Runs(instance, states, num_requests=3, num_steps=2)


def test_both_runs_end_and_what_is_stored_is_removed(runs, tmp_path):
    runs.plain()
    assert list((tmp_path / "states").iterdir()) == []
    runs.stored()
    runs.stored()
    assert [one.compute_s > 0 for one in runs.totals] == [True, True]
    assert len(runs.finish_s) == 6
    assert min(runs.finish_s) > 0
    for folder in (tmp_path / "states").iterdir():
        assert list((folder / "jobs").iterdir()) == []
        assert len(list((folder / "outcomes").iterdir())) == 3


def test_acceptance_is_timed_without_a_run(runs, tmp_path):
    runs.time_acceptance()
    assert len(runs.accept_s) == 3
    assert len(list((tmp_path / "states/accept/jobs").iterdir())) == 3
