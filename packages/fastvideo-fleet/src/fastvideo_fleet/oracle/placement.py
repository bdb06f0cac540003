"""The best placement by an exact solver: the yardstick for the placement controller.

The model shares nothing with the controller's own argument. For each worker and each count it has a binary variable
that says whether the worker ends with that count; sessions leave workers and enter others; leaving is what the budget
limits; the worst batch time is minimised. HiGHS solves it, through scipy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastvideo_core.errors import ExecutionError, ResourceError

__all__ = ["BestPlacement", "best_placement"]


@dataclass(frozen=True, slots=True)
class BestPlacement:
    """An optimal placement.

    Attributes:
        worst_s: Its worst batch time.
        count: Sessions on each worker, (S,).
    """

    worst_s: float
    count: npt.NDArray[np.int64]


def best_placement(
    count: npt.NDArray[np.int64],
    chunk_s: npt.NDArray[np.float64],
    *,
    num_new: int = 0,
    max_moves: int,
    time_limit_s: float = 60.0,
) -> BestPlacement | None:
    """Return the placement with the least worst batch time within a migration budget.

    Args:
        count: Sessions on each worker, (S,).
        chunk_s: Batch time of each worker with n sessions, infinite beyond its K, (S, K + 2).
        num_new: Sessions to place besides.
        max_moves: Most sessions that may change workers.
        time_limit_s: Longest that the solver may take.

    Returns:
        The placement, or None if there is none.

    Raises:
        ResourceError: scipy is not installed.
        ExecutionError: The solver ran out of time.
    """
    milp, bounds, constraint = _solver()
    model = _Model(count, chunk_s)
    done = milp(
        model.objective(),
        constraints=constraint(*model.rows(num_new, max_moves)),
        bounds=bounds(0.0, model.upper()),
        integrality=model.is_whole(),
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
    )
    if done.status == 2:
        return None
    if done.status != 0:
        raise ExecutionError(f"the exact placement of {len(count)} workers was not found: {done.message}")
    placed = model.placed(done.x)
    return BestPlacement(float(chunk_s[np.arange(len(count)), placed].max()), placed)


def _solver() -> tuple[Any, Any, Any]:
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError as error:
        raise ResourceError("exact placements need scipy: pip install 'fastvideo-fleet[oracle]'") from error
    return milp, Bounds, LinearConstraint


class _Model:
    """The program's columns: for each worker `width` indicators, then who leaves, then who enters; last the time."""

    def __init__(self, count: npt.NDArray[np.int64], chunk_s: npt.NDArray[np.float64]) -> None:
        self.count = count
        self.is_allowed = np.isfinite(chunk_s)
        self.chunk_s = np.where(self.is_allowed, chunk_s, 0.0)
        self.num_workers, self.width = chunk_s.shape
        self.leave = self.num_workers * self.width
        self.enter = self.leave + self.num_workers
        self.worst = self.enter + self.num_workers

    def objective(self) -> npt.NDArray[np.float64]:
        """Return the cost of each column: the time is to be least."""
        return np.append(np.zeros(self.worst), 1.0)

    def is_whole(self) -> npt.NDArray[np.int64]:
        """Return which columns are whole numbers: all but the time."""
        return np.append(np.ones(self.worst, dtype=np.int64), 0)

    def upper(self) -> npt.NDArray[np.float64]:
        """Return the greatest value of each column."""
        free = np.full(self.num_workers + 1, np.inf)
        return np.concatenate([self.is_allowed.ravel().astype(np.float64), self.count, free])

    def rows(self, num_new: int, max_moves: int) -> tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the constraints: matrix, lower and upper bounds."""
        from scipy.sparse import lil_matrix

        workers, matrix = self.num_workers, lil_matrix((3 * self.num_workers + 2, self.worst + 1))
        low, high = np.zeros(3 * workers + 2), np.zeros(3 * workers + 2)
        for worker in range(workers):
            block = slice(worker * self.width, (worker + 1) * self.width)
            matrix[worker, block] = 1.0  # a worker ends with one count
            row = workers + worker  # which is what it had, less who leaves, plus who enters
            matrix[row, block] = np.arange(self.width)
            matrix[row, self.leave + worker], matrix[row, self.enter + worker] = 1.0, -1.0
            row = 2 * workers + worker  # and the time is at least this worker's
            matrix[row, block] = -self.chunk_s[worker]
            matrix[row, self.worst] = 1.0
        low[:workers] = high[:workers] = 1.0
        low[workers : 2 * workers] = high[workers : 2 * workers] = self.count
        high[2 * workers : 3 * workers] = np.inf
        matrix[-2, self.leave : self.enter] = -1.0
        matrix[-2, self.enter : self.worst] = 1.0
        low[-2] = high[-2] = num_new
        matrix[-1, self.leave : self.enter] = 1.0
        high[-1] = max_moves
        return matrix.tocsc(), low, high

    def placed(self, solution: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the counts of a solution."""
        chosen = np.round(solution[: self.leave]).reshape(self.num_workers, self.width)
        return (chosen @ np.arange(self.width)).astype(np.int64)
