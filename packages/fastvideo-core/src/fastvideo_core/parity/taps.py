"""Recorded intermediate tensors, and the first place where two recordings part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastvideo_core.loop.work import WorkPlan
from fastvideo_core.parity.compare import Comparison, compare_tensors

__all__ = ["Divergence", "TapRecorder", "TapRow", "Tolerance", "first_divergence"]

Tolerance = float | None | Callable[[str], float | None]
"""A bound on relative differences, None for equal bits; or a function from a tap's name to its bound."""


@dataclass(frozen=True, slots=True)
class TapRow:
    """One recorded tensor.

    Attributes:
        name: What it is, for instance `cond.velocity`.
        value: A copy, on the CPU.
    """

    name: str
    value: torch.Tensor


class TapRecorder:
    """Records taps in the order in which they come; give `recorder.tap` to an engine.

    Args:
        keep: Which names to record; None keeps all.
    """

    def __init__(self, keep: Callable[[str], bool] | None = None) -> None:
        self._keep = keep
        self.rows: list[TapRow] = []

    def tap(self, name: str, plan: WorkPlan[Any], value: torch.Tensor) -> None:
        """Record a tensor."""
        self.record(name, value)

    def record(self, name: str, value: torch.Tensor) -> None:
        """Record a tensor of whatever origin."""
        if self._keep is None or self._keep(name):
            self.rows.append(TapRow(name, value.detach().to("cpu", copy=True)))


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two recordings first part.

    Attributes:
        index: Position of the tap.
        name: Its name.
        comparison: How far apart; None where one recording ends or the names differ.
        reason: One line.
    """

    index: int
    name: str
    comparison: Comparison | None
    reason: str


def first_divergence(
    rows: Sequence[TapRow], reference: Sequence[TapRow], *, max_relative: Tolerance = None
) -> Divergence | None:
    """Return the first tap that differs from the reference, or None.

    Args:
        rows: What was recorded.
        reference: What the reference gave, in the same order.
        max_relative: Bound on the relative difference, or what gives the bound of a tap by its name; None asks for
            equal bits.
    """
    for index, (row, expected) in enumerate(zip(rows, reference, strict=False)):
        if row.name != expected.name:
            reason = f"tap {index} is {row.name!r}; the reference has {expected.name!r} there"
            return Divergence(index, row.name, None, reason)
        comparison = compare_tensors(row.value, expected.value)
        limit = max_relative(row.name) if callable(max_relative) else max_relative
        is_good = comparison.is_equal if limit is None else comparison.is_within(limit)
        if not is_good:
            bound = "equal bits" if limit is None else f"{limit:g} relative"
            reason = f"tap {index} ({row.name}) is off by {comparison.max_relative:.3g} relative; wanted: {bound}"
            return Divergence(index, row.name, comparison, reason)
    if len(rows) != len(reference):
        shorter = min(len(rows), len(reference))
        return Divergence(shorter, "", None, f"{len(rows)} taps; the reference has {len(reference)}")
    return None
