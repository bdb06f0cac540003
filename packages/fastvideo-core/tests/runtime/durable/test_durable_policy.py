from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastvideo_core.runtime.durable.policy import CheckpointAccount, CheckpointPolicy

SECONDS = st.floats(1e-4, 20.0)


def play(policy, steps):
    """Run steps of (compute, what a write after it would take); return the account and the writes with their times."""
    account = CheckpointAccount()
    writes = []
    for compute_s, write_s in steps:
        account.worked(compute_s)
        if policy.should_write(account):
            writes.append((account.compute_s, account.at_risk_s, write_s, account.expected_write_s))
            account.wrote(write_s, saved_s=account.at_risk_s)
    return account, writes


@given(st.lists(st.tuples(SECONDS, st.floats(1e-5, 3.0)), max_size=200))
def test_writing_takes_no_more_than_its_share_but_for_what_the_last_write_took_longer_than_foreseen(steps):
    account, writes = play(CheckpointPolicy(), steps)
    surprise = max((max(0.0, write_s - expected) for *_, write_s, expected in writes), default=0.0)
    assert account.written_s <= 0.01 * account.compute_s + surprise + 1e-9


@given(st.lists(SECONDS, min_size=50, max_size=400), st.floats(1e-5, 0.02))
def test_writes_that_take_what_was_foreseen_stay_within_the_share_at_every_moment(computes, write_s):
    account = CheckpointAccount(first_write_s=write_s)
    policy = CheckpointPolicy()
    for compute_s in computes:
        account.worked(compute_s)
        if policy.should_write(account):
            account.wrote(write_s, saved_s=account.at_risk_s)
        assert account.written_s <= 0.01 * account.compute_s + 1e-9


@given(st.lists(st.tuples(SECONDS, st.floats(1e-5, 1000.0)), max_size=200), st.floats(1.0, 60.0))
def test_no_more_is_at_risk_than_stated_but_for_the_step_that_goes_over(steps, max_at_risk_s):
    policy = CheckpointPolicy(max_at_risk_s=max_at_risk_s)
    account = CheckpointAccount()
    for compute_s, write_s in steps:
        account.worked(compute_s)
        assert account.at_risk_s < max_at_risk_s + compute_s
        if policy.should_write(account):
            account.wrote(write_s, saved_s=account.at_risk_s)


@pytest.mark.parametrize(("write_s", "interval_s"), [(0.05, 5.0), (0.5, 50.0), (0.002, 1.0)])
def test_what_a_crash_costs_is_the_time_of_a_write_over_its_share(write_s, interval_s):
    _, writes = play(CheckpointPolicy(), [(0.01, write_s)] * 40_000)
    assert len(writes) >= 4
    # The first was taken to cost something else, and the next two make up for that.
    assert [at_risk_s for _, at_risk_s, *_ in writes[3:]] == pytest.approx([interval_s] * (len(writes) - 3), rel=0.02)


def test_a_long_job_of_slow_writes_is_written_at_the_stated_interval():
    account, writes = play(CheckpointPolicy(), [(10.0, 60.0)] * 1000)
    assert [at_risk_s for _, at_risk_s, *_ in writes[1:]] == [1800.0] * (len(writes) - 1)
    assert account.at_risk_s < 1800.0


def test_a_write_that_came_to_nothing_leaves_the_compute_at_risk():
    account = CheckpointAccount()
    account.worked(100.0)
    account.wrote(0.3, saved_s=0.0)
    assert (account.at_risk_s, account.written_s, account.expected_write_s) == (100.0, 0.3, 0.3)


def test_compute_during_a_write_stays_at_risk():
    account = CheckpointAccount()
    account.worked(100.0)
    account.worked(5.0)
    account.wrote(0.1, saved_s=100.0)
    assert account.at_risk_s == pytest.approx(5.0)


def test_a_first_write_is_taken_to_be_dear():
    """A job that ends right after its first checkpoint is within the share, though nothing was measured before."""
    account, writes = play(CheckpointPolicy(), [(0.05, 0.06)] * 220)
    assert len(writes) == 1
    assert account.written_s <= 0.01 * account.compute_s
    assert writes[0][0] == pytest.approx(10.0, abs=0.06)
