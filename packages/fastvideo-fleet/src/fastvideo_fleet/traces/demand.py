"""The generator's laws, and what load they give on average.

A session is active when it arrives, and then alternates between active and idle spells until its length is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

import numpy as np
import numpy.typing as npt

__all__ = ["TRACE_LAW", "SessionLaw", "active_seconds_per_arrival", "probability_active"]


@dataclass(frozen=True, slots=True)
class SessionLaw:
    """How sessions arrive and behave.

    Attributes:
        rate_factors: Arrival rates of the modulating chain's states, as multiples of r.
        dwell_s: Mean dwell in each state, exponential; the next state is one of the others, equally likely.
        length_median_s: Median of the session length, log-normal.
        length_sigma: Its sigma.
        max_length_s: Where it is cut.
        active_mean_s: Mean of an active spell, exponential.
        idle_median_s: Median of an idle spell, log-normal.
        idle_sigma: Its sigma.
    """

    rate_factors: tuple[float, ...] = (1.0, 3.0, 8.0)
    dwell_s: tuple[float, ...] = (300.0, 90.0, 30.0)
    length_median_s: float = 180.0
    length_sigma: float = 1.2
    max_length_s: float = 3600.0
    active_mean_s: float = 40.0
    idle_median_s: float = 20.0
    idle_sigma: float = 1.0

    @property
    def mean_rate_factor(self) -> float:
        """Mean arrival rate as a multiple of r: the states' time shares are in proportion to their dwells."""
        total = sum(self.dwell_s)
        return sum(rate * dwell for rate, dwell in zip(self.rate_factors, self.dwell_s, strict=True)) / total


TRACE_LAW = SessionLaw()
"""The law of the traces that stand for the paper's, which are not public."""


def probability_active(law: SessionLaw, ages_s: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the probability that a session is there and active, at the middle of the step after each age.

    Whether it is active, were it never to depart, is an alternating renewal process that starts active, a(t). With the
    density f of the active spell and g of the idle one, a solves a(t) = P(spell > t) + (f * g * a)(t).

    Args:
        law: The law.
        ages_s: Equally spaced ages from 0, in seconds.

    Source: Cox 1962, Renewal Theory, section 7.2.
    """
    step = float(ages_s[1] - ages_s[0])
    middles = ages_s + step / 2
    spell = _exponential_cdf(ages_s + step, law.active_mean_s) - _exponential_cdf(ages_s, law.active_mean_s)
    idle = np.diff(_lognormal_cdf(np.append(ages_s, ages_s[-1] + step), law.idle_median_s, law.idle_sigma))
    cycle = np.convolve(spell, idle)[: len(ages_s)]
    still = np.exp(-middles / law.active_mean_s)
    active = np.zeros_like(ages_s)
    for index in range(len(ages_s)):
        # The middles of cells i and j add up to (i + j + 1) steps, after which a new cycle begins.
        active[index] = still[index] + float(np.dot(cycle[:index], active[:index][::-1]))
    survives = 1.0 - _lognormal_cdf(middles, law.length_median_s, law.length_sigma)
    return active * np.where(middles < law.max_length_s, survives, 0.0)


def active_seconds_per_arrival(law: SessionLaw, duration_s: float, *, step_s: float = 1.0) -> float:
    """Return the expected active seconds within a trace of a session that arrives at a random time of it.

    The trace starts empty, so a session of age u is seen only if it arrived in the first `duration_s - u` seconds.
    """
    horizon = min(duration_s, law.max_length_s)
    ages = np.arange(0.0, horizon, step_s)
    seen = (duration_s - ages - step_s / 2) / duration_s
    return float(np.sum(probability_active(law, ages) * seen) * step_s)


def _exponential_cdf(values: npt.NDArray[np.float64], mean: float) -> npt.NDArray[np.float64]:
    return 1.0 - np.exp(-values / mean)


def _lognormal_cdf(values: npt.NDArray[np.float64], median: float, sigma: float) -> npt.NDArray[np.float64]:
    """Return the distribution function of a log-normal variable, by the normal's (Abramowitz and Stegun 7.1.26)."""
    logs = np.log(np.maximum(values, 1e-300)) - log(median)
    return np.where(values > 0, _normal_cdf(logs / sigma), 0.0)


def _normal_cdf(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    scaled = np.abs(values) / 2**0.5
    t = 1.0 / (1.0 + 0.3275911 * scaled)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = series * np.exp(-scaled * scaled) / 2
    return np.where(values > 0, 1.0 - tail, tail)


def mean_length_s(law: SessionLaw) -> float:
    """Return the mean session length, the cut included: the integral of the survival function."""
    steps = np.arange(0.5, law.max_length_s)
    return float(np.sum(1.0 - _lognormal_cdf(steps, law.length_median_s, law.length_sigma)))


def untruncated_mean_s(law: SessionLaw) -> float:
    """Return the mean of the session length without the cut, in closed form."""
    return law.length_median_s * exp(law.length_sigma**2 / 2)
