"""How fast sessions arrive, and how fast they may: a filter over quiet times, busy times and bursts.

Arrivals are taken for a Poisson process whose rate is a usual one, r, times the factor of a hidden regime; regimes
change as a Markov chain. Neither r nor the regime is seen. The filter keeps the probability of each pair of both, on a
grid of rates, and updates it by the number of arrivals in each bucket of time. One regime more, the calm one, is that
there are no bursts at all; it lasts for a day, so it takes a long time without bursts to believe in it.

What a controller has to be ready for is the burst's rate, the greatest factor times r: a burst may begin at any
moment, and while one is on, arrivals come no faster than that. So the hedge does not add to a burst that is there.

Source: Fischer and Meier-Hellstern 1993, The Markov-modulated Poisson process cookbook, Performance Evaluation 18.

Array legend: G = rates of the grid, F = regimes, the calm one last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["ArrivalFilter", "RegimeSettings"]

Floats = npt.NDArray[np.float64]

_GRID_RATIO = 1.25
"""From one rate of the grid to the next."""

_GRID_LEAST = 1e-4
_GRID_MOST = 8.0
"""Ends of the grid, relative to the prior's rate."""

_HALVINGS = 20
"""A step's transitions are those of so much shorter a time, squared as often."""


@dataclass(frozen=True, slots=True)
class RegimeSettings:
    """What arrivals may do.

    Attributes:
        factors: Arrival rate of each regime but the calm one over the usual rate; the last is a burst's.
        dwell_s: Mean seconds that each lasts; the next is one of the others, equally likely.
        calm_s: Mean seconds for which there are no bursts at all, or may be some.
        calm_share: How likely it is at first that there are none.
        drift_s: Seconds in which the usual rate itself may change by a factor of e.
    """

    factors: tuple[float, ...] = (1.0, 3.0, 8.0)
    dwell_s: tuple[float, ...] = (300.0, 90.0, 30.0)
    calm_s: float = 86_400.0
    calm_share: float = 0.01
    drift_s: float = 20_000.0


class ArrivalFilter:
    """The probability of each usual rate and regime, given the arrivals so far.

    Args:
        prior_rate: The usual rate, in 1/s, that is expected before anything is known; a gamma law of shape 1.
        step_s: Width of a bucket.
        settings: The regimes.
    """

    def __init__(self, prior_rate: float, *, step_s: float, settings: RegimeSettings | None = None) -> None:
        self.settings = settings or RegimeSettings()
        num_rates = int(np.log(_GRID_MOST / _GRID_LEAST) / np.log(_GRID_RATIO)) + 1
        relative = _GRID_MOST * _GRID_RATIO ** -np.arange(num_rates, dtype=np.float64)
        self._rates = prior_rate * relative
        self._mean = np.outer(self._rates, [*self.settings.factors, self.settings.factors[0]]) * step_s
        self._log_mean = np.log(self._mean)
        self._turn = _transition(self.settings, step_s)
        self._drift = min(step_s / self.settings.drift_s / np.log(_GRID_RATIO) ** 2, 0.5)
        dwell_s, calm = np.array(self.settings.dwell_s), self.settings.calm_share
        regimes = np.append((1 - calm) * dwell_s / dwell_s.sum(), calm)
        weight = np.outer(relative * np.exp(-relative), regimes)
        self._weight = weight / weight.sum()

    def update(self, num_arrivals: int) -> None:
        """Take in the arrivals of one bucket."""
        weight = self._weight @ self._turn
        moved = self._drift / 2 * np.diff(weight, axis=0)
        weight[:-1] += moved
        weight[1:] -= moved
        # In logarithms: after a count that no likely rate explains, the products of both alone are all zero.
        with np.errstate(divide="ignore"):
            logs = np.log(weight) + num_arrivals * self._log_mean - self._mean
        weight = np.exp(logs - logs.max())
        self._weight = weight / weight.sum()

    @property
    def usual_rate(self) -> float:
        """Expected usual rate, in 1/s: that of quiet times."""
        return float(self._rates @ self._weight.sum(axis=1))

    @property
    def burst_rate(self) -> float:
        """Expected arrival rate if a burst is on or begins now, in 1/s; where none can be, the rate of calm times."""
        factors = np.append(np.full(len(self.settings.factors), self.settings.factors[-1]), self.settings.factors[0])
        return float(self._rates @ (self._weight @ factors))

    @property
    def regimes(self) -> Floats:
        """Probability of each regime, (F,)."""
        return np.asarray(self._weight.sum(axis=0))


def _transition(settings: RegimeSettings, step_s: float) -> Floats:
    """Return the chances of going from each regime to each within a step, (F, F): the exponential of the rates."""
    dwell_s = np.array(settings.dwell_s)
    count = len(dwell_s)
    rates = np.zeros((count + 1, count + 1))
    rates[:count, :count] = (1.0 - np.eye(count)) / dwell_s[:, None] / max(count - 1, 1)
    rates[0, count] = rates[count, 0] = 1.0 / settings.calm_s
    np.fill_diagonal(rates, -rates.sum(axis=1))
    return np.linalg.matrix_power(np.eye(count + 1) + rates * (step_s / 2**_HALVINGS), 2**_HALVINGS)
