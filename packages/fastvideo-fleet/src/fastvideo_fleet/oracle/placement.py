"""The best placement by an exact solver: the yardstick for the placement controller.

The model shares nothing with the controller's own argument. For each worker and each count it has a binary variable
that says whether the worker ends with that count; sessions leave workers and enter others; leaving is what the budget
limits; the worst batch time is minimised. HiGHS solves it, through scipy.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import lil_matrix
    except ImportError as error:
        raise ResourceError("exact placements need scipy: pip install 'fastvideo-fleet[oracle]'") from error
    num_workers, width = len(count), chunk_s.shape[1]
    # Columns: for each worker `width` indicators, then sessions that leave, then sessions that enter; last the time.
    leave, enter = num_workers * width, num_workers * (width + 1)
    worst = num_workers * (width + 2)
    rows = lil_matrix((3 * num_workers + 2, worst + 1))
    low, high = np.zeros(3 * num_workers + 2), np.zeros(3 * num_workers + 2)
    finite = np.where(np.isfinite(chunk_s), chunk_s, 0.0)
    for worker in range(num_workers):
        block = slice(worker * width, (worker + 1) * width)
        rows[worker, block] = 1.0  # one count
        low[worker] = high[worker] = 1.0
        row = num_workers + worker  # count = before - leaving + entering
        rows[row, block] = np.arange(width)
        rows[row, leave + worker], rows[row, enter + worker] = 1.0, -1.0
        low[row] = high[row] = count[worker]
        row = 2 * num_workers + worker  # the time is at least this worker's
        rows[row, block] = -finite[worker]
        rows[row, worst] = 1.0
        high[row] = np.inf
    rows[3 * num_workers, leave : leave + num_workers] = -1.0
    rows[3 * num_workers, enter : enter + num_workers] = 1.0
    low[3 * num_workers] = high[3 * num_workers] = num_new
    rows[3 * num_workers + 1, leave : leave + num_workers] = 1.0
    high[3 * num_workers + 1] = max_moves
    upper = np.concatenate([np.isfinite(chunk_s).ravel().astype(float), count, np.full(num_workers, np.inf), [np.inf]])
    objective = np.zeros(worst + 1)
    objective[worst] = 1.0
    integrality = np.concatenate([np.ones(worst), [0]])
    done = milp(
        objective,
        constraints=LinearConstraint(rows.tocsc(), low, high),
        bounds=Bounds(np.zeros(worst + 1), upper),
        integrality=integrality,
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
    )
    if done.status == 2:
        return None
    if done.status != 0:
        raise ExecutionError(f"the exact placement of {num_workers} workers was not found: {done.message}")
    chosen = np.round(done.x[: num_workers * width]).reshape(num_workers, width)
    placed = (chosen @ np.arange(width)).astype(np.int64)
    return BestPlacement(float(finite[np.arange(num_workers), placed].max()), placed)
