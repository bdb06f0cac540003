"""Noise levels as ComfyUI's schedulers give them to flow models; plain Python, so that compiling needs no torch.

ComfyUI keeps a float32 table of 1000 levels, sigma(i / 1000) with sigma(t) = s t / (1 + (s - 1) t), and each scheduler
chooses from it or computes with its ends. The table is made here in the same number format and order of operations;
what is computed from it is computed in double precision and rounded once.

Symbols: s flow shift, n steps, sigma noise level, t time in (0, 1].
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from itertools import pairwise

from fastvideo_core.errors import ParameterError

__all__ = ["NUM_TABLE", "SCHEDULERS", "beta_quantile", "sampler_levels", "scheduler_levels", "table_level"]

NUM_TABLE = 1000
"""Levels in the table, and the factor from a level to the model's timestep."""

_BETA_SHAPE = 0.6
_RHO = 7.0


def _f32(value: float) -> float:
    """Round to float32."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _shifted(time: float, shift: float) -> float:
    """Return sigma(t) in float32, operation by operation."""
    s, one_less, t = _f32(shift), _f32(shift - 1), _f32(time)
    if shift == 1.0:
        return t
    return _f32(_f32(s * t) / _f32(1 + _f32(one_less * t)))


def table_level(index: int, shift: float) -> float:
    """Return entry `index` of the table, from 0 (the smallest level) to 999 (which is 1)."""
    time = _f32(_f32(_f32((index + 1) / NUM_TABLE) * NUM_TABLE) / NUM_TABLE)
    return _shifted(time, shift)


def _ends(shift: float) -> tuple[float, float]:
    """Return the greatest and the smallest level of the table."""
    return table_level(NUM_TABLE - 1, shift), table_level(0, shift)


def _simple(n: int, shift: float) -> list[float]:
    return [table_level(NUM_TABLE - 1 - int(k * (NUM_TABLE / n)), shift) for k in range(n)]


def _spaced(num_points: int, shift: float) -> list[float]:
    """Return sigma of `num_points` times, even between the table's ends; the tail is thereby shifted a second time."""
    high, low = (level * NUM_TABLE for level in _ends(shift))
    if num_points == 1:
        return [_shifted(high / NUM_TABLE, shift)]
    step = (low - high) / (num_points - 1)
    return [_shifted((high + k * step) / NUM_TABLE, shift) for k in range(num_points)]


def _normal(n: int, shift: float) -> list[float]:
    return _spaced(n, shift)


def _sgm_uniform(n: int, shift: float) -> list[float]:
    return _spaced(n + 1, shift)[:-1]


def _beta(n: int, shift: float) -> list[float]:
    """Return table entries at the quantiles of a Beta(0.6, 0.6), equal neighbours once: many steps become fewer."""
    places = [round((NUM_TABLE - 1) * beta_quantile(1 - k / n)) for k in range(n)]
    kept = [places[0], *(after for before, after in pairwise(places) if after != before)]
    return [table_level(place, shift) for place in kept]


def _karras(n: int, shift: float) -> list[float]:
    high, low = (level ** (1 / _RHO) for level in _ends(shift))
    return [(high + k / max(n - 1, 1) * (low - high)) ** _RHO for k in range(n)]


def _exponential(n: int, shift: float) -> list[float]:
    high, low = (math.log(level) for level in _ends(shift))
    return [math.exp(high + k / max(n - 1, 1) * (low - high)) for k in range(n)]


def _kl_optimal(n: int, shift: float) -> list[float]:
    high, low = (math.atan(level) for level in _ends(shift))
    return [math.tan(high + k / max(n - 1, 1) * (low - high)) for k in range(n)]


def _ddim_uniform(n: int, shift: float) -> list[float]:
    """Return every (1000 // n)-th entry from entry 1 on, high to low; there may be more or fewer than n."""
    stride = max(NUM_TABLE // n, 1)
    return [table_level(place, shift) for place in reversed(range(1, NUM_TABLE, stride))]


SCHEDULERS: Mapping[str, Callable[[int, float], list[float]]] = {
    "simple": _simple,
    "normal": _normal,
    "sgm_uniform": _sgm_uniform,
    "beta": _beta,
    "karras": _karras,
    "exponential": _exponential,
    "kl_optimal": _kl_optimal,
    "ddim_uniform": _ddim_uniform,
}
"""Schedulers by ComfyUI's names: functions of n and s to the levels before the final 0."""


def scheduler_levels(scheduler: str, num_steps: int, shift: float) -> tuple[float, ...]:
    """Return a scheduler's levels, high to low, with the final 0, each a float32 value.

    Args:
        scheduler: Key of `SCHEDULERS`.
        num_steps: Steps that are asked for, at least 1.
        shift: Flow shift, above 0.

    Raises:
        ParameterError: Steps or shift are out of range, or no level is left that falls.
    """
    if num_steps < 1 or num_steps > NUM_TABLE:
        raise ParameterError(
            "not a number of steps", field="steps", value=num_steps, allowed=f"1 to {NUM_TABLE}",
            nearest=min(max(num_steps, 1), NUM_TABLE),
        )  # fmt: skip
    if not 0 < shift < math.inf:
        raise ParameterError("not a flow shift", field="shift", value=shift, allowed="a finite number above 0")
    levels = (*(_f32(level) for level in SCHEDULERS[scheduler](num_steps, shift)), 0.0)
    if not all(high > low for high, low in pairwise(levels)):
        raise ParameterError(
            f"the {scheduler} levels of {num_steps} steps do not fall in float32", field="steps", value=num_steps,
            allowed="fewer steps, or another scheduler",
        )  # fmt: skip
    return levels


def sampler_levels(scheduler: str, num_steps: int, shift: float, *, drops_last_but_one: bool) -> tuple[float, ...]:
    """Return the levels that a sampler steps through.

    Args:
        scheduler: Key of `SCHEDULERS`.
        num_steps: Steps that are asked for.
        shift: Flow shift.
        drops_last_but_one: Whether a step more is laid out and the level before 0 left out, as KSampler does for UniPC.
    """
    if not drops_last_but_one:
        return scheduler_levels(scheduler, num_steps, shift)
    levels = scheduler_levels(scheduler, num_steps + 1, shift)
    return (*levels[:-2], levels[-1])


def beta_quantile(p: float) -> float:
    """Return x with I_x(0.6, 0.6) = p: the quantile of the Beta distribution, by bracketed Newton steps.

    Source: the continued fraction of the incomplete beta function, DLMF 8.17.22.
    """
    if p <= 0 or p >= 1:
        return float(min(max(p, 0.0), 1.0))
    if p > 0.5:
        return 1.0 - beta_quantile(1 - p)
    low, high = 0.0, 0.5
    x: float = 0.5 * (2 * p) ** (1 / _BETA_SHAPE)
    log_b = 2 * math.lgamma(_BETA_SHAPE) - math.lgamma(2 * _BETA_SHAPE)
    for _ in range(100):
        error = _incomplete_beta(x, log_b) - p
        low, high = (x, high) if error < 0 else (low, x)
        density = math.exp((_BETA_SHAPE - 1) * (math.log(x) + math.log1p(-x)) - log_b)
        following = x - error / density
        following = following if low < following < high else (low + high) / 2
        if abs(following - x) <= 1e-14 * x:
            return following
        x = following
    return x


def _incomplete_beta(x: float, log_b: float) -> float:
    """Return I_x(a, a) for x up to a half, by Lentz's evaluation of the continued fraction."""
    a, tiny = _BETA_SHAPE, 1e-300
    c, d = 1.0, 1 / (1 - 2 * a * x / (a + 1))
    value = d
    for m in range(1, 200):
        even = m * (a - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (2 * a + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            value *= d * c
        if abs(d * c - 1) < 1e-16:
            break
    return math.exp(a * (math.log(x) + math.log1p(-x)) - log_b) * value / a
