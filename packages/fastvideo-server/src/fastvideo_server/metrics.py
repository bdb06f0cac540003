"""What Prometheus reads: the queue, calls of the device, latencies, caches, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from fastvideo_core.runtime.engine import Engine

__all__ = ["Metrics"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
_ERRORS = (0.05, 0.1, 0.2, 0.35, 0.5, 1, 2, 5)


class Metrics:
    """The server's figures, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.http_seconds = self._histogram(
            "http_seconds", "Seconds to answer a request", ("method", "route", "status"), _SECONDS
        )
        self.jobs = Counter("fastvideo_jobs", "Jobs that have ended", ("status",), registry=self.registry)
        self.job_seconds = self._histogram("job_seconds", "Seconds from acceptance to the end", (), _SECONDS)
        self.first_chunk_seconds = self._histogram(
            "first_chunk_seconds", "Seconds from acceptance to the first frames", (), _SECONDS
        )
        self.cancel_seconds = self._histogram("cancel_seconds", "Seconds from a cancellation to the end", (), _SECONDS)
        self.call_seconds = self._histogram("call_seconds", "Seconds of a call of the device", (), _SECONDS)
        self.call_steps = self._histogram("call_steps", "Steps that share a call", (), _SIZES)
        self.session_chunk_seconds = self._histogram(
            "session_chunk_seconds", "Seconds from a chunk's first step to its last frame", (), _SECONDS
        )
        self.session_lag_seconds = self._histogram(
            "session_lag_seconds", "Seconds by which a chunk came later than its viewer wanted it", (), _SECONDS
        )
        self.sessions = Gauge("fastvideo_sessions_now", "Sessions that have not ended", registry=self.registry)
        self.prediction_error = self._histogram(
            "prediction_error", "Difference of a call of one step from its prediction, as a share of it", (), _ERRORS
        )

    def called(self, size: int, seconds: float, predicted_s: float | None) -> None:
        """Note a call of the device."""
        self.call_steps.observe(size)
        self.call_seconds.observe(seconds)
        if predicted_s is not None:
            self.prediction_error.observe(abs(seconds - predicted_s) / predicted_s)

    def watch(self, engine: Engine, queue_sizes: Callable[[], tuple[int, int]]) -> None:
        """Let what an engine and the queue hold be read when somebody asks.

        Args:
            engine: The engine.
            queue_sizes: Gives the jobs that wait and those that the engine has.
        """
        self.registry.register(_Held(engine, queue_sizes))

    def text(self) -> bytes:
        """Return all figures in Prometheus' text form."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"fastvideo_{name}", text, labels, buckets=buckets, registry=self.registry)


class _Held(Collector):
    """Reads sizes at the moment when they are asked for."""

    def __init__(self, engine: Engine, queue_sizes: Callable[[], tuple[int, int]]) -> None:
        self._engine = engine
        self._queue_sizes = queue_sizes
        self._weights_bytes = engine.instance.num_bytes
        self._process = psutil.Process()

    def collect(self) -> Iterator[Metric]:
        queued, running = self._queue_sizes()
        jobs = GaugeMetricFamily("fastvideo_jobs_now", "Jobs that have not ended", labels=["state"])
        jobs.add_metric(["queued"], queued)
        jobs.add_metric(["running"], running)
        yield jobs
        hits = CounterMetricFamily("fastvideo_cache_hits", "Answers out of a cache", labels=["cache"])
        misses = CounterMetricFamily("fastvideo_cache_misses", "Answers that had to be computed", labels=["cache"])
        memory = GaugeMetricFamily("fastvideo_memory_bytes", "Memory by what holds it", labels=["class"])
        memory.add_metric(["weights"], self._weights_bytes)
        memory.add_metric(["process"], self._process.memory_info().rss)
        for name, cache in self._engine.caches.features.items():
            stats = cache.stats
            hits.add_metric([name], stats.hits)
            misses.add_metric([name], stats.misses)
            memory.add_metric([f"cache:{name}"], stats.used_bytes)
        yield from (hits, misses, memory)
