"""The line that turns the size of a call into seconds, and its robust fit to what was measured.

    seconds = call + plans * num_plans + flops / rate + bytes / bandwidth

All four coefficients are at least zero, so a larger call is never predicted to be faster.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastvideo_core.loop.work import StepCost

__all__ = ["STATED_PRIOR", "Anchor", "CallSize", "CostLine", "MonotoneMap", "fit_line", "mean_cost"]

_Array = npt.NDArray[np.float64]
# How far a relative residual may go before its anchor loses weight.
_HUBER = 0.2
# Each step of the fit is held back as if by this many anchors that want no change.
_PULL = 0.02
# The same in terms of what the data want: it keeps the system solvable where they say one thing many times over.
_LEAST_PULL = 1e-9
# A coefficient that a step would make zero starts the next at this share of what it was, so that it may rise again.
_REVIVED = 0.1
# Predictions below that say nothing that could be gone on with in proportion.
_NOTHING_S = 1e-12
_SMALLEST = (1e-7, 1e-8, 1e-17, 1e-15)


class CallSize(NamedTuple):
    """Size of one call.

    Attributes:
        num_plans: Plans that share it.
        flops: Floating-point operations of all of them.
        num_bytes: Bytes read and written: weights once, activations of all plans.
    """

    num_plans: float
    flops: float
    num_bytes: float

    @classmethod
    def of(cls, cost: StepCost, num_plans: int) -> CallSize:
        """Return the size of a call that runs `num_plans` steps of one cost."""
        return cls(float(num_plans), cost.flops * num_plans, cost.weight_bytes + cost.activation_bytes * num_plans)


class CostLine(NamedTuple):
    """Coefficients of the line, each at least zero.

    Attributes:
        call_s: Seconds of a call, however small.
        plan_s: Seconds a plan.
        flop_s: Seconds a floating-point operation.
        byte_s: Seconds a byte.
    """

    call_s: float
    plan_s: float
    flop_s: float
    byte_s: float

    def seconds(self, size: CallSize) -> float:
        """Return the predicted seconds of a call."""
        return self.call_s + self.plan_s * size.num_plans + self.flop_s * size.flops + self.byte_s * size.num_bytes


STATED_PRIOR = CostLine(call_s=1e-3, plan_s=1e-4, flop_s=2e-11, byte_s=1e-10)
"""What is assumed of a device that cannot be measured: 50 GFLOP/s, 10 GB/s, a millisecond a call."""


class Anchor(NamedTuple):
    """What is known of calls of one size.

    Attributes:
        size: The size.
        seconds: Typical measured seconds.
        weight: How much it counts.
    """

    size: CallSize
    seconds: float
    weight: float


def mean_cost(costs: Sequence[StepCost]) -> StepCost:
    """Return the cost a plan of a call whose plans cost differently, for `CostModel.predict` and `observe`."""
    flops = [cost.flops for cost in costs]
    moved = [cost.activation_bytes for cost in costs]
    weights = [cost.weight_bytes for cost in costs]
    if all(values.count(values[0]) == len(values) for values in (flops, moved, weights)):
        return costs[0]
    return StepCost(sum(flops) / len(costs), max(weights), sum(moved) / len(costs))


def fit_line(anchors: Sequence[Anchor], prior: CostLine) -> CostLine:
    """Fit a line with coefficients of at least zero to anchors, by relative error.

    What the anchors leave open (one size tells nothing of the split between overhead and rate) is divided as the
    prior divides it. Anchors that disagree with the rest lose weight.

    Args:
        anchors: Measured calls; without any, the prior is returned.
        prior: A line for the same kind of device; only its proportions matter once there are anchors.
    """
    if not anchors:
        return prior
    sizes = np.array([(1.0, *anchor.size) for anchor in anchors])
    seconds = np.array([anchor.seconds for anchor in anchors])
    weights = np.array([anchor.weight for anchor in anchors])
    # No coefficient of the prior is nothing at all, or the data could never raise it.
    start = np.maximum(np.array(prior), np.array(_SMALLEST))
    start *= _weighted_median(seconds / (sizes @ start), weights)
    rows = sizes / seconds[:, None]
    line = _solve(rows, weights, start, num_rounds=5)
    for _ in range(2):
        residuals = np.abs(rows @ line - 1.0)
        line = _solve(
            rows, weights / np.maximum(1.0, residuals / _HUBER), np.maximum(line, _REVIVED * start), num_rounds=2
        )
    return CostLine(*line.tolist())


def _solve(rows: _Array, weights: _Array, start: _Array, *, num_rounds: int) -> _Array:
    """Return coefficients of at least zero that bring `rows @ line` closest to one.

    By proximal steps from `start`: where the rows decide they lead to the least squares, where not they stay.
    """
    weighted: _Array = rows * weights[:, None]
    gram: _Array = weighted.T @ rows
    target: _Array = weighted.sum(axis=0)
    centre = start
    for step in range(num_rounds):
        scaled = gram * centre * centre[:, None]
        pull = _PULL + _LEAST_PULL * scaled.diagonal()
        factors = _solve_nonnegative(scaled + np.diag(pull), target * centre + pull)
        if step < num_rounds - 1:
            centre = centre * np.maximum(factors, _REVIVED)
    return centre * factors


def _solve_nonnegative(gram: _Array, target: _Array) -> _Array:
    """Solve a small symmetric system; unknowns that come out negative are zero, the worst first."""
    solved: npt.NDArray[np.floating[Any]] = np.linalg.solve(gram, target)
    free = np.arange(len(target))
    while len(free) and solved.min() < 0:
        free = np.delete(free, int(solved.argmin()))
        solved = np.linalg.solve(gram[np.ix_(free, free)], target[free])
    solution = np.zeros_like(target)
    solution[free] = solved
    return solution


def _weighted_median(values: _Array, weights: _Array) -> float:
    order = np.argsort(values, kind="stable")
    passed = np.cumsum(weights[order])
    return float(values[order][int(np.searchsorted(passed, passed[-1] / 2))])


class MonotoneMap:
    """A rising curve through measured points, from what a line predicts to what was measured.

    Between knots it is straight; outside it goes on in proportion. Points that fall instead of rising are averaged.

    Args:
        points: Predicted seconds, measured seconds, weight.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self, points: Sequence[tuple[float, float, float]]) -> None:
        blocks: list[tuple[float, float, float]] = []
        for block in sorted(points):
            # Pool adjacent violators; equal predictions are one point.
            while blocks and (blocks[-1][1] >= block[1] or blocks[-1][0] >= block[0]):
                block = _pooled(blocks.pop(), block)
            blocks.append(block)
        self._starts = [block[0] for block in blocks]
        self._ends = [block[1] for block in blocks]

    def __call__(self, value: float) -> float:
        """Return the curve's value; without points, `value` itself."""
        starts, ends = self._starts, self._ends
        if not starts:
            return value
        index = bisect_left(starts, value)
        if index == 0 or index == len(starts):
            edge = min(index, len(starts) - 1)
            return ends[edge] * (value / starts[edge]) if starts[edge] > _NOTHING_S else ends[edge]
        left, right = starts[index - 1], starts[index]
        share = (value - left) / (right - left)
        return ends[index - 1] + share * (ends[index] - ends[index - 1])


def _pooled(one: tuple[float, float, float], other: tuple[float, float, float]) -> tuple[float, float, float]:
    weight = one[2] + other[2]
    return (
        (one[0] * one[2] + other[0] * other[2]) / weight,
        (one[1] * one[2] + other[1] * other[2]) / weight,
        weight,
    )
