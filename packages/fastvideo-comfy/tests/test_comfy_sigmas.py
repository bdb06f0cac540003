"""Schedules against formulas in double precision, written down apart from the code."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from fastvideo_comfy.sigmas import SCHEDULERS, beta_quantile, sampler_levels, scheduler_levels, table_level
from fastvideo_core.errors import ParameterError

SHIFTS = (1.0, 3.0, 5.000000000000001, 8.0, 12.5)
STEPS = (2, 3, 4, 8, 10, 20, 30, 33, 50, 100)


def sigma(t, s):
    return s * t / (1 + (s - 1) * t)


def table(s):
    return sigma(np.arange(1, 1001) / 1000, s)


def simple(n, s):
    return [table(s)[-(1 + int(k * 1000 / n))] for k in range(n)]


def normal(n, s):
    times = np.linspace(1000 * table(s)[-1], 1000 * table(s)[0], n)
    return list(sigma(times / 1000, s))


def sgm_uniform(n, s):
    return list(sigma(np.linspace(1000, 1000 * table(s)[0], n + 1)[:-1] / 1000, s))


def beta(n, s):
    places = np.rint(999 * stats.beta.ppf(1 - np.arange(n) / n, 0.6, 0.6)).astype(int)
    keep = np.concatenate([[True], places[1:] != places[:-1]])
    return list(table(s)[places[keep]])


def karras(n, s):
    low, high = table(s)[0] ** (1 / 7), table(s)[-1] ** (1 / 7)
    return list((high + np.linspace(0, 1, n) * (low - high)) ** 7)


def exponential(n, s):
    return list(np.geomspace(table(s)[-1], table(s)[0], n))


def kl_optimal(n, s):
    part = np.linspace(0, 1, n)
    return list(np.tan(part * np.arctan(table(s)[0]) + (1 - part) * np.arctan(table(s)[-1])))


def ddim_uniform(n, s):
    return list(table(s)[1 :: max(1000 // n, 1)][::-1])


FORMULAS = {
    "simple": simple, "normal": normal, "sgm_uniform": sgm_uniform, "beta": beta, "karras": karras,
    "exponential": exponential, "kl_optimal": kl_optimal, "ddim_uniform": ddim_uniform,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
@pytest.mark.parametrize("shift", SHIFTS)
def test_levels_are_those_of_the_formulas(name, shift):
    for steps in STEPS:
        levels = scheduler_levels(name, steps, shift)
        expected = [*FORMULAS[name](steps, shift), 0.0]
        assert len(levels) == len(expected)
        np.testing.assert_allclose(levels, expected, rtol=3e-7, atol=1e-9)
        assert levels == tuple(np.float32(levels).tolist())


def test_every_scheduler_has_a_formula():
    assert set(FORMULAS) == set(SCHEDULERS)


@pytest.mark.parametrize(("shift", "level"), [(5.0, 0.833), (8.0, 0.889)])
def test_the_level_at_which_wan_2_2_changes_its_expert(shift, level):
    assert scheduler_levels("simple", 20, shift)[10] == pytest.approx(level, abs=5e-4)


def test_the_table_is_float32_in_the_references_order_of_operations():
    t = (np.arange(1, 1001) / np.float32(1000)).astype(np.float32)
    t = (t * np.float32(1000)).astype(np.float32) / np.float32(1000)
    for shift in SHIFTS[1:]:
        s, less = np.float32(shift), np.float32(shift - 1)
        expected = (s * t) / (np.float32(1) + less * t)
        assert [table_level(index, shift) for index in range(1000)] == expected.tolist()


def test_beta_quantiles_against_two_libraries():
    for p in np.linspace(0.0005, 0.9995, 97):
        assert beta_quantile(p) == pytest.approx(special.betaincinv(0.6, 0.6, p), rel=1e-11)
    for p in (1e-9, 1e-4, 0.37, 0.5, 1 - 1e-6):
        assert mpmath.betainc(0.6, 0.6, 0, beta_quantile(p), regularized=True) == pytest.approx(p, rel=1e-9)
    assert (beta_quantile(0.0), beta_quantile(1.0)) == (0.0, 1.0)


def test_unipc_leaves_the_level_before_zero_out():
    kept = scheduler_levels("simple", 31, 8.0)
    assert sampler_levels("simple", 30, 8.0, drops_last_but_one=True) == (*kept[:-2], 0.0)
    assert len(sampler_levels("simple", 30, 8.0, drops_last_but_one=False)) == 31


@pytest.mark.parametrize(("steps", "shift"), [(0, 3.0), (1001, 3.0), (10, 0.0), (10, -1.0), (10, float("nan"))])
def test_settings_out_of_range_are_refused(steps, shift):
    with pytest.raises(ParameterError):
        scheduler_levels("simple", steps, shift)


def test_levels_that_do_not_fall_are_refused():
    with pytest.raises(ParameterError, match="do not fall in float32"):
        scheduler_levels("simple", 900, 1e9)
