"""The workload detector: a sliding window of demand, its variation, and how fast sessions come and go.

Time is cut into buckets of one second. The short window tells what happens now, the long one what is usual.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import exp, sqrt

from fastvideo_fleet.control.arrivals import ArrivalFilter, RegimeSettings

__all__ = ["DetectorSettings", "Forecast", "ModelDemand", "WorkloadDetector"]

_HORIZONS = (0.25, 0.5, 1.0)
"""When demand is looked at, in lead times: where sessions leave faster than they come, it is highest early."""


@dataclass(frozen=True, slots=True)
class DetectorSettings:
    """Windows and first guesses.

    Attributes:
        bucket_s: Width of a bucket.
        short_s: Window of the present arrival rate.
        long_s: Window of usual rates, of demand and its variation.
        active_guess_s: Mean active spell before any was seen.
        idle_guess_s: Mean idle spell before any was seen.
        guess_weight: Spells that the guesses count for.
        regimes: What arrivals may do.
    """

    bucket_s: float = 1.0
    short_s: float = 8.0
    long_s: float = 240.0
    active_guess_s: float = 40.0
    idle_guess_s: float = 40.0
    guess_weight: float = 20.0
    regimes: RegimeSettings = field(default_factory=RegimeSettings)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Demand one lead time ahead.

    Attributes:
        mean: Expected number of active sessions.
        sigma: Standard deviation if the rates stay as they are.
    """

    mean: float
    sigma: float


@dataclass(slots=True)
class _Bucket:
    arrivals: int = 0
    leaves: int = 0
    resumes: int = 0
    active_s: float = 0.0
    idle_s: float = 0.0
    max_active: int = 0


@dataclass(slots=True)
class ModelDemand:
    """The sliding window of one model.

    Attributes:
        settings: Windows.
        num_active: Active sessions now.
        num_idle: Idle sessions now.
    """

    settings: DetectorSettings
    num_active: int = 0
    num_idle: int = 0
    _current: _Bucket = field(default_factory=_Bucket)
    _buckets: deque[_Bucket] = field(default_factory=deque)
    _long: _Bucket = field(default_factory=_Bucket)
    _short_arrivals: int = 0
    _sum: float = 0.0
    _sum_squares: float = 0.0
    _start_s: float = 0.0
    _last_s: float = 0.0

    def observe(self, now_s: float, num_active: int, num_idle: int, kind: str) -> int:
        """Take an event in.

        Args:
            now_s: Its time.
            num_active: Active sessions after it.
            num_idle: Idle sessions after it.
            kind: `arrive`, `resume`, `leave`, or "" for the passing of time alone.

        Returns:
            How many buckets were closed on the way.
        """
        closed = self._pass(now_s)
        self.num_active, self.num_idle = num_active, num_idle
        bucket = self._current
        if kind == "arrive":
            bucket.arrivals += 1
        elif kind == "resume":
            bucket.resumes += 1
        elif kind == "leave":
            bucket.leaves += 1
        bucket.max_active = max(bucket.max_active, num_active)
        return closed

    def recent_arrivals(self, num_buckets: int) -> list[int]:
        """Return the arrivals in each of the last closed buckets, as many as are remembered, the oldest first."""
        count = min(num_buckets, len(self._buckets))
        return [self._buckets[index].arrivals for index in range(-count, 0)]

    @property
    def arrival_rate(self) -> float:
        """Usual arrivals in a second."""
        return self._long.arrivals / max(self._span_s(), self.settings.short_s)

    @property
    def arrival_rate_now(self) -> float:
        """Arrivals in a second over the short window."""
        span = min(self.settings.short_s + self._last_s - self._start_s, self._span_s())
        return (self._short_arrivals + self._current.arrivals) / span

    @property
    def leave_rate(self) -> float:
        """Rate at which an active session goes idle or departs, in 1/s."""
        weight = self.settings.guess_weight
        return (self._long.leaves + weight) / (self._long.active_s + weight * self.settings.active_guess_s)

    @property
    def resume_rate(self) -> float:
        """Rate at which an idle session comes back, in 1/s."""
        weight = self.settings.guess_weight
        return (self._long.resumes + weight) / (self._long.idle_s + weight * self.settings.idle_guess_s)

    @property
    def variation(self) -> float:
        """Standard deviation of demand over its mean, within the long window."""
        count = len(self._buckets)
        if count < 2 or self._sum <= 0:
            return 0.0
        mean = self._sum / count
        return sqrt(max(self._sum_squares / count - mean * mean, 0.0)) / mean

    def forecast(self, lead_s: float, *, arrival_rate: float) -> Forecast:
        """Return demand in `lead_s` seconds if rates stay.

        Active sessions leave and idle ones return as memoryless two-state processes; arrivals are Poisson.
        """
        leave, resume = self.leave_rate, self.resume_rate
        total = leave + resume
        mixed = 1.0 - exp(-total * lead_s)
        stays = 1.0 - leave / total * mixed
        returns = resume / total * mixed
        new = arrival_rate * (1.0 - exp(-leave * lead_s)) / leave
        mean = self.num_active * stays + self.num_idle * returns + new
        variance = self.num_active * stays * (1 - stays) + self.num_idle * returns * (1 - returns) + new
        return Forecast(mean, sqrt(variance))

    def _span_s(self) -> float:
        return (len(self._buckets) + 1) * self.settings.bucket_s

    def _pass(self, now_s: float) -> int:
        width, closed = self.settings.bucket_s, 0
        while now_s >= self._start_s + (closed + 1) * width:
            edge = self._start_s + (closed + 1) * width
            self._accrue(edge)
            self._close()
            closed += 1
        self._start_s += closed * width
        self._accrue(now_s)
        return closed

    def _accrue(self, until_s: float) -> None:
        step = until_s - self._last_s
        self._current.active_s += step * self.num_active
        self._current.idle_s += step * self.num_idle
        self._last_s = until_s

    def _close(self) -> None:
        bucket, total = self._current, self._long
        self._buckets.append(bucket)
        self._add(total, bucket, 1)
        self._sum += bucket.active_s
        self._sum_squares += bucket.active_s**2
        self._short_arrivals += bucket.arrivals
        short = int(self.settings.short_s / self.settings.bucket_s)
        if len(self._buckets) > short:
            self._short_arrivals -= self._buckets[-1 - short].arrivals
        if len(self._buckets) > int(self.settings.long_s / self.settings.bucket_s):
            old = self._buckets.popleft()
            self._add(total, old, -1)
            self._sum -= old.active_s
            self._sum_squares -= old.active_s**2
        self._current = _Bucket(max_active=self.num_active)

    @staticmethod
    def _add(total: _Bucket, bucket: _Bucket, sign: int) -> None:
        total.arrivals += sign * bucket.arrivals
        total.leaves += sign * bucket.leaves
        total.resumes += sign * bucket.resumes
        total.active_s += sign * bucket.active_s
        total.idle_s += sign * bucket.idle_s


class WorkloadDetector:
    """Demand of one model, and how far it may rise until a worker that is ordered now serves.

    Args:
        lead_s: How far ahead to look: the time that a worker takes to start, and a little more.
        most: Sessions that the fleet can hold; before anything is known, half of them may come within a lead time.
        settings: Windows.
    """

    def __init__(self, lead_s: float, most: int, settings: DetectorSettings | None = None) -> None:
        self.settings = settings or DetectorSettings()
        self.demand = ModelDemand(self.settings)
        self.lead_s = lead_s
        regimes = self.settings.regimes
        prior = most / 2 / (regimes.factors[-1] * max(lead_s, self.settings.bucket_s))
        self.arrivals = ArrivalFilter(prior, step_s=self.settings.bucket_s, settings=regimes)

    def observe(self, now_s: float, num_active: int, num_idle: int, kind: str) -> None:
        """Take an event in; arguments as those of `ModelDemand.observe`."""
        closed = self.demand.observe(now_s, num_active, num_idle, kind)
        for count in self.demand.recent_arrivals(closed):
            self.arrivals.update(count)

    def worst(self, num_sigmas: float) -> float:
        """Return the demand to be ready for: that of a burst that is on or begins now, within the lead time.

        Args:
            num_sigmas: Standard deviations to add to the expected demand.
        """
        rate = self.arrivals.burst_rate
        worst = float(self.demand.num_active)
        for share in _HORIZONS:
            forecast = self.demand.forecast(share * self.lead_s, arrival_rate=rate)
            worst = max(worst, forecast.mean + num_sigmas * forecast.sigma)
        return worst
