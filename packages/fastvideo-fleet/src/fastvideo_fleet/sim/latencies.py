"""Chunk latencies, kept as counts: nearly all chunks of a worker take one of K batch times."""

from __future__ import annotations

from array import array

import numpy as np

from fastvideo_fleet.fleet import FleetSpec

__all__ = ["Latencies"]


class Latencies:
    """All chunk latencies of a run.

    A chunk's latency is the time from when it is asked for (the session became active, or its previous chunk was
    done) to when it is done. It holds the waiting for a worker, for the state, and for the batch in flight.

    Attributes:
        steady: For each class, how many chunks took the batch time of n sessions and nothing else, by n.
        first: Latencies of the chunks that had more to wait for: a session's first on a worker.
        unserved: Waits of sessions that went away without a chunk.
        worst_queued_s: Longest wait for a worker and batch after it, without the wait for the batch in flight.
        num_violations: Chunks, and unserved waits, over their session's limit.
    """

    def __init__(self, spec: FleetSpec, *, bin_s: float, duration_s: float) -> None:
        self.steady = [[0] * (one.max_sessions + 1) for one in spec.classes]
        self.first = array("d")
        self.unserved = array("d")
        self.worst_queued_s = 0.0
        self.num_violations = 0
        self.bin_s = bin_s
        self.worst_by_bin = [0.0] * (int(duration_s // bin_s) + 1)
        self._tables = [one.chunk_s for one in spec.classes]

    def add_first(self, latency_s: float, done_s: float, slo_s: float) -> None:
        """Add a chunk that had to wait for more than its batch."""
        self.first.append(latency_s)
        if latency_s > slo_s:
            self.num_violations += 1
        self._to_bin(latency_s, done_s)

    def add_queued(self, latency_s: float) -> None:
        """Add a chunk's wait for a worker and its batch time."""
        if latency_s > self.worst_queued_s:
            self.worst_queued_s = latency_s

    def add_unserved(self, wait_s: float, time_s: float, slo_s: float) -> None:
        """Add a session that went away after a wait for a worker."""
        self.unserved.append(wait_s)
        if wait_s > slo_s:
            self.num_violations += 1
        self._to_bin(wait_s, time_s)

    def _to_bin(self, latency_s: float, time_s: float) -> None:
        index = min(int(time_s // self.bin_s), len(self.worst_by_bin) - 1)
        if latency_s > self.worst_by_bin[index]:
            self.worst_by_bin[index] = latency_s

    @property
    def num_chunks(self) -> int:
        """Chunks made."""
        return sum(map(sum, self.steady)) + len(self.first)

    def worst_steady_s(self) -> float:
        """Return the longest batch that any worker ran."""
        times = [table[n] for table, row in zip(self._tables, self.steady, strict=True) for n, k in enumerate(row) if k]
        return max(times, default=0.0)

    def worst_s(self) -> float:
        """Return the worst chunk latency, waits without a chunk included."""
        return max(self.worst_steady_s(), max(self.first, default=0.0), max(self.unserved, default=0.0))

    def worst_without_boundary_s(self) -> float:
        """Return the worst latency if waiting for the batch in flight did not count."""
        return max(self.worst_steady_s(), self.worst_queued_s, max(self.unserved, default=0.0))

    def mean_s(self) -> float:
        """Return the mean chunk latency."""
        total = sum(
            table[n] * k for table, row in zip(self._tables, self.steady, strict=True) for n, k in enumerate(row)
        )
        count = self.num_chunks
        return (total + float(np.sum(np.frombuffer(self.first)))) / count if count else 0.0

    def quantile_s(self, share: float) -> float:
        """Return the smallest latency that at least `share` of the chunks keep."""
        pairs = [
            (table[n], k) for table, row in zip(self._tables, self.steady, strict=True) for n, k in enumerate(row) if k
        ]
        values = np.concatenate([np.array([value for value, _ in pairs]), np.frombuffer(self.first)])
        weights = np.concatenate([np.array([k for _, k in pairs], dtype=np.float64), np.ones(len(self.first))])
        if len(values) == 0:
            return 0.0
        order = np.argsort(values, kind="stable")
        reached = np.cumsum(weights[order])
        return float(values[order][np.searchsorted(reached, share * reached[-1])])
