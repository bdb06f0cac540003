"""How the fleet's benchmark matches a baseline with a policy."""

from __future__ import annotations

import pytest

from _fleet import MEASURES, Oracle, Setting


class Known(Setting):
    """A setting whose fixed fleets have a known worst latency: 12 / m."""

    asked: list

    def worst(self, baseline, num_gpus, measure):
        self.asked.append(num_gpus)
        return 12.0 / num_gpus


@pytest.fixture
def setting():
    known = Known.of("h20-7b", 4, 1)
    known.asked = []
    return known


def test_at_equal_cost_it_is_the_line_between_neighbours(setting):
    assert setting.latency_at("load-aware", 3.0, MEASURES[0]) == 4.0
    assert setting.latency_at("load-aware", 3.25, MEASURES[0]) == pytest.approx(4.0 - 0.25 * (4.0 - 3.0))
    assert setting.latency_at("load-aware", 0.2, MEASURES[0]) == 12.0


@pytest.mark.parametrize(("latency_s", "hours"), [(4.0, 3.0), (3.5, 3.5), (12.0, 1.0), (1.0, 12.0)])
def test_at_equal_latency_it_is_where_the_line_meets(setting, latency_s, hours):
    assert setting.hours_at("round-robin", latency_s, MEASURES[0]) == (pytest.approx(hours), True)


def test_a_baseline_may_have_four_times_the_gpus(setting):
    assert setting.hours_at("round-robin", 0.1, MEASURES[0]) == (16.0, False)
    assert max(setting.asked) == 16


def test_both_greedy_baselines_share_their_runs():
    setting = Setting.of("h20-7b", 2, 2)
    assert setting.fixed("memory-aware", 2) is setting.fixed("load-aware", 2)
    assert setting.fixed("round-robin", 2) is not setting.fixed("load-aware", 2)


def test_the_oracle_takes_the_cheapest_level_that_is_quick_enough():
    hours = {"clairvoyant": {2: 9.0, 3: 7.0, 4: 5.0}, "lead": {2: 12.0, 3: 9.0, 4: 8.0}}
    oracle = Oracle(hours, {2: 0.95, 3: 1.25, 4: 1.55}, 0.0)
    assert oracle.latency_at(7.5, "clairvoyant") == 1.25
    assert oracle.latency_at(1.0, "clairvoyant") == 1.55
    assert oracle.hours_at(1.3, "clairvoyant") == 7.0
    assert oracle.hours_at(1.3, "lead") == 9.0
    assert oracle.hours_at(0.5, "clairvoyant") == 9.0  # nothing is quick enough: the dearest


def test_a_trace_that_asks_for_more_than_the_fleet_has_a_wait_that_nobody_avoids():
    setting = Setting.of("h20-7b", 2, 2)
    assert setting.demand.peak <= 8
    assert Oracle.of(setting).wait_s == 0
    crowded = next(one for one in (Setting.of("h20-7b", 1, seed) for seed in range(1, 30)) if one.demand.peak > 4)
    assert Oracle.of(crowded).wait_s > 0
    assert {kind: list(hours) for kind, hours in Oracle.of(crowded).hours.items()} == {
        kind: [4] for kind in ("oracle", "clairvoyant", "lead")
    }
