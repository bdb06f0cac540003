"""What a run gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Series", "SimulationResult"]


@dataclass(frozen=True, slots=True)
class Series:
    """What happened over time, one entry a bin; figures are those at the bin's end, latencies the bin's worst.

    Attributes:
        time_s: End of each bin.
        num_active: Active sessions.
        num_gpus: GPUs held.
        load: Sessions on workers over the places of the workers that serve.
        worst_latency_s: Worst chunk latency.
        num_migrations: Migrations since the start.
    """

    time_s: npt.NDArray[np.float64]
    num_active: npt.NDArray[np.float64]
    num_gpus: npt.NDArray[np.float64]
    load: npt.NDArray[np.float64]
    worst_latency_s: npt.NDArray[np.float64]
    num_migrations: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The figures of one policy on one trace.

    Attributes:
        policy: Name of the policy.
        worst_chunk_latency_s: Longest time from asking for a chunk to having it.
        p99_chunk_latency_s: What 99 of 100 chunks keep.
        mean_chunk_latency_s: Mean over all chunks.
        worst_batch_s: Longest batch.
        worst_queue_and_batch_s: Worst wait for a worker and the batch after it: the worst chunk latency if the wait for
            the batch in flight does not count.
        worst_unserved_s: Longest wait of a session that went away without a chunk.
        gpu_cost: Dollars for all GPUs held, starting and draining ones included.
        gpu_hours: Their hours.
        num_chunks: Chunks made.
        num_migrations: Moves between workers.
        num_suspends: Moves to the host.
        num_starts: Workers started after the beginning.
        max_sessions_on_worker: Most sessions in one batch.
        slo_violations: Chunks later than their session's limit.
        experienced_utilization: Mean over session-seconds of the worker's sessions over K.
        decide_ms_p50: Median processor time of a decision: what else runs on the machine does not count.
        decide_ms_p99: What 99 of 100 decisions keep.
        series: What happened over time.
        budget: Changes of the number of GPUs held: times and new numbers.
    """

    policy: str
    worst_chunk_latency_s: float
    p99_chunk_latency_s: float
    mean_chunk_latency_s: float
    worst_batch_s: float
    worst_queue_and_batch_s: float
    worst_unserved_s: float
    gpu_cost: float
    gpu_hours: float
    num_chunks: int
    num_migrations: int
    num_suspends: int
    num_starts: int
    max_sessions_on_worker: int
    slo_violations: int
    experienced_utilization: float
    decide_ms_p50: float
    decide_ms_p99: float
    series: Series
    budget: tuple[tuple[float, int], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the figures, without what happened over time."""
        hidden = ("series", "budget")
        return {name: getattr(self, name) for name in self.__slots__ if name not in hidden}
